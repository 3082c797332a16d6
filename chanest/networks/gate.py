"""The gate of `gated-lmmse`: from what y shows of a codebook's members to their weights, and how it learns."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from chanest.bases.draws import BEAMS, PooledDraws
from chanest.fit import Clock, Fit
from vlista_core.estimate import Measurement
from vlista_core.models.augmentation import initialise
from vlista_core.tensorfile import Json

if TYPE_CHECKING:
    from chanest.estimators.gated_lmmse import GatedLMMSE
    from chanest.problem import ChannelProblem

KINDS, SCALARS = 2, 2
"""Numbers that the gate sees of each member, and of the sample."""
_DROP = 0.1
_BATCH, _BLOCK = 256, 500
_RATE, _DECAY = 1e-3, 1e-2
_EPOCHS = 12
_SMOOTHING = 0.05
_POOLING, _COLLECTING = 0.35, 0.65
"""Shares of the budget after which there are enough channels, and enough draws from them."""
_MOST_DRAWS, _STANDARD = 600_000, 20_000
_LARGEST_CODEBOOK_SET = 20_000
_SNRS_DB = (0.0, 10.0, 20.0)


class Gate(nn.Module):
    """Weights of the codebook's members from what is seen of them and of the sample."""

    def __init__(self, codes: int, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        inputs = KINDS * codes + SCALARS
        self.centre: Tensor
        self.spread: Tensor
        self.register_buffer("centre", torch.zeros(inputs))
        self.register_buffer("spread", torch.ones(inputs))
        with torch.random.fork_rng(devices=[]):
            self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise((inputs, hidden, hidden, codes)))
        initialise(self, generator)

    def forward(self, features: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Logarithms of the weights: [batch, kinds·codes + scalars] -> [batch, codes].

        A generator drops inputs and hidden units at random, for training.
        """
        hidden = (features - self.centre) / self.spread
        for place, layer in enumerate(self.layers):
            if place:
                hidden = nn.functional.gelu(hidden)
            hidden = layer(_dropped(hidden, generator))
        return hidden.log_softmax(1)

    def standardise(self, features: Tensor) -> None:
        """Take centre and spread of the inputs from samples of them."""
        self.centre, self.spread = features.mean(0), features.std(0) + 1e-3


def gate_features(powers: list[Tensor]) -> Tensor:
    """What the gate sees, the logarithms of all. powers: [batch, any number] each."""
    return torch.cat([power.clamp_min(torch.finfo(power.dtype).tiny) for power in powers], 1).log()


def fit_gate(estimator: GatedLMMSE, problem: ChannelProblem, plan: Fit) -> dict[str, Json]:
    """Fit codebook and gate within the budget.

    The covariance of a training sample given its clusters is known from its rays. The gate learns the posterior over the
    members that are near it, by cross-entropy; no gradient passes through a solve.
    """
    clock = Clock(plan)
    samples = max(_BLOCK, min(_LARGEST_CODEBOOK_SET, int(20 * plan.size)))
    estimator.codebook.fit(
        problem, samples, seed=plan.seed, report=lambda share, words: plan.report(0.1 * share, words)
    )
    pool, near = _pool(estimator, problem, samples, clock)
    seen, channel = _collect(estimator, pool, clock)
    steps = _train(estimator.gate, seen, near, channel, clock)
    scores = estimator.validation_nmse_db(problem, _SNRS_DB, 300, plan.seed)
    facts: dict[str, Json] = {"codebook_samples": samples, "channels": len(near), "draws": len(seen), "steps": steps}
    return {**facts, "validation_snr_db": list(_SNRS_DB), "validation_nmse_db": scores}


def _pool(estimator: GatedLMMSE, problem: ChannelProblem, start: int, clock: Clock) -> tuple[PooledDraws, Tensor]:
    """Training channels and beams, and how close each member of the codebook is to each channel's covariance."""
    channels: list[Tensor] = []
    near: list[Tensor] = []
    beams = problem.sample(BEAMS, seed=clock.plan.seed, split="train").phi
    while not channels or clock.share() < _POOLING:
        first = start + _BLOCK * len(channels)
        signal, rays = problem.source.sample(_BLOCK, seed=clock.plan.seed, split="train", start=first)
        channels.append(signal.mT.reshape(_BLOCK, -1))
        near.append(estimator.codebook.closeness(estimator.layout.of_rays(problem.source, rays)).half())
        clock.tick()
        clock.report("channels")
    return PooledDraws(problem, torch.cat(channels), beams), torch.cat(near)


@torch.no_grad()
def _collect(estimator: GatedLMMSE, pool: PooledDraws, clock: Clock) -> tuple[Tensor, Tensor]:
    """What the gate sees of draws from the pool, in half precision, and which channels they have."""
    seen: list[Tensor] = []
    indices: list[Tensor] = []
    while not seen or (clock.share() < _COLLECTING and len(seen) * _BLOCK < _MOST_DRAWS):
        index, batch = pool.pairs(_BLOCK, seed=clock.plan.seed, start=_BLOCK * len(seen))
        measured = Measurement(batch.y, batch.phi, batch.noise_var)
        chunks = torch.split(torch.arange(_BLOCK), estimator.chunk(measured))
        seen.append(torch.cat([estimator.seen_by_gate(measured.select(some)) for some in chunks]).half())
        indices.append(index)
        clock.tick()
        clock.report("draws")
    return torch.cat(seen), torch.cat(indices)


def _train(gate: Gate, seen: Tensor, near: Tensor, channel: Tensor, clock: Clock) -> int:
    """AdamW with a cosine rate, for so many epochs or until the time is up; returns the number of steps.

    near: closeness of the members to the pool's channels, of which `channel` says the one of each draw in `seen`.
    """
    generator = torch.Generator().manual_seed(clock.plan.seed)
    gate.standardise(seen[:_STANDARD].float())
    optimizer = torch.optim.AdamW(gate.parameters(), _RATE, weight_decay=_DECAY)
    begin, planned = clock.share(), max(2, _EPOCHS * len(seen) // _BATCH)
    for step in range(planned):
        gone = (clock.share() - begin) / max(1.0 - begin, 1e-9)
        done = max(step / planned, min(1.0, gone))
        optimizer.param_groups[0]["lr"] = _RATE * (0.5 + 0.5 * math.cos(math.pi * done)) * min(1.0, (step + 1) / 100)
        index = torch.randint(len(seen), (_BATCH,), generator=generator)
        target = (near[channel[index]].float() / _SMOOTHING).softmax(1)
        loss = -(target * gate(seen[index].float(), generator)).sum(1).mean()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        clock.tick()
        if step % 50 == 0:
            clock.report(f"gate, cross-entropy {float(loss.detach()):.2f}")
        if gone > 1.0:
            return step + 1
    return planned


def _dropped(values: Tensor, generator: torch.Generator | None) -> Tensor:
    if generator is None:
        return values
    kept = torch.rand(values.shape, generator=generator, device=generator.device) >= _DROP
    return values * kept.to(values.device) / (1.0 - _DROP)
