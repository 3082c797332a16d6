"""The gate of `gated-lmmse`: from what y shows of a codebook's members to their weights, and how it learns."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from chanest.bases.chunks import in_chunks
from chanest.bases.draws import PooledDraws
from chanest.bases.site import SiteDraws, learn_site, validated
from chanest.fit import Clock, Fit
from chanest.networks.weighing import WeighingNetwork, descend, dropped
from chanest.problem import ChannelProblem
from chanest.recordings import Recordings
from vlista_core.estimate import Measurement
from vlista_core.gaussian import condition
from vlista_core.tensorfile import Json

if TYPE_CHECKING:
    from chanest.estimators.gated_lmmse import GatedLMMSE

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
_SITE, _FROM_SITE, _VALIDATED = 0.35, 60_000, 300
"""From pilots: share of the budget for the codebook, and channels that are drawn from it; recordings that validate."""


class Gate(WeighingNetwork):
    """Weights of the codebook's members from what is seen of them and of the sample."""

    def __init__(self, codes: int, hidden: int, generator: torch.Generator) -> None:
        super().__init__(KINDS * codes + SCALARS, hidden, codes, generator)

    def forward(self, features: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Logarithms of the weights: [batch, kinds·codes + scalars] -> [batch, codes].

        A generator drops inputs and hidden units at random, for training.
        """
        hidden = self.standardised(features)
        for place, layer in enumerate(self.layers):
            hidden = layer(dropped(nn.functional.gelu(hidden) if place else hidden, _DROP, generator))
        return hidden.log_softmax(1)


def fit_gate(estimator: "GatedLMMSE", problem: ChannelProblem, plan: Fit) -> dict[str, Json]:
    """Fit codebook and gate within the budget.

    The covariance of a training sample given its clusters is known from its rays. The gate learns the posterior over the
    members that are near it, by cross-entropy; no gradient passes through a solve.
    """
    clock, codebook = Clock(plan), estimator.codebook
    samples = max(_BLOCK, min(_LARGEST_CODEBOOK_SET, int(20 * plan.size)))
    codebook.fit(problem, samples, plan.telling(0.0, 0.1))
    pool, near = PooledDraws.with_rays(
        problem,
        clock,
        lambda rays: codebook.closeness(estimator.layout.of_rays(problem.source, rays)).half(),
        first=samples,
        until=_POOLING,
    )

    def draws(number: int) -> tuple[Measurement, Tensor]:
        index, batch = pool.pairs(_BLOCK, seed=plan.seed, start=_BLOCK * number)
        return Measurement(batch.y, batch.phi, batch.noise_var), index

    learned = _learn(estimator, draws, near, clock)
    facts: dict[str, Json] = {"codebook_samples": samples, "channels": len(near), **learned}
    return {**facts, **estimator.validation(problem, plan, 300)}


def fit_gate_from_pilots(estimator: "GatedLMMSE", recordings: Recordings, plan: Fit) -> dict[str, Json]:
    """Fit codebook and gate within the budget, from recordings.

    The members are the classes that make the recordings most probable. The gate then learns as it does from channels, from
    those that the classes draw: which class a channel is of is known.
    """
    clock, codebook = Clock(plan), estimator.codebook
    site = learn_site(recordings, len(codebook.prior), plan.part(_SITE))
    tables = site.family.tables()
    estimator.resize(len(tables))
    estimator.reconfigure(codes=len(tables))
    codebook.take(tables, site.family.log_prior.exp())
    pool = SiteDraws(site, _FROM_SITE, plan.seed)

    def draws(number: int) -> tuple[Measurement, Tensor]:
        index, _, measured = pool.pairs(_BLOCK, seed=plan.seed, number=number)
        return measured, pool.classes[index]

    learned = _learn(estimator, draws, codebook.closeness(tables).half(), clock)

    def evidence(measured: Measurement) -> Tensor:
        return condition(codebook.mixture(estimator.log_weights(measured).exp()), measured).log_evidence

    facts: dict[str, Json] = {**site.facts, "channels": len(pool.channels), **learned}
    return {**facts, **validated(recordings, evidence, plan, _VALIDATED)}


def _learn(
    estimator: "GatedLMMSE", draws: Callable[[int], tuple[Measurement, Tensor]], near: Tensor, clock: Clock
) -> dict[str, Json]:
    """Train the gate on draws until the budget is spent.

    draws: measurements of a block and, for each of them, its row of `near`, [rows, codes], which says how near the members are.
    """
    gate, plan = estimator.gate, clock.plan

    @torch.no_grad()
    def seen_of(number: int) -> tuple[Tensor, Tensor]:
        """What the gate sees of a block of draws, in half precision, and their rows."""
        measured, row = draws(number)
        chunks = in_chunks(measured, estimator.chunk(measured))
        return torch.cat([estimator.seen_by_gate(some) for some, _ in chunks]).half(), row

    seen, rows = clock.gather(seen_of, "draws", until=_COLLECTING, most=_MOST_DRAWS)
    generator = torch.Generator().manual_seed(plan.seed)

    def cross_entropy() -> Tensor:
        index = torch.randint(len(seen), (_BATCH,), generator=generator)
        target = (near[rows[index]].float() / _SMOOTHING).softmax(1)
        proposed: Tensor = gate(seen[index].float(), generator)
        return -(target * proposed).sum(1).mean()

    gate.standardise(seen[:_STANDARD].float())
    optimizer = torch.optim.AdamW(gate.parameters(), _RATE, weight_decay=_DECAY)
    most = max(2, _EPOCHS * len(seen) // _BATCH)
    steps = descend(optimizer, cross_entropy, clock, "gate, cross-entropy", most=most)
    return {"draws": len(seen), "steps": steps}
