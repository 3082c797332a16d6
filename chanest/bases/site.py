"""A site learned from its pilots alone: a mixture of covariances that explains the recordings, and channels drawn from it.

What needs channels to learn from gets those that the mixture draws, seen through the beams of recordings and at their noise.
"""

from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor

from chanest.covariances.evidence import SpectralFamily
from chanest.covariances.families import angular_cells
from chanest.fit import Clock, Fit
from chanest.frontend import BeamformingMap, FrontEnd
from chanest.recordings import Recordings
from vlista_core.draws import sample_generators
from vlista_core.estimate import Measurement
from vlista_core.linalg import cholesky
from vlista_core.tensorfile import Json

_PER_SECOND, _MOST_ENTRIES = 160, 2**26
"""Recordings that are used: for each second of the budget, and by what they hold."""
_FEWEST = 128
_LEAST_NOISE = 0.5
"""Share of the recordings, those of least noise, that classes are learned from: the class of a noisy one is a guess."""
_PER_CLASS = 30
"""Recordings of little noise for a class, in the mean; where there are fewer of them there are fewer classes."""
_MOST_MEASUREMENTS = 48
"""Of a recording, as its first pilots give them: twice the recordings with half of the pilots tell more, at half the price."""
_FIRST, _FIRST_PASSES = 1000, 12
"""Recordings and steps from which the covariance of all is learned."""
_PASSES = 4
"""Steps of the classes before recordings may change theirs."""
_CANDIDATES = 6
"""Classes that a recording may change to: those most like its own."""
_ROUNDS, _ROUNDS_ALONE = 6, 60
"""At the most, of classes and of one for all: powers of weak directions, which count at high SNR, are the last to settle."""
_FLOOR = 1e-4
"""Of the diagonal of a covariance that channels are drawn from."""


class Learned(NamedTuple):
    """A site and what it was learned from."""

    family: SpectralFamily
    recordings: Measurement
    facts: dict[str, Json]


