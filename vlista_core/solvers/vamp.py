"""VAMP (Rangan, Schniter & Fletcher 2017) with a Bernoulli–Gauss prior whose parameters are learned by EM.

Two estimators exchange extrinsic means r and precisions γ: the LMMSE estimate of x from y = Ax + n with x ~ N(r₂, 1/γ₂),
and the scalar MMSE denoiser of r₁ = x + N(0, 1/γ₁). The LMMSE step uses the eigenvalues of AAᴴ, found once:
x₂ = r₂ + AᴴU diag(1/(λ + σ²γ₂)) Uᴴ(y - Ar₂).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vlista_core.estimate import Estimate, Measurement
from vlista_core.linops import IdentityMap, LinearMap
from vlista_core.prox import bernoulli_gauss
from vlista_core.solvers.base import Solver, State, iterate, relative_change, zero_code

_LEAST = 1e-6
_ROUNDING = 10.0
_DIVERGED = 1e3


@dataclass(frozen=True, kw_only=True)
class VAMP(Solver):
    """Vector approximate message passing; returns the posterior variance of the denoiser.

    A sample's noise is taken to be at least ten times machine precision of its power per measurement, and precisions are kept
    below the inverse of that: without both, rounding errors grow without bound as noise_var goes to 0. A sample that still
    diverges, because y does not fit the model, keeps its last good code.
    """

    forms_product = True

    activity: float = 0.1
    """Probability of a non-zero entry, to start from."""
    learn_prior: bool = True
    """Re-estimate activity and power of each sample by EM."""
    damping: float = 0.9
    """Share of the new message in each exchange, in (0, 1]."""
    iterations: int = 100
    tolerance: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.activity < 1.0:
            raise ValueError(f"activity must lie between 0 and 1, got {self.activity}")
        if not self.damping <= 1.0:
            raise ValueError(f"damping must lie in (0, 1], got {self.damping}")

    def solve(self, system: Measurement, dictionary: LinearMap) -> Estimate:
        size = system.y.shape[0]
        eigenvalues, vectors = torch.linalg.eigh(system.phi.gram())
        eigenvalues = eigenvalues.clamp_min(0).expand(size, -1)
        vectors = vectors.expand(size, -1, -1)
        energy = system.y.abs().square().sum(1)
        gain = eigenvalues.sum(1)
        usable = (energy > 0) & (gain > 0)
        # In units of each sample's own mean power per atom, so that precisions are of order one.
        unit = torch.sqrt(torch.where(usable, energy / torch.where(usable, gain, 1.0), 1.0))
        y = system.y / unit[:, None]
        floor = _rounding(y) * y.abs().square().mean(1)
        noise = torch.maximum(system.noise_var / unit.square(), torch.where(usable, floor, 1.0))
        zero, one = zero_code(system), torch.ones_like(noise)[:, None]
        prior = self.activity * one, one / self.activity
        live = (system.phi.column_norms() > 0).expand(size, -1)
        shares = live / live.sum(1, keepdim=True).clamp_min(1).to(noise.dtype)
        start = (zero, zero.real.clone(), zero, one, zero, one, *prior, eigenvalues, vectors, shares)
        (code, variance, *_, activity, power, _, _, _), taken = iterate(
            Measurement(y, system.phi, noise), start, self._update, self.iterations
        )
        code = torch.where(live & usable[:, None], unit[:, None] * code, 0)
        variance = unit.square()[:, None] * torch.where(live, variance, activity * power)
        return Estimate(dictionary.apply(code), code, _signal_variance(dictionary, variance), iterations=taken)

    def _update(self, system: Measurement, state: State, t: int) -> tuple[State, Tensor]:
        """One exchange: code, its variance, r₁, γ₁, r₂, γ₂, activity, power, eigenvalues and eigenvectors of AAᴴ, and the share
        of each atom in a mean over those that Φ sees: the others would pass for atoms that were seen to be zero."""
        code, last_variance, r1, precision1, r2, precision2, activity, power, eigenvalues, vectors, shares = state
        fresh = self.damping if t else 1.0

        linear, share = _linear_step(system, r2, precision2, eigenvalues, vectors, shares)
        r1, precision1 = _extrinsic(linear, share, r2, precision2, (r1, precision1), fresh)

        new, variance, active = bernoulli_gauss(r1, 1.0 / precision1, activity, power)
        share = precision1 * _mean(variance, shares)
        r2, precision2 = _extrinsic(new, share, r1, precision1, (r2, precision2), fresh)

        if self.learn_prior:
            activity, power = _learn_prior(new, variance, active, shares)
        # In these units the mean power of an entry is one; a code far above it, or not finite, belongs to another problem.
        diverged = ~(new.abs().square().mean(1) < _DIVERGED)
        new = torch.where(diverged[:, None], code, new)
        variance = torch.where(diverged[:, None], last_variance, variance)
        done = diverged | (relative_change(new, code) <= self.tolerance)
        return (new, variance, r1, precision1, r2, precision2, activity, power, eigenvalues, vectors, shares), done


def _linear_step(
    system: Measurement, r: Tensor, precision: Tensor, eigenvalues: Tensor, vectors: Tensor, shares: Tensor
) -> tuple[Tensor, Tensor]:
    """LMMSE mean [batch, b] and the share of prior precision in the posterior's, averaged over atoms: [batch, 1]."""
    loading = system.noise_var[:, None] * precision
    rotated = torch.bmm((system.y - system.phi.apply(r))[:, None, :], vectors.conj())[:, 0]
    innovation = torch.bmm((rotated / (eigenvalues + loading))[:, None, :], vectors.mT)[:, 0]
    explained = (eigenvalues / (eigenvalues + loading)).sum(1, keepdim=True)
    return r + system.phi.adjoint(innovation), 1.0 - explained * shares.amax(1, keepdim=True)


def _extrinsic(
    mean: Tensor, share: Tensor, r: Tensor, precision: Tensor, old: tuple[Tensor, Tensor], fresh: float
) -> tuple[Tensor, Tensor]:
    """What an estimate adds to the message (r, precision) it was made from, damped towards the last message sent.

    With η = precision/share the posterior precision: precision' = η - precision, r' = (η mean - precision r)/precision'.
    """
    tiny = _rounding(mean)
    share = share.clamp(tiny, 1.0 - tiny)
    new_precision = (precision * (1.0 / share - 1.0)).clamp(_LEAST, 1.0 / tiny)
    new_r = (mean - share * r) / (1.0 - share)
    old_r, old_precision = old
    return fresh * new_r + (1.0 - fresh) * old_r, fresh * new_precision + (1.0 - fresh) * old_precision


def _learn_prior(mean: Tensor, variance: Tensor, active: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """EM for the activity and the power of active entries, from posterior moments: each [batch, 1]."""
    activity = _mean(active, shares).clamp(1e-6, 1.0 - 1e-6)
    second_moment = _mean(mean.abs().square() + variance, shares)
    return activity, (second_moment / activity).clamp_min(_LEAST)


def _mean(values: Tensor, shares: Tensor) -> Tensor:
    """[batch, b] -> [batch, 1]."""
    return (values * shares).sum(1, keepdim=True)


def _signal_variance(dictionary: LinearMap, variance: Tensor) -> Tensor:
    """Variance of Ψx for uncorrelated code entries: |Ψ|² var. [batch, b] -> [batch, n]."""
    if isinstance(dictionary, IdentityMap):
        return variance
    return variance @ dictionary.materialize()[0].abs().square().mT


def _rounding(values: Tensor) -> float:
    return _ROUNDING * torch.finfo(values.dtype).eps
