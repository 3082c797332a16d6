"""Linear estimators: least squares, and LMMSE with one covariance for the whole ensemble."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, cast

import torch
from torch import Tensor

from chanest.arrays import Array
from chanest.estimators.base import ChannelEstimator, Fit, array_configuration, array_from
from chanest.estimators.mixtures import ToeplitzComponents
from chanest.estimators.spread import gaussian
from vlista_core.checkpoint import register_model
from vlista_core.estimate import Estimate, Measurement
from vlista_core.linalg import cholesky, solve_hermitian
from vlista_core.linops import LinearMap
from vlista_core.metrics import nmse_db
from vlista_core.tensorfile import Json

if TYPE_CHECKING:
    from chanest.problem import ChannelProblem

_BLOCK = 2000
_CHUNK_ENTRIES = 2**23
_LARGEST = 4096
_SCORED_ENTRIES = 2**16
_FAVOUR_DB = 0.02
"""What a Toeplitz covariance may be behind and still be taken: it is far smaller and faster."""
_RANKS = (32, 64, 128, 256, 512)
_SHRINKAGES = (0.0, 1e-3, 1e-2)
_SNRS_DB = (0.0, 10.0, 20.0)


@register_model
class LS(ChannelEstimator):
    """ĥ = Φᴴ(ΦΦᴴ)⁻¹y, of least norm where there are fewer measurements than unknowns."""

    name = "ls"
    summary = "least squares, of least norm where m < n"
    forms_product = True

    @classmethod
    def build(cls, problem: ChannelProblem) -> Self:
        return cls(problem.signal_length)

    def infer(self, measured: Measurement) -> Estimate:
        gram = measured.phi.gram()
        return Estimate(measured.phi.adjoint(solve_hermitian(gram, measured.y[..., None])[..., 0]))

    def spread(self, measured: Measurement, found: Estimate, probes: LinearMap | None) -> Tensor | None:
        """σ²·diag(P(ΦᴴΦ)⁻¹Pᴴ); with fewer measurements than unknowns nothing bounds the errors, and it is None."""
        m, n = measured.phi.shape
        if m < n:
            return None
        phi = measured.phi.materialize()
        rows = torch.eye(n, dtype=phi.dtype, device=phi.device) if probes is None else probes.materialize()
        white = torch.linalg.solve_triangular(cholesky(phi.mH @ phi), rows.mH, upper=False)
        return measured.noise_var[:, None] * torch.view_as_real(white).square().sum((-3, -1))

    def configuration(self) -> dict[str, Json]:
        return {"signal_length": self.signal_length}

    @classmethod
    def from_configuration(cls, configuration: dict[str, Json]) -> Self:
        return cls(cast(int, configuration["signal_length"]))


@register_model
class LMMSE(ChannelEstimator):
    """ĥ = RΦᴴ(ΦRΦᴴ + σ²I)⁻¹y with R, the covariance of the training channels.

    R is V_rΛ_rV_rᴴ + floor·I with the main eigenvectors of the sample covariance or, where the arrays are uniform with one
    polarisation, its averages along the diagonals, "rank 0". Rank and floor (the shrinkage) are chosen on validation draws.
    """

    name = "lmmse"
    summary = "LMMSE with the covariance of the whole ensemble"
    needs_fit = True

    def __init__(self, rx: Array, tx: Array, *, signal_length: int, rank: int) -> None:
        """rank: eigenvectors that are kept; 0 for a Toeplitz covariance."""
        super().__init__(signal_length)
        self.arrays = (rx, tx)
        self.factor: Tensor
        self.floor: Tensor
        self.register_buffer("factor", torch.zeros(signal_length, rank, dtype=torch.complex64))
        self.register_buffer("floor", torch.zeros(()))
        self.toeplitz = ToeplitzComponents(rx, tx, 1) if rank == 0 else None

    @classmethod
    def build(cls, problem: ChannelProblem) -> Self:
        length = problem.signal_length
        return cls(*problem.arrays, signal_length=length, rank=0 if is_toeplitz(problem) else 1)

    def fit(self, problem: ChannelProblem, plan: Fit) -> dict[str, Json]:
        if self.signal_length > _LARGEST:
            raise ValueError(
                f"lmmse holds a covariance of all {self.signal_length} entries of vec(H); at most {_LARGEST} are allowed"
            )
        covariance = sample_covariance(problem, plan)
        count = max(32, min(200, _SCORED_ENTRIES // self.signal_length))
        draws = [problem.sample(count, seed=plan.seed, split="validation", snr_db=snr) for snr in _SNRS_DB]

        def score() -> float:
            return sum(nmse_db(self.estimate(b.y, b.phi, b.noise_var).signal, b.signal) for b in draws) / len(draws)

        best = (float("inf"), 0, 0.0)
        if self.toeplitz is not None:
            self.toeplitz.estimate_from(0, covariance.to(torch.complex64))
            best = (score() - _FAVOUR_DB, 0, 0.0)
        kept, self.toeplitz = self.toeplitz, None
        values, vectors = torch.linalg.eigh(covariance)
        for rank in (rank for rank in _RANKS if rank <= self.signal_length):
            for shrinkage in _SHRINKAGES:
                self._set(values, vectors, rank, shrinkage)
                best = min(best, (score(), rank, shrinkage))
        if best[1] == 0:
            self.toeplitz = kept
            self.factor, self.floor = self.factor[:, :0], torch.zeros(())
        else:
            self._set(values, vectors, *best[1:])
        kind = "toeplitz" if best[1] == 0 else "eigenvectors"
        facts: dict[str, Json] = {"covariance": kind, "rank": best[1], "shrinkage": best[2]}
        return {**facts, "validation_nmse_db": best[0], "snr_db": list(_SNRS_DB)}

    def _set(self, values: Tensor, vectors: Tensor, rank: int, shrinkage: float) -> None:
        """R = (1 - s)·V_r Λ_r V_rᴴ + s·mean(Λ)·I."""
        kept = (1 - shrinkage) * values[-rank:].clamp_min(0.0)
        self.factor = (vectors[:, -rank:] * kept.sqrt()).to(torch.complex64)
        self.floor = (shrinkage * values.mean()).float()

    def directions(self) -> Tensor:
        """U with UUᴴ the covariance: [n, r]."""
        if self.toeplitz is None:
            return self.factor
        values, vectors = torch.linalg.eigh(self.covariance())
        directions: Tensor = vectors * values.clamp_min(0.0).sqrt()
        return directions

    def chunk(self, measured: Measurement) -> int:
        return _CHUNK_ENTRIES // (measured.phi.shape[0] * self.signal_length)

    def infer(self, measured: Measurement) -> Estimate:
        phi = measured.phi
        if self.toeplitz is not None:
            weights = whitened(self.toeplitz.seen(0, self.toeplitz.view(phi)), measured)
            return Estimate(self.toeplitz.times(0, phi.adjoint(weights)))
        factor = self.factor.to(measured.y.dtype)
        seen = phi.apply_block(factor[None])
        floor = self.floor.to(measured.y.real.dtype)
        weights = whitened(seen @ seen.mH + floor * phi.gram(), measured)
        signal = (weights[:, None, :] @ seen.conj())[:, 0] @ factor.mT + floor * phi.adjoint(weights)
        return Estimate(signal)

    def spread(self, measured: Measurement, found: Estimate, probes: LinearMap | None) -> Tensor:
        return gaussian(self.covariance().to(measured.y.dtype)[None], measured, probes)[1]

    def covariance(self) -> Tensor:
        """R: [n, n]."""
        if self.toeplitz is not None:
            return self.toeplitz.matrix(0)
        return self.factor @ self.factor.mH + self.floor * torch.eye(self.signal_length, device=self.factor.device)

    def configuration(self) -> dict[str, Json]:
        rx, tx = (array_configuration(array) for array in self.arrays)
        return {"signal_length": self.signal_length, "rank": self.factor.shape[1], "rx": rx, "tx": tx}

    @classmethod
    def from_configuration(cls, configuration: dict[str, Json]) -> Self:
        rx, tx = array_from(configuration["rx"]), array_from(configuration["tx"])
        length, rank = (cast(int, configuration[name]) for name in ("signal_length", "rank"))
        return cls(rx, tx, signal_length=length, rank=rank)


def is_toeplitz(problem: ChannelProblem) -> bool:
    """Whether tables of lags hold the covariances of a problem: one subcarrier, one polarisation at both ends."""
    return problem.subcarriers == 1 and all(len(array.slants) == 1 for array in problem.arrays)


def whitened(covariance: Tensor, measured: Measurement) -> Tensor:
    """(C + σ²I)⁻¹y. covariance: C of the noiseless y, [batch or 1, m, m] -> [batch, m]."""
    return solve_hermitian(with_noise(covariance, measured.noise_var), measured.y[..., None])[..., 0]


def with_noise(covariance: Tensor, noise_var: Tensor) -> Tensor:
    """C + σ²I for each sample. covariance: [batch or 1, m, m], noise_var: [batch] -> [batch, m, m]."""
    total = covariance.expand(len(noise_var), -1, -1).clone()
    total.diagonal(dim1=1, dim2=2).add_(noise_var[:, None])
    return total


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
