"""The gate of `cluster-lmmse`: from what y shows of the members of two codebooks to the weights of both, and how it learns."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from chanest.bases.chunks import in_chunks
from chanest.bases.draws import PooledDraws
from chanest.covariances.modes import ModesMap, delay_modes
from chanest.covariances.parts import Parts, SideCodebook
from chanest.covariances.profiles import DelayProfiles
from chanest.fit import Clock, Fit
from chanest.frontend import BeamformingMap
from chanest.networks.weighing import WeighingNetwork, descend, dropped
from chanest.problem import ChannelProblem
from vlista_core.estimate import Measurement
from vlista_core.tensorfile import Json

if TYPE_CHECKING:
    from chanest.estimators.cluster_lmmse import ClusterLMMSE

_KINDS, _SCALARS = 2, 2
"""Numbers that the gate sees of each member, and of the sample."""
_DROP = 0.1
_BATCH, _BLOCK, _DRAWN = 256, 250, 128
_RATE, _DECAY = 1e-3, 1e-2
_EPOCHS = 30
_SMOOTHING = 0.05
_POOLING, _COLLECTING = 0.25, 0.8
"""Shares of the budget after which there are enough channels, and enough draws from them."""
_MODE_SAMPLES, _LEAST_SAMPLES, _MOST_SAMPLES = 1000, 500, 4000
_MOST_ENTRIES = 2**26
"""Of the channels of the pool, in delay modes."""
_MOST_DRAWS, _STANDARD, _BEAMS = 200_000, 20_000, 2048
_VARIED_OUTSIDE = 1e-5
"""Share of the power outside of the delay modes of all samples where each has its own within them."""
_LEAST_COLUMN = 1e-5
"""Power of the weakest column of a D_p that is kept, of that of all parts."""


class SidesGate(WeighingNetwork):
    """Weights of the members of the transmit and of the receive codebook from what is seen of them and of the sample."""

    def __init__(self, transmit: int, receive: int, hidden: int, generator: torch.Generator) -> None:
        members = transmit + receive
        super().__init__(_KINDS * members + _SCALARS, hidden, members, generator)
        self.transmit = transmit

    def forward(self, features: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Logarithms of the weights, [batch, features] -> [batch, K_t] and [batch, K_r].

        A generator drops inputs and hidden units at random, for training.
        """
        hidden = self.standardised(features)
        for place, layer in enumerate(self.layers):
            hidden = layer(dropped(nn.functional.gelu(hidden) if place else hidden, _DROP, generator))
        return hidden[:, : self.transmit].log_softmax(1), hidden[:, self.transmit :].log_softmax(1)


