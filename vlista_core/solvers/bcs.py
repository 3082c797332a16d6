"""Bayesian compressed sensing by the fast relevance vector machine (Tipping & Faul 2003; Ji, Xue & Carin 2008).

x_j ~ N(0, γ_j), y ~ N(0, C), C = σ²I + AΓAᴴ. Each iteration changes the one γ_j that raises the marginal likelihood most:
adding, re-estimating and deleting a column are the same rank-one change of C. With S_j = a_jᴴC⁻¹a_j and Q_j = a_jᴴC⁻¹y,
    s = S/(1 - γS), q = Q/(1 - γS), ℓ(γ) = |q|²γ/(1 + γs) - log(1 + γs), maximal at γ* = max(0, (|q|² - s)/s²).
The posterior is E x = ΓQ, Cov x = Γ - ΓAᴴC⁻¹AΓ. σ² is fixed while iterating.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vlista_core.estimate import Estimate, Measurement
from vlista_core.linops import IdentityMap, LinearMap
from vlista_core.solvers.base import Solver, State, iterate, preference


@dataclass(frozen=True, kw_only=True)
class BCS(Solver):
    """Sparse Bayesian learning; returns the posterior variance of every signal entry.

    Works in double precision inside, because 1 - γS is as small as σ²/γ; the result has the precision of the input.
    """

    noise_floor: float = 1e-6
    """Least σ², as a share of the mean of |y|² of the sample: what stands in for noise_var = 0."""
    admission: float | None = None
    """A column enters only where |q|²/s exceeds this. For a column of pure noise the ratio has mean 1, and the largest of b
    such is about 2 ln b, which None takes; 1 is the plain RVM, which keeps as many false atoms as true ones."""
    iterations: int = 1000
    tolerance: float = 1e-8
    """A sample stops when a change raises the log likelihood by less than this share of its rise so far."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.admission is not None and self.admission < 1.0:
            raise ValueError(f"admission must be at least 1 or None, got {self.admission}")

    def solve(self, system: Measurement, dictionary: LinearMap) -> Estimate:
        double = torch.complex128 if system.y.is_complex() else torch.float64
        y, a = system.y.to(double), system.phi.cast(double)
        power = y.abs().square().mean(1)
        silent = power == 0
        noise = torch.maximum(system.noise_var.double(), self.noise_floor * torch.where(silent, 1.0, power))
        m, atoms = a.shape
        identity = torch.eye(m, dtype=double, device=y.device)
        seen = preference(system.phi.column_norms()).double().expand(y.shape[0], -1)
        start = (
            torch.zeros(y.shape[0], atoms, dtype=torch.float64, device=y.device),
            a.column_norms().square() / noise[:, None],
            torch.where(seen > 0, a.adjoint(y) / noise[:, None], 0),
            identity / noise[:, None, None],
            torch.zeros_like(noise),
            seen,
        )
        exact = Measurement(y, a, noise)
        (prior, sparsity, quality, inverse, *_), taken = iterate(exact, start, self._update, self.iterations)
        code = (prior * quality).to(system.y.dtype)
        variance = _signal_variance(a, dictionary, prior, sparsity, inverse).to(system.y.real.dtype)
        return Estimate(dictionary.apply(code), code, variance, iterations=taken)

    def _update(self, system: Measurement, state: State, t: int) -> tuple[State, Tensor]:
        """Change one γ per sample: γ, S, Q [batch, b], C⁻¹ [batch, m, m], the rise of the log likelihood so far [batch], and
        how well Φ sees each column [batch, b]: S and Q of those it does not see stay as they are, so that none ever enters."""
        prior, sparsity, quality, inverse, rise, seen = state
        admission = 2.0 * math.log(max(2, prior.shape[1])) if self.admission is None else self.admission
        best, gain, chosen = _best_change(prior, sparsity, quality, admission, seen)
        done = gain <= self.tolerance * rise
        change = torch.where(done[:, None], 0.0, best - prior.gather(1, chosen))
        direction = system.phi.columns(chosen)[:, :, 0]
        image = torch.bmm(direction[:, None, :], inverse.mT)[:, 0]
        factor = change / (1.0 + change * sparsity.gather(1, chosen))
        overlap = torch.where(seen > 0, system.phi.adjoint(image), 0)
        # A sample that is done changes by nothing, so that C⁻¹, the largest of these, can be updated in place.
        inverse.baddbmm_((-factor * image)[:, :, None], image[:, None, :].conj())
        new_sparsity = sparsity - factor * overlap.abs().square()
        new_quality = quality - factor * overlap * quality.gather(1, chosen)
        new_prior = prior.scatter_add(1, chosen, change)
        return (new_prior, new_sparsity, new_quality, inverse, rise + gain, seen), done


def _best_change(
    prior: Tensor, sparsity: Tensor, quality: Tensor, admission: float, seen: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The best new γ, the rise it brings and its column, for each sample: [batch, 1], [batch], [batch, 1].

    A column whose S or 1 - γS has sunk into rounding stays as it is.
    """
    eps = torch.finfo(prior.dtype).eps
    rest = 1.0 - prior * sparsity
    lost = (rest <= eps) | (sparsity <= eps * sparsity.amax(1, keepdim=True))
    rest, sparsity = torch.where(lost, 1.0, rest), torch.where(lost, 1.0, sparsity)
    s = sparsity / rest
    q_squared = (quality.abs() / rest).square()
    best = torch.where(q_squared > admission * s, (q_squared - s) / s.square(), 0.0)
    best = torch.where(lost, prior, best)
    gain = _log_likelihood(best, s, q_squared) - _log_likelihood(prior, s, q_squared)
    chosen = (gain * seen).argmax(1, keepdim=True)
    return best.gather(1, chosen), gain.gather(1, chosen)[:, 0], chosen


def _log_likelihood(prior: Tensor, s: Tensor, q_squared: Tensor) -> Tensor:
    """What depends on one γ_j, up to a factor that does not matter for the choice."""
    return q_squared * prior / (1.0 + prior * s) - torch.log1p(prior * s)


def _signal_variance(a: LinearMap, dictionary: LinearMap, prior: Tensor, sparsity: Tensor, inverse: Tensor) -> Tensor:
    """Diagonal of Ψ Cov(x) Ψᴴ: [batch, n]. Only the columns that some sample uses are touched."""
    if isinstance(dictionary, IdentityMap):
        return (prior - prior.square() * sparsity).clamp_min(0)
    most = prior.shape[1] if prior.is_meta else max(1, int((prior > 0).sum(1).max()))
    weight, index = prior.topk(most, dim=1)
    used = a.columns(index) * weight[:, None, :]
    covariance = torch.diag_embed(weight).to(inverse.dtype) - used.mH @ inverse @ used
    atoms = dictionary.cast(inverse.dtype).columns(index)
    return ((atoms @ covariance) * atoms.conj()).sum(2).real.clamp_min(0)
