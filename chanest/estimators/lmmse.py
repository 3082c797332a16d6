"""LMMSE with one covariance for the whole ensemble."""

from itertools import product
from typing import Self

import torch
from torch import Tensor, nn

from chanest.arrays import Array
from chanest.bases.estimator import SNRS_DB, GaussianEstimator, validation_draws
from chanest.bases.site import learn_site, validated
from chanest.covariances.columns import MainDirections
from chanest.covariances.families import LagComponents
from chanest.covariances.modes import ModeCovariance, SeparableCovariance, check_modes, delay_modes
from chanest.fit import Fit
from chanest.problem import ChannelProblem
from chanest.recordings import Recordings
from vlista_core.estimate import Measurement
from vlista_core.gaussian import Covariance, condition
from vlista_core.tensorfile import Json

_BLOCK = 2000
_FEWEST_WIDEBAND, _MODE_SAMPLES = 4000, 2000
"""Channels of many subcarriers that show the covariance of each, at the least, and those that show their delays."""
_CHUNK_ENTRIES = 2**23
_SCORED_ENTRIES = 2**16
_FAVOUR_DB = 0.02
"""What a Toeplitz covariance may be behind and still be taken: it is far smaller and faster."""
_VALIDATED = 500
_RANKS = (32, 64, 128, 256, 512)
_SHRINKAGES = (0.0, 1e-3, 1e-2)


class LMMSE(GaussianEstimator):
    """ĥ = RΦᴴ(ΦRΦᴴ + σ²I)⁻¹y with R, the covariance of the training channels.

    R is V_rΛ_rV_rᴴ + floor·I with the main eigenvectors of the sample covariance or, where the arrays are uniform with one
    polarisation, its averages along the diagonals, "rank 0". Rank and floor (the shrinkage) are chosen on validation draws.
    """

    name = "lmmse"
    summary = "LMMSE with the covariance of the whole ensemble"
    exported_as = ("pt2",)
    needs_fit = True
    half_precision = True
    learns_from_pilots = True
    longest = 4096
    per_subcarrier = True

    def __init__(
        self, rx: Array, tx: Array, *, signal_length: int, rank: int, subcarriers: int = 1, modes: int = 0
    ) -> None:
        """rank: eigenvectors that are kept; 0 for a Toeplitz covariance. modes: of the delay, 0 for one subcarrier."""
        super().__init__(signal_length)
        check_modes(modes, subcarriers)
        self.forms_product = rank > 0
        self.antennas = signal_length // subcarriers
        self.modes: Tensor | None
        self.powers: Tensor | None
        self.register_buffer("modes", torch.zeros(subcarriers, modes, dtype=torch.complex64) if modes else None)
        self.register_buffer("powers", torch.ones(modes) if modes else None)
        self.factor: Tensor = nn.Buffer(torch.zeros(self.antennas, rank, dtype=torch.complex64))
        self.floor: Tensor = nn.Buffer(torch.zeros(()))
        self.toeplitz = LagComponents(rx, tx, 1) if rank == 0 else None

    @classmethod
    def build(cls, problem: ChannelProblem) -> Self:
        length, subcarriers = problem.signal_length, problem.subcarriers
        uniform = all(len(array.slants) == 1 for array in problem.arrays)
        modes = 0 if subcarriers == 1 else 1
        return cls(
            *problem.arrays, signal_length=length, rank=0 if uniform else 1, subcarriers=subcarriers, modes=modes
        )

    def fit(self, problem: ChannelProblem, plan: Fit) -> dict[str, Json]:
        covariance = sample_covariance(problem, plan)
        if self.modes is not None:
            self.modes, self.powers = delay_modes(problem, _MODE_SAMPLES, seed=plan.seed)
            self.reconfigure(modes=self.modes.shape[1])
        count = max(32, min(200, _SCORED_ENTRIES // self.antennas))
        draws = validation_draws(problem, plan, count)

        def score() -> float:
            return sum(self.nmse_db(batch) for batch in draws) / len(draws)

        tried: dict[tuple[int, float], float] = {}
        if self.toeplitz is not None:
            self.toeplitz.estimate_from(0, covariance.to(torch.complex64))
            tried[0, 0.0] = score() - _FAVOUR_DB
        kept, self.toeplitz = self.toeplitz, None
        values, vectors = torch.linalg.eigh(covariance)
        for rank, shrinkage in product((rank for rank in _RANKS if rank <= self.antennas), _SHRINKAGES):
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

    def fit_from_pilots(self, recordings: Recordings, plan: Fit) -> dict[str, Json]:
        """A Toeplitz covariance, by the powers of directions that make the recordings most probable."""
        site = learn_site(recordings, 1, plan)
        self.toeplitz = LagComponents(recordings.rx, recordings.tx, 1)
        self.toeplitz.tables = site.family.tables()

        def evidence(measured: Measurement) -> Tensor:
            return condition(self.prior(measured), measured).log_evidence

        facts: dict[str, Json] = {"covariance": "toeplitz", "rank": 0, **site.facts}
        return {**facts, **validated(recordings, evidence, plan, _VALIDATED)}

    def _set(self, values: Tensor, vectors: Tensor, rank: int, shrinkage: float) -> None:
        """R = (1 - s)·V_r Λ_r V_rᴴ + s·mean(Λ)·I."""
        main = slice(len(values) - rank, None)
        kept = (1 - shrinkage) * values[main].clamp_min(0.0)
        self.factor = (vectors[:, main] * kept.sqrt()).to(torch.complex64)
        self.floor = (shrinkage * values.mean()).float()

    def directions(self) -> Tensor:
        """U with UUᴴ the covariance, of one subcarrier where there are many: [n, r]."""
        if self.toeplitz is None:
            return self.factor
        values, vectors = torch.linalg.eigh(self.space().materialize()[0])
        directions: Tensor = vectors * values.clamp_min(0.0).sqrt()
        return directions

    def delay_modes(self) -> Tensor:
        """The delay modes: [S, D]."""
        if self.modes is None:
            raise ValueError("there are no delay modes of one subcarrier")
        return self.modes

    def chunk(self, measured: Measurement) -> int:
        block, _ = measured.phi.blocks()
        modes = 1 if self.powers is None else len(self.powers)
        return _CHUNK_ENTRIES // (block.shape[0] * self.antennas * modes)

    def covariance(self) -> Covariance:
        """R."""
        if self.modes is None or self.powers is None:
            return self.space()
        return ModeCovariance(self.modes[None], SeparableCovariance(self.powers[None], self.space()))

    def space(self) -> Covariance:
        """R₁, of one subcarrier."""
        if self.toeplitz is not None:
            return self.toeplitz.covariances()
        return MainDirections(self.factor[None], self.floor.to(self.factor.dtype)[None])

    def prior(self, measured: Measurement) -> Covariance:
        return self.covariance().cast(measured.y.dtype)


def sample_covariance(problem: ChannelProblem, plan: Fit) -> Tensor:
    """E hhᴴ of a subcarrier over the training split, drawn block by block: [n, n], complex128."""
    train, subcarriers = problem.scenario.data.train, problem.subcarriers
    count = min(train, max(_FEWEST_WIDEBAND, train // subcarriers))
    length = problem.signal_length // subcarriers
    total = torch.zeros(length, length, dtype=torch.complex128)
    for block in plan.blocks(count, max(1, _BLOCK // subcarriers), "covariance"):
        signal = problem.channels(len(block), seed=plan.seed, split="train", start=block.start).reshape(-1, length)
        total += (signal.mT @ signal.conj()).to(total.dtype)
    return total / (count * subcarriers)
