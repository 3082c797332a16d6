"""Slot LMMSE: one exact step over time, delay and antennas together, for pilots anywhere on a resource grid.

Interpolation along one axis after the other, as receivers do it, forgets what the axes tell of each other: clusters have a
delay, a Doppler shift and directions. Here R is the covariance of all of it, in the few modes of time and of delay that carry
power, and what lies between pilots comes out of the same step with its variance. With one snapshot and pilots on some
subcarriers it is the joint estimate over delay and angle.
"""

from typing import Self

import torch
from torch import Tensor, nn

from chanest.bases.estimator import SNRS_DB, GaussianEstimator, validation_draws
from chanest.covariances.modes import check_modes
from chanest.covariances.slots import SlotColumns, SlotCovariance, in_slot_modes
from chanest.fit import Fit
from chanest.problem import ChannelProblem
from vlista_core.estimate import Measurement
from vlista_core.tensorfile import Json

_OUTSIDE = 1e-5
"""Share of the power of the channels that may lie outside the modes of an axis, and in columns that are left out."""
_MODE_SAMPLES, _PER_ENTRY, _FEWEST = 400, 12, 2000
"""Slots that show the modes; slots that show the covariance, for each entry of z, and at the least."""
_LONGEST = 4096
_BLOCK_ENTRIES, _CHUNK_ENTRIES, _SCORED_ENTRIES = 2**23, 2**25, 2**20
_SHARES = (0.0, 0.03, 0.1, 0.3, 1.0)
"""Of the separable covariance in R, from which one is chosen."""


