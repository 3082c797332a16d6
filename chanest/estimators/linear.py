"""Linear estimators: least squares, and LMMSE with one covariance for the whole ensemble."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, cast

import torch
from torch import Tensor

from chanest.estimators.base import ChannelEstimator, Fit
from vlista_core.checkpoint import register_model
from vlista_core.estimate import Estimate, Measurement
from vlista_core.linalg import solve_hermitian
from vlista_core.metrics import nmse_db
from vlista_core.tensorfile import Json

if TYPE_CHECKING:
    from chanest.problem import ChannelProblem

_BLOCK = 2000
_RANKS = (16, 32, 64, 96, 128, 192, 256)
_SHRINKAGES = (0.0, 1e-3, 1e-2, 3e-2)
_SNRS_DB = (0.0, 10.0, 20.0)


@register_model
class LS(ChannelEstimator):
    """ĥ = Φᴴ(ΦΦᴴ)⁻¹y, of least norm where there are fewer measurements than unknowns."""

    name = "ls"
    summary = "least squares, of least norm where m < n"

    @classmethod
    def build(cls, problem: ChannelProblem) -> Self:
        return cls(problem.signal_length)

    def infer(self, measured: Measurement) -> Estimate:
        gram = measured.phi.gram()
        return Estimate(measured.phi.adjoint(solve_hermitian(gram, measured.y[..., None])[..., 0]))

    def configuration(self) -> dict[str, Json]:
        return {"signal_length": self.signal_length}

    @classmethod
    def from_configuration(cls, configuration: dict[str, Json]) -> Self:
        return cls(cast(int, configuration["signal_length"]))


@register_model
class LMMSE(ChannelEstimator):
    """ĥ = RΦᴴ(ΦRΦᴴ + σ²I)⁻¹y with R = UUᴴ + floor·I, the covariance of the training channels.

    U has the main eigenvectors of the sample covariance; rank and floor (the shrinkage) are chosen on validation draws.
    """

    name = "lmmse"
    summary = "LMMSE with the covariance of the whole ensemble"
    needs_fit = True

    def __init__(self, signal_length: int, rank: int) -> None:
        super().__init__(signal_length)
        self.factor: Tensor
        self.floor: Tensor
        self.register_buffer("factor", torch.zeros(signal_length, rank, dtype=torch.complex64))
        self.register_buffer("floor", torch.ones(()))

    @classmethod
    def build(cls, problem: ChannelProblem) -> Self:
        return cls(problem.signal_length, 0)

    def fit(self, problem: ChannelProblem, plan: Fit) -> dict[str, Json]:
        values, vectors = torch.linalg.eigh(sample_covariance(problem, plan))
        draws = [problem.sample(300, seed=plan.seed, split="validation", snr_db=snr) for snr in _SNRS_DB]
        best = (float("inf"), 0, 0.0)
        for rank in (rank for rank in _RANKS if rank <= self.signal_length):
            for shrinkage in _SHRINKAGES:
                self._set(values, vectors, rank, shrinkage)
                score = sum(nmse_db(self.estimate(b.y, b.phi, b.noise_var).signal, b.signal) for b in draws)
                best = min(best, (score / len(draws), rank, shrinkage))
        self._set(values, vectors, *best[1:])
        return {"rank": best[1], "shrinkage": best[2], "validation_nmse_db": best[0], "snr_db": list(_SNRS_DB)}

    def _set(self, values: Tensor, vectors: Tensor, rank: int, shrinkage: float) -> None:
        """R = (1 - s)·V_r Λ_r V_rᴴ + s·mean(Λ)·I."""
        kept = (1 - shrinkage) * values[-rank:].clamp_min(0.0)
        self.factor = (vectors[:, -rank:] * kept.sqrt()).to(torch.complex64)
        self.floor = (shrinkage * values.mean()).float()

    def infer(self, measured: Measurement) -> Estimate:
        phi, factor = measured.phi, self.factor.to(measured.y.dtype)
        seen = phi.apply_block(factor[None])
        floor = self.floor.to(measured.y.real.dtype)
        covariance = seen @ seen.mH + floor * phi.gram()
        weights = whitened(covariance, measured)
        signal = (weights[:, None, :] @ seen.conj())[:, 0] @ factor.mT + floor * phi.adjoint(weights)
        return Estimate(signal)

    def configuration(self) -> dict[str, Json]:
        return {"signal_length": self.signal_length, "rank": self.factor.shape[1]}

    @classmethod
    def from_configuration(cls, configuration: dict[str, Json]) -> Self:
        return cls(cast(int, configuration["signal_length"]), cast(int, configuration["rank"]))


def whitened(covariance: Tensor, measured: Measurement) -> Tensor:
    """(C + σ²I)⁻¹y. covariance: C of the noiseless y, [batch, m, m] -> [batch, m]."""
    identity = torch.eye(covariance.shape[-1], dtype=covariance.dtype, device=covariance.device)
    total = covariance + measured.noise_var[:, None, None] * identity
    return solve_hermitian(total, measured.y[..., None])[..., 0]


def sample_covariance(problem: ChannelProblem, plan: Fit) -> Tensor:
    """E hhᴴ over the training split, drawn block by block: [n, n], complex128."""
    count = problem.scenario.data.train
    total = torch.zeros(problem.signal_length, problem.signal_length, dtype=torch.complex128)
    for first in range(0, count, _BLOCK):
        size = min(_BLOCK, count - first)
        signal = problem.channels(size, seed=plan.seed, split="train", start=first)
        total += (signal.mT @ signal.conj()).to(total.dtype)
        plan.report((first + size) / count, "covariance")
    return total / count