def fit_sides(estimator: "ClusterLMMSE", problem: ChannelProblem, plan: Fit) -> dict[str, Json]:
    """Fit modes, codebooks and gate within the budget.

    What the clusters of a training sample have at both ends is known from its rays. The gate learns the posterior over the
    members that are near it, by cross-entropy; no gradient passes through a solve.
    """
    clock = Clock(plan)
    samples = max(_LEAST_SAMPLES, min(_MOST_SAMPLES, int(10 * plan.size)))
    _fit_codebooks(estimator, problem, samples, plan)
    pool, near_tx, near_rx = _pool(estimator, problem, clock, samples)

    @torch.no_grad()
    def draws(number: int) -> tuple[Tensor, Tensor]:
        """What the gate sees of draws from the pool, in half precision, and which channels they have."""
        index, batch = pool.pairs(_DRAWN, seed=plan.seed, start=_DRAWN * number)
        measured = Measurement(batch.y, batch.phi, batch.noise_var)
        chunks = in_chunks(measured, 8)
        return torch.cat([estimator.seen_by_gate(some) for some, _ in chunks]).half(), index

    seen, channel = clock.gather(draws, "draws", until=_COLLECTING, most=_MOST_DRAWS)
    gate, generator = estimator.gate, torch.Generator().manual_seed(plan.seed)

    def cross_entropy() -> Tensor:
        index = torch.randint(len(seen), (_BATCH,), generator=generator)
        total = torch.zeros(())
        for near, proposed in zip((near_tx, near_rx), gate(seen[index].float(), generator), strict=True):
            target = (near[channel[index]].float() / _SMOOTHING).softmax(1)
            total = total - (target * proposed).sum(1).mean()
        return total

    gate.standardise(seen[:_STANDARD].float())
    optimizer = torch.optim.AdamW(gate.parameters(), _RATE, weight_decay=_DECAY)
    most = max(2, _EPOCHS * len(seen) // _BATCH)
    steps = descend(optimizer, cross_entropy, clock, "gate, cross-entropy", most=most)
    facts: dict[str, Json] = {"codebook_samples": samples, "channels": len(near_tx), "draws": len(seen), "steps": steps}
    return {**facts, "delay_modes": estimator.modes.shape[1], **estimator.validation(problem, plan, 64)}


def _fit_codebooks(estimator: "ClusterLMMSE", problem: ChannelProblem, samples: int, plan: Fit) -> None:
    """Delay modes from channels, D_p and both codebooks from rays of the same training draws."""
    frequencies = problem.source.frequencies or (0.0, 1.0)
    blank = torch.zeros(problem.subcarriers, 1, dtype=problem.dtype)
    few = Parts.of_rays(problem.source, problem.rays(range(_BLOCK), seed=plan.seed, split="train"), blank)
    varied = DelayProfiles.learned(frequencies, few.delays, few.powers) is not None
    outside = {"most_outside": _VARIED_OUTSIDE} if varied else {}
    modes, _ = delay_modes(problem, min(samples, _MODE_SAMPLES), seed=plan.seed, **outside)
    found = []
    for block in plan.telling(0.0, 0.1).blocks(samples, _BLOCK, "clusters"):
        rays = problem.rays(block, seed=plan.seed, split="train")
        found.append(Parts.of_rays(problem.source, rays, modes))
    columns, tx, rx, delays, every = (
        torch.cat(each) for each in zip(*((p.columns, p.tx, p.rx, p.delays, p.powers) for p in found), strict=True)
    )
    estimator.modes, estimator.profiles = modes, DelayProfiles.learned(frequencies, delays, every) if varied else None
    parts, powers, spacing = every.shape[1], every.mean(0).float(), frequencies[1] - frequencies[0] if varied else 0.0
    estimator.columns = torch.zeros(parts, 0, modes.shape[1]).to(modes.dtype) if varied else _mean_columns(columns)
    for name, tables in (("tx", tx), ("rx", rx)):
        old: SideCodebook = getattr(estimator, name)
        codebook = SideCodebook(old.array, parts, len(old.prior))
        codebook.fit(tables, powers, plan.seed)
        setattr(estimator, name, codebook)
    estimator.reconfigure(modes=modes.shape[1], parts=parts, rank=estimator.columns.shape[1], spacing=spacing)


def _mean_columns(columns: Tensor) -> Tensor:
    """Columns whose outer products add up to E d_p d_pᴴ: [samples, parts, D] -> [parts, rank, D]."""
    each = columns.transpose(0, 1).to(torch.complex128)
    values, vectors = torch.linalg.eigh(each.mT @ each.conj() / each.shape[1])
    values = values.clamp_min(0.0)
    rank = max(1, int((values > _LEAST_COLUMN * values.sum()).sum(1).max()))
    main: Tensor = vectors[..., -rank:] * values[:, None, -rank:].sqrt()
    return main.mT.to(torch.complex64).contiguous()


def _pool(
    estimator: "ClusterLMMSE", problem: ChannelProblem, clock: Clock, first: int
) -> tuple[PooledDraws, Tensor, Tensor]:
    """Training channels in delay modes from number `first` on, and how near the members of both ends each is."""
    modes, seed = estimator.modes, clock.plan.seed
    back = ModesMap(modes, problem.signal_length // problem.subcarriers)

    def block(number: int) -> tuple[Tensor, Tensor, Tensor]:
        start = first + _BLOCK * number
        signal, rays = problem.channels_and_rays(range(start, start + _BLOCK), seed=seed, split="train")
        parts = Parts.of_rays(problem.source, rays, modes)
        return back.adjoint(signal), estimator.tx.closeness(parts.tx).half(), estimator.rx.closeness(parts.rx).half()

    most = _MOST_ENTRIES // back.shape[1]
    channels, near_tx, near_rx = clock.gather(block, "channels", until=_POOLING, most=most)
    beams = problem.beams(_BEAMS, seed=seed, split="train")
    if not isinstance(beams, BeamformingMap):
        raise ValueError(f"{problem.scenario.name} must measure all subcarriers alike, got a {type(beams).__name__}")
    return PooledDraws(problem, channels, beams.on_modes(modes.shape[1])), near_tx, near_rx
