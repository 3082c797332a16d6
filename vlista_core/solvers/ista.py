"""ISTA (Daubechies et al. 2004; the paper's Eq. 3): x ← η_{γλ}(x + γAᴴ(y - Ax)), A = ΦΨ."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vlista_core.estimate import Measurement
from vlista_core.prox import soft_threshold
from vlista_core.solvers.base import State, relative_change
from vlista_core.solvers.lasso import LassoSolver


@dataclass(frozen=True, kw_only=True)
class ISTA(LassoSolver):
    """Iterative soft thresholding for ½‖y - Ax‖² + λ‖x‖₁."""

    def memory(self, code: Tensor) -> State:
        return ()

    def update(self, system: Measurement, state: State, t: int) -> tuple[State, Tensor]:
        code, step, threshold = state
        residual = system.y - system.phi.apply(code)
        new = soft_threshold(code + step * system.phi.adjoint(residual), threshold)
        return (new, step, threshold), relative_change(new, code) <= self.tolerance