def learn_site(recordings: Recordings, classes: int, plan: Fit) -> Learned:
    """At most so many classes of channels that explain recordings; with one, the covariance of all.

    The covariance of all comes first, by the powers of directions that make the recordings most probable. Classes begin as
    cells of the angular amplitudes of the estimates that it gives; then by turns their powers are improved and recordings go to
    the class under which they are most probable.
    """
    clock, every = Clock(plan), gathered(recordings, plan)
    clear = _first_pilots(every if classes == 1 else every.select(_least_noise(every)))
    classes = max(1, min(classes, len(clear.y) // _PER_CLASS))
    rounds = _ROUNDS
    if classes == 1:  # Rounds are worth more than recordings: half of them, for twice as many rounds.
        rounds, clear = _ROUNDS_ALONE, clear.select(torch.arange(-(-len(clear.y) // 2)))
    family = SpectralFamily(recordings.rx, recordings.tx, classes)
    labels = torch.zeros(len(clear.y), dtype=torch.int64)
    first = clear.select(torch.arange(min(_FIRST, len(labels))))
    for _ in range(_FIRST_PASSES):
        family.improve(family.asked(first, labels[: len(first.y)]))
    asked, done = family.asked(clear, labels), 0
    if classes > 1:
        labels = angular_cells(asked.mean, recordings.rx, recordings.tx, classes, plan.seed)
        family.split(classes)
        for _ in range(_PASSES):
            asked = family.asked(clear, labels)
            family.improve(asked)
    while done < rounds and (done == 0 or clock.share() < 1.0):
        if classes > 1:
            labels = _likeliest(family, clear, labels)
        asked = family.asked(clear, labels)
        family.improve(asked)
        clock.tick()
        done += 1
        plan.report(min(1.0, max(clock.share(), done / rounds)), f"round {done}")
    facts: dict[str, Json] = {"recordings": len(every.y), "classes": classes, "rounds": done}
    return Learned(family, every, {**facts, "log_evidence": float(asked.log_evidence.mean())})


def _likeliest(family: SpectralFamily, measured: Measurement, labels: Tensor) -> Tensor:
    """The most probable class of each recording among those like its own; sets how probable classes are before y."""
    count = torch.bincount(labels, minlength=len(family)).float()
    family.log_prior = ((count + 1.0) / (count + 1.0).sum()).log()
    near = family.nearest(_CANDIDATES)[labels]
    return near.gather(1, family.log_joint(measured, near).argmax(1, keepdim=True))[:, 0]


def _least_noise(measured: Measurement) -> Tensor:
    """The recordings of least noise: [some]."""
    return (
        measured.noise_var.argsort(stable=True)[: max(1, round(_LEAST_NOISE * len(measured.noise_var)))].sort().values
    )


def _first_pilots(measured: Measurement) -> Measurement:
    """What the first pilots gave, where they are beams of a flat channel; all else as it is."""
    phi = measured.phi
    if not isinstance(phi, BeamformingMap) or phi.subcarriers > 1 or phi.shape[0] <= _MOST_MEASUREMENTS:
        return measured
    pilots = max(1, _MOST_MEASUREMENTS // phi.chains)
    return Measurement(measured.y[:, : pilots * phi.chains], phi.first_pilots(pilots), measured.noise_var)


def gathered(recordings: Recordings, plan: Fit) -> Measurement:
    """As many training recordings as the budget is for, are there and can be held."""
    one = recordings.measured(1, seed=plan.seed, split="train")
    entries = one.y.shape[1] + sum(tensor[0].numel() for tensor in one.phi.tensors())
    count = min(max(_FEWEST, round(_PER_SECOND * plan.size)), recordings.available("train"), _MOST_ENTRIES // entries)
    return recordings.measured(max(1, count), seed=plan.seed, split="train")


def validated(
    recordings: Recordings, evidence: Callable[[Measurement], Tensor], plan: Fit, count: int
) -> dict[str, Json]:
    """What a file says of a fit from pilots: the mean log evidence of validation recordings, for nothing else can be known."""
    measured = recordings.measured(min(count, recordings.available("validation")), seed=plan.seed, split="validation")
    with torch.no_grad():
        return {"validation_log_evidence": float(evidence(measured).mean())}


class SiteDraws:
    """Channels of a site's mixture, with the beams and the noise of recordings, paired anew for every sample."""

    def __init__(self, site: Learned, count: int, seed: int) -> None:
        """count: of the channels that are drawn once."""
        family, self.recordings = site.family, site.recordings
        (generator,) = sample_generators(seed, "train", [0], "site")
        picked = torch.multinomial(family.log_prior.exp(), count, replacement=True, generator=generator)
        self.classes = picked.sort().values
        """Of each channel: [count]."""
        parts = []
        for table, own in zip(
            family.tables(), torch.bincount(self.classes, minlength=len(family)).tolist(), strict=True
        ):
            covariance = family.layout.matrix(table[None])[0]
            floor = _FLOOR * covariance.diagonal().real.mean()
            factor = cholesky(covariance + floor * torch.eye(len(covariance)))
            parts.append(torch.randn(own, len(covariance), dtype=factor.dtype, generator=generator) @ factor.mT)
        self.channels = torch.cat(parts)
        """[count, n]."""

    def pairs(self, count: int, *, seed: int, number: int) -> tuple[Tensor, Tensor, Measurement]:
        """Batch `number`: which channel of the pool each sample has, [count], these channels, and what is measured of them."""
        (generator,) = sample_generators(seed, "train", [number], "site-pairs")
        index = torch.randint(len(self.channels), (count,), generator=generator)
        signal, measured = self.channels[index], self._other(count, generator)
        phi = cast(FrontEnd, measured.phi)
        noise = torch.randn(count, phi.arriving, dtype=signal.dtype, generator=generator)
        y = phi.apply(signal) + phi.combine(measured.noise_var.sqrt()[:, None] * noise)
        return index, signal, Measurement(y, phi, measured.noise_var)

    def _other(self, count: int, generator: torch.Generator) -> Measurement:
        """Recordings at random, for their beams and their noise."""
        return self.recordings.select(torch.randint(len(self.recordings.y), (count,), generator=generator))