class SlotLMMSE(GaussianEstimator):
    """ĥ = RΦᴴ(ΦRΦᴴ + σ²I)⁻¹y with R = (1 - s)·E zzᴴ + s·(Λ_t ⊗ Λ_f ⊗ R₁), in modes of time and of delay.

    The share s of the separable covariance is chosen on validation draws; with s = 1 the axes know nothing of each other.
    """

    name = "slot-lmmse"
    summary = "LMMSE over time, delay and antennas together, for pilots anywhere on a resource grid"
    needs_fit = True
    half_precision = True
    slots = True

    def __init__(self, *, snapshots: int, subcarriers: int, antennas: int, times: int, delays: int, rank: int) -> None:
        """antennas: N, transmit times receive; times, delays: modes of each axis; rank: columns of R."""
        super().__init__(snapshots * subcarriers * antennas)
        check_modes(delays, subcarriers)
        self.time: Tensor = nn.Buffer(torch.zeros(snapshots, times, dtype=torch.complex64))
        self.delay: Tensor = nn.Buffer(torch.zeros(subcarriers, delays, dtype=torch.complex64))
        self.factor: Tensor = nn.Buffer(torch.zeros(times * delays * antennas, rank, dtype=torch.complex64))

    @classmethod
    def build(cls, problem: ChannelProblem) -> Self:
        antennas = problem.signal_length // (problem.snapshots * problem.subcarriers)
        return cls(
            snapshots=problem.snapshots, subcarriers=problem.subcarriers, antennas=antennas, times=1, delays=1, rank=1
        )

    def chunk(self, measured: Measurement) -> int | None:
        if measured.phi.batch is None:
            return None
        return max(1, _CHUNK_ENTRIES // (measured.phi.shape[0] * self.factor.shape[1]))

    def spread_chunk(self, measured: Measurement) -> int | None:
        return self.chunk(measured)

    def prior(self, measured: Measurement) -> SlotCovariance:
        covariance = SlotCovariance(SlotColumns(self.time, self.delay, self.factor))
        return covariance.cast(measured.y.dtype)

    def fit(self, problem: ChannelProblem, plan: Fit) -> dict[str, Json]:
        self.time, self.delay = self._modes(problem, plan)
        times, delays = self.time.shape[1], self.delay.shape[1]
        antennas = problem.signal_length // (problem.snapshots * problem.subcarriers)
        entries = times * delays * antennas
        if entries > _LONGEST:
            raise ValueError(
                f"slot-lmmse works with matrices of at most {_LONGEST} x {_LONGEST} entries; {problem.scenario.name} has "
                f"{times} modes of time, {delays} of delay and {antennas} pairs of antennas, {entries} in all"
            )
        joint, count = self._covariance(problem, plan, entries)
        separable = _separable(joint, times, delays)
        scored = max(16, min(200, _SCORED_ENTRIES // problem.signal_length))
        draws = validation_draws(problem, plan, scored)
        tried: dict[float, float] = {}
        for share in _SHARES:
            self.factor = _columns((1 - share) * joint + share * separable)
            tried[share] = sum(self.nmse_db(batch) for batch in draws) / len(draws)
        share = min(tried, key=lambda each: tried[each])
        self.factor = _columns((1 - share) * joint + share * separable)
        self.reconfigure(times=times, delays=delays, rank=self.factor.shape[1])
        facts: dict[str, Json] = {"times": times, "delays": delays, "rank": self.factor.shape[1], "slots": count}
        separate = {"separable_share": share, "validation_nmse_db_separable": tried[1.0]}
        return {**facts, **separate, "validation_nmse_db": tried[share], "snr_db": list(SNRS_DB)}

    def _modes(self, problem: ChannelProblem, plan: Fit) -> tuple[Tensor, Tensor]:
        """U_t and U_f, the main directions of the snapshots and of the subcarriers over training channels."""
        snapshots, subcarriers = problem.snapshots, problem.subcarriers
        time = torch.zeros(snapshots, snapshots, dtype=torch.complex128)
        delay = torch.zeros(subcarriers, subcarriers, dtype=torch.complex128)
        for block in plan.blocks(_MODE_SAMPLES, self._block(problem), "modes"):
            h = problem.channels(len(block), seed=plan.seed, split="train", start=block.start)
            grid = h.reshape(len(block), snapshots, subcarriers, -1)
            along_time, along_delay = grid.transpose(0, 1).flatten(1), grid.transpose(0, 2).flatten(1)
            time += along_time @ along_time.mH
            delay += along_delay @ along_delay.mH
        return _main_directions(time), _main_directions(delay)

    def _covariance(self, problem: ChannelProblem, plan: Fit, entries: int) -> tuple[Tensor, int]:
        """E zzᴴ over training slots, complex128, and over how many."""
        count = min(problem.scenario.data.train, max(_FEWEST, _PER_ENTRY * entries))
        if plan.steps is not None:
            count = min(count, plan.steps * _FEWEST)
        total = torch.zeros(entries, entries, dtype=torch.complex128)
        for block in plan.blocks(count, self._block(problem), "covariance"):
            h = problem.channels(len(block), seed=plan.seed, split="train", start=block.start)
            z = in_slot_modes(h, self.time, self.delay)
            total += z.mT @ z.conj()
        return total / count, count

    def _block(self, problem: ChannelProblem) -> int:
        return max(1, _BLOCK_ENTRIES // problem.signal_length)


def _main_directions(total: Tensor) -> Tensor:
    """Orthonormal columns that hold all power but `_OUTSIDE`, the strongest first: [size, modes], complex64."""
    values, vectors = torch.linalg.eigh(total)
    values, vectors = values.flip(0).clamp_min(0.0), vectors.flip(1)
    outside = 1.0 - values.cumsum(0) / values.sum()
    main: Tensor = vectors[:, : int((outside > _OUTSIDE).sum()) + 1]
    return main.to(torch.complex64)


def _separable(joint: Tensor, times: int, delays: int) -> Tensor:
    """Λ_t ⊗ Λ_f ⊗ R₁ of the same power along each axis."""
    blocks = joint.unflatten(1, (times, delays, -1)).unflatten(0, (times, delays, -1))
    time = torch.einsum("tsntsn->t", blocks).real
    delay = torch.einsum("tsntsn->s", blocks).real
    space = torch.einsum("tsntsm->nm", blocks)
    powers = (time / time.sum())[:, None] * (delay / delay.sum())
    return torch.kron(torch.diag(powers.flatten()).to(space), space)


def _columns(covariance: Tensor) -> Tensor:
    """F with FFᴴ the covariance, without its weakest directions: [entries, rank], complex64."""
    values, vectors = torch.linalg.eigh(covariance)
    values, vectors = values.flip(0).clamp_min(0.0), vectors.flip(1)
    kept = int((1.0 - values.cumsum(0) / values.sum() > _OUTSIDE).sum()) + 1
    main: Tensor = vectors[:, :kept] * values[:kept].sqrt()
    return main.to(torch.complex64)
