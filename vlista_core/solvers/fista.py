"""FISTA (Beck & Teboulle 2009): an ISTA step from z = x + (t' - 1)/t · (x - x_prev), t = (1 + √(1 + 4t'²))/2.

The momentum of a sample starts again when it points against its own progress (O'Donoghue & Candès 2015).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vlista_core.estimate import Measurement
from vlista_core.prox import soft_threshold
from vlista_core.solvers.base import State, relative_change
from vlista_core.solvers.ista import LassoSolver


@dataclass(frozen=True, kw_only=True)
class FISTA(LassoSolver):
    """Accelerated iterative soft thresholding for ½‖y - Ax‖² + λ‖x‖₁."""

    def memory(self, code: Tensor) -> State:
        return code, torch.ones(code.shape[0], 1, dtype=code.real.dtype, device=code.device)

    def update(self, system: Measurement, state: State, t: int) -> tuple[State, Tensor]:
        code, step, threshold, point, inertia = state
        residual = system.y - system.phi.apply(point)
        new = soft_threshold(point + step * system.phi.adjoint(residual), threshold)
        uphill = ((point - new).conj() * (new - code)).real.sum(1, keepdim=True) > 0
        inertia = torch.where(uphill, torch.ones_like(inertia), inertia)
        next_inertia = 0.5 * (1.0 + torch.sqrt(1.0 + 4.0 * inertia.square()))
        next_point = new + ((inertia - 1.0) / next_inertia) * (new - code)
        return (new, step, threshold, next_point, next_inertia), relative_change(new, code) <= self.tolerance
