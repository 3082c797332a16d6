"""AMP (Donoho, Maleki & Montanari 2009): v = y - Ax + (1/m)⟨η'⟩ v_prev, x ← η_θ(x + Aᴴv), θ = α‖v‖/√m.

The Onsager term ⟨η'⟩ is ‖x‖₀ for real codes and Σ(1 - θ/2|u|) over the survivors for complex ones.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vlista_core.estimate import Estimate, Measurement
from vlista_core.linops import LinearMap
from vlista_core.prox import soft_threshold
from vlista_core.solvers.base import Solver, State, iterate, relative_change, zero_code

_GROWTH = 2.0


@dataclass(frozen=True, kw_only=True)
class AMP(Solver):
    """Approximate message passing with soft thresholding, for A close to i.i.d.

    A is scaled to columns of unit norm on average, exactly: an error of three per cent there makes one sample in fifty diverge.
    Where A is not of the kind AMP needs, the corrected residual, ‖v‖, grows: a sample in which it is twice what it was stops at
    the code where it was least, and one that fits y worse than x = 0 gets that.
    """

    alpha: float = 1.14
    """Threshold in standard deviations of the effective noise."""
    iterations: int = 100
    tolerance: float = 1e-5

    def solve(self, system: Measurement, dictionary: LinearMap) -> Estimate:
        power = system.phi.squared_frobenius_norm() / system.phi.shape[1]
        scale = torch.where(power > 0, power, torch.ones_like(power)).rsqrt().expand(system.y.shape[0])[:, None]
        zero, size = zero_code(system), torch.linalg.vector_norm(system.y, dim=1)
        start = (zero, system.y, zero, size, scale)
        (code, *_), taken = iterate(system, start, self._update, self.iterations)
        code = scale * code
        fits = torch.linalg.vector_norm(system.y - system.phi.apply(code), dim=1) <= size
        code = torch.where(fits[:, None], code, 0)
        return Estimate(dictionary.apply(code), code, iterations=taken)

    def _update(self, system: Measurement, state: State, t: int) -> tuple[State, Tensor]:
        """One iteration with scale·A: code [batch, b], corrected residual v [batch, m], the code where ‖v‖ was least and that
        ‖v‖, [batch, b] and [batch], scale [batch, 1]."""
        code, corrected, best, least, scale = state
        m = system.phi.shape[0]
        threshold = self.alpha / math.sqrt(m) * torch.linalg.vector_norm(corrected, dim=1, keepdim=True)
        pseudo_data = code + scale * system.phi.adjoint(corrected)
        new = soft_threshold(pseudo_data, threshold)
        onsager = _divergence(pseudo_data, threshold) / m
        new_corrected = system.y - scale * system.phi.apply(new) + onsager * corrected
        size = torch.linalg.vector_norm(new_corrected, dim=1)
        diverged = ~(size <= _GROWTH * least)
        new = torch.where(diverged[:, None], best, new)
        best, least = torch.where((size < least)[:, None], new, best), torch.minimum(size, least)
        done = diverged | (relative_change(new, code) <= self.tolerance)
        return (new, new_corrected, best, least, scale), done


def _divergence(u: Tensor, threshold: Tensor) -> Tensor:
    """Sum over the entries of the derivative of η_θ at u. u: [batch, b], threshold: [batch, 1] -> [batch, 1]."""
    modulus = u.abs()
    survives = modulus > threshold
    if not u.is_complex():
        return survives.sum(1, keepdim=True).to(u.dtype)
    slope = 1.0 - threshold / (2.0 * modulus.clamp_min(torch.finfo(modulus.dtype).tiny))
    return torch.where(survives, slope, torch.zeros_like(slope)).sum(1, keepdim=True)
