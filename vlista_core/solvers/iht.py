"""Normalised iterative hard thresholding (Blumensath & Davies 2010): x ← H_k(x + μAᴴ(y - Ax)).

μ = ‖g_S‖²/‖Ag_S‖² on the current support S; where the support would change, μ shrinks until the step cannot overshoot.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vlista_core.estimate import Estimate, Measurement
from vlista_core.linops import LinearMap
from vlista_core.prox import hard_threshold
from vlista_core.solvers.base import Solver, State, iterate, nonzeros, relative_change, within_noise, zero_code

_SHRINK = 0.5
_SAFETY = 0.99
_BACKTRACKS = 20


@dataclass(frozen=True, kw_only=True)
class IHT(Solver):
    """Iterative hard thresholding to `n_nonzero` entries, none of them of a column that Φ does not see."""

    n_nonzero: int | None = None
    """k; None takes what m measurements can usually identify."""
    iterations: int = 300
    tolerance: float = 1e-5
    """A sample stops when its code changes by less, or when its residual is within the noise."""

    def solve(self, system: Measurement, dictionary: LinearMap) -> Estimate:
        keep = nonzeros(self.n_nonzero, system)
        live = (system.phi.column_norms() > 0).expand(len(system.y), -1)

        def update(system: Measurement, state: State, t: int) -> tuple[State, Tensor]:
            code, residual, live = state
            gradient = torch.where(live, system.phi.adjoint(residual), 0)
            support = code != 0 if t > 0 else hard_threshold(gradient, keep) != 0
            on_support = torch.where(support, gradient, torch.zeros_like(gradient))
            new = self._move(system.phi, code, gradient, _ratio(system.phi, on_support), keep)
            new_residual = system.y - system.phi.apply(new)
            done = (relative_change(new, code) <= self.tolerance) | within_noise(new_residual, system.noise_var)
            return (new, new_residual, live), done

        (code, *_), taken = iterate(system, (zero_code(system), system.y, live), update, self.iterations)
        return Estimate(dictionary.apply(code), code, iterations=taken)

    def _move(self, a: LinearMap, code: Tensor, gradient: Tensor, step: Tensor, keep: int) -> Tensor:
        """H_k(x + μg), μ shrunk while the support changes and μ exceeds ‖Δ‖²/‖AΔ‖². Shapes [batch, b]; step [batch, 1]."""
        new = hard_threshold(code + step * gradient, keep)
        for _ in range(_BACKTRACKS):
            same_support = ((new != 0) == (code != 0)).all(1, keepdim=True)
            overshoots = ~same_support & (step > _SAFETY * _ratio(a, new - code))
            if overshoots.is_meta or not bool(overshoots.any()):
                break
            step = torch.where(overshoots, _SHRINK * step, step)
            new = torch.where(overshoots, hard_threshold(code + step * gradient, keep), new)
        return new


def _ratio(a: LinearMap, direction: Tensor) -> Tensor:
    """‖d‖²/‖Ad‖², zero for d = 0. direction: [batch, b] -> [batch, 1]."""
    image = a.apply(direction).abs().square().sum(1, keepdim=True)
    length = direction.abs().square().sum(1, keepdim=True)
    return torch.where(image > 0, length / image.clamp_min(torch.finfo(image.dtype).tiny), torch.zeros_like(length))
