"""LMMSE with one covariance for the whole ensemble."""

from itertools import product
from typing import Self

import torch
from torch import Tensor, nn

from chanest.arrays import Array
from chanest.bases.estimator import SNRS_DB, GaussianEstimator, validation_draws
from chanest.covariances.columns import MainDirections
from chanest.covariances.families import LagComponents
from chanest.covariances.lags import has_lags
from chanest.fit import Fit
from chanest.problem import ChannelProblem
from vlista_core.estimate import Measurement
from vlista_core.gaussian import Covariance
from vlista_core.tensorfile import Json

_BLOCK = 2000
_CHUNK_ENTRIES = 2**23
_SCORED_ENTRIES = 2**16
_FAVOUR_DB = 0.02
"""What a Toeplitz covariance may be behind and still be taken: it is far smaller and faster."""
_RANKS = (32, 64, 128, 256, 512)
_SHRINKAGES = (0.0, 1e-3, 1e-2)


class LMMSE(GaussianEstimator):
    """ĥ = RΦᴴ(ΦRΦᴴ + σ²I)⁻¹y with R, the covariance of the training channels.

    R is V_rΛ_rV_rᴴ + floor·I with the main eigenvectors of the sample covariance or, where the arrays are uniform with one
    polarisation, its averages along the diagonals, "rank 0". Rank and floor (the shrinkage) are chosen on validation draws.
    """

    name = "lmmse"
    summary = "LMMSE with the covariance of the whole ensemble"
    needs_fit = True
    longest = 4096

    def __init__(self, rx: Array, tx: Array, *, signal_length: int, rank: int) -> None:
        """rank: eigenvectors that are kept; 0 for a Toeplitz covariance."""
        super().__init__(signal_length)
        self.forms_product = rank > 0
        self.factor: Tensor = nn.Buffer(torch.zeros(signal_length, rank, dtype=torch.complex64))
        self.floor: Tensor = nn.Buffer(torch.zeros(()))
        self.toeplitz = LagComponents(rx, tx, 1) if rank == 0 else None

    @classmethod
    def build(cls, problem: ChannelProblem) -> Self:
        length = problem.signal_length
        return cls(*problem.arrays, signal_length=length, rank=0 if has_lags(problem) else 1)

    def fit(self, problem: ChannelProblem, plan: Fit) -> dict[str, Json]:
        covariance = sample_covariance(problem, plan)
        count = max(32, min(200, _SCORED_ENTRIES // self.signal_length))
        draws = validation_draws(problem, plan, count)

        def score() -> float:
            return sum(self.nmse_db(batch) for batch in draws) / len(draws)

        tried: dict[tuple[int, float], float] = {}
        if self.toeplitz is not None:
            self.toeplitz.estimate_from(0, covariance.to(torch.complex64))
            tried[0, 0.0] = score() - _FAVOUR_DB
        kept, self.toeplitz = self.toeplitz, None
        values, vectors = torch.linalg.eigh(covariance)
        for rank, shrinkage in product((rank for rank in _RANKS if rank <= self.signal_length), _SHRINKAGES):
            self._set(values, vectors, rank, shrinkage)
            tried[rank, shrinkage] = score()
        rank, shrinkage = min(tried, key=lambda choice: (tried[choice], choice))
        self._set(values, vectors, rank, shrinkage)
        if rank == 0:
            self.toeplitz = kept
        self.forms_product = rank > 0
        self.reconfigure(rank=rank)
        kind = "toeplitz" if rank == 0 else "eigenvectors"
        facts: dict[str, Json] = {"covariance": kind, "rank": rank, "shrinkage": shrinkage}
        return {**facts, "validation_nmse_db": tried[rank, shrinkage], "snr_db": list(SNRS_DB)}

    def _set(self, values: Tensor, vectors: Tensor, rank: int, shrinkage: float) -> None:
        """R = (1 - s)·V_r Λ_r V_rᴴ + s·mean(Λ)·I."""
        main = slice(len(values) - rank, None)
        kept = (1 - shrinkage) * values[main].clamp_min(0.0)
        self.factor = (vectors[:, main] * kept.sqrt()).to(torch.complex64)
        self.floor = (shrinkage * values.mean()).float()

    def directions(self) -> Tensor:
        """U with UUᴴ the covariance: [n, r]."""
        if self.toeplitz is None:
            return self.factor
        values, vectors = torch.linalg.eigh(self.covariance().materialize()[0])
        directions: Tensor = vectors * values.clamp_min(0.0).sqrt()
        return directions

    def chunk(self, measured: Measurement) -> int:
        return _CHUNK_ENTRIES // (measured.phi.shape[0] * self.signal_length)

    def covariance(self) -> Covariance:
        """R."""
        if self.toeplitz is not None:
            return self.toeplitz.covariances()
        return MainDirections(self.factor[None], self.floor.to(self.factor.dtype)[None])

    def prior(self, measured: Measurement) -> Covariance:
        return self.covariance().cast(measured.y.dtype)


def sample_covariance(problem: ChannelProblem, plan: Fit) -> Tensor:
    """E hhᴴ over the training split, drawn block by block: [n, n], complex128."""
    count = problem.scenario.data.train
    total = torch.zeros(problem.signal_length, problem.signal_length, dtype=torch.complex128)
    for block in plan.blocks(count, _BLOCK, "covariance"):
        signal = problem.channels(len(block), seed=plan.seed, split="train", start=block.start)
        total += (signal.mT @ signal.conj()).to(total.dtype)
    return total / count
