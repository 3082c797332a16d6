"""Training draws that cost little: pooled channels seen through pooled beams, paired anew for every sample."""

import math
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from chanest.channels.rays import Rays
from chanest.fit import Clock, Fit
from chanest.frontend import FrontEnd
from chanest.problem import ChannelProblem
from vlista_core.draws import Split, sample_generators
from vlista_core.problems import Batch, Problem

_BEAMS, _BLOCK = 2048, 500
_LEAST_CHANNELS = 128
_MOST_ENTRIES = 2**24
_CHANNELS_PER_SECOND = 40
_FEWEST_PILOTS, _MOST_PILOTS = 3, 2
"""Networks are trained with a third to twice the pilots of their scenario."""


class PooledDraws(Problem):
    """A scenario whose training samples pair a channel and beams of two pools at random, with fresh noise.

    The pools are draws of the training split. Generating a channel takes longer than a training step spends on it, while
    the pairs never repeat. A batch is a function of (seed, start, count); the other splits are the scenario's own.
    """

    def __init__(
        self, problem: ChannelProblem, channels: Tensor, beams: FrontEnd, *, towards_noise: float = 1.0
    ) -> None:
        """channels: [pool, n], beams: Φ of as many samples as that pool has, with the most pilots to train with.

        towards_noise: power of a uniform number that spreads the SNRs over their range: 1 evenly, more towards the lowest.
        """
        self.problem, self.channels, self.beams, self.towards_noise = problem, channels, beams, towards_noise

    @classmethod
    def within(cls, problem: ChannelProblem, plan: Fit, *, towards_noise: float = 1.0) -> "PooledDraws":
        """Pools that take a few hundredths of a budget in seconds, with up to twice the scenario's pilots."""
        most = min(problem.scenario.data.train, _MOST_ENTRIES // problem.signal_length)
        size = max(_LEAST_CHANNELS, min(most, round(_CHANNELS_PER_SECOND * plan.size)))
        beams = problem.with_pilots(_MOST_PILOTS * problem.scenario.frontend.pilots).beams
        channels = problem.channels(size, seed=plan.seed, split="train")
        some = beams(min(size, _BEAMS), seed=plan.seed, split="train")
        return cls(problem, channels, some, towards_noise=towards_noise)

    @classmethod
    def with_rays(
        cls,
        problem: ChannelProblem,
        clock: Clock,
        of_rays: Callable[[Rays], Tensor],
        *,
        first: int,
        until: float,
        most: float = math.inf,
    ) -> "tuple[PooledDraws, Tensor]":
        """Pools of training channels from number `first` on, and what `of_rays` says of each; see `Clock.gather`."""

        def block(number: int) -> tuple[Tensor, Tensor]:
            start = first + _BLOCK * number
            indices = range(start, start + _BLOCK)
            signal, rays = problem.channels_and_rays(indices, seed=clock.plan.seed, split="train")
            return signal, of_rays(rays)

        channels, known = clock.gather(block, "channels", until=until, most=most)
        return cls(problem, channels, problem.beams(_BEAMS, seed=clock.plan.seed, split="train")), known

    @property
    def signal_length(self) -> int:
        return self.problem.signal_length

    @property
    def measurements(self) -> int:
        return self.problem.measurements

    @property
    def dtype(self) -> torch.dtype:
        return self.problem.dtype

    def sample(
        self, count: int, *, seed: int, split: Split = "test", start: int = 0, snr_db: float | None = None
    ) -> Batch:
        if split != "train":
            return self.problem.sample(count, seed=seed, split=split, start=start, snr_db=snr_db)
        return self.pairs(count, seed=seed, start=start, snr_db=snr_db)[1]

    def pairs(self, count: int, *, seed: int, start: int = 0, snr_db: float | None = None) -> tuple[Tensor, Batch]:
        """Training samples, and which channel of the pool each has: [count].

        Every other batch has another number of pilots, as far as the beams of the pool go.
        """
        (generator,) = sample_generators(seed, "train", [start], "pooled")
        index = torch.randint(len(self.channels), (count,), generator=generator)
        signal = self.channels[index]
        chosen = self.beams.select(torch.randint(self.beams.batch or 1, (count,), generator=generator))
        phi = cast(FrontEnd, chosen).first_pilots(self._pilots(generator))
        low, high = self.problem.scenario.snr_db if snr_db is None else (snr_db, snr_db)
        spread = torch.rand(count, generator=generator) ** self.towards_noise
        noise_var = 10 ** (-(low + (high - low) * spread) / 10)
        noise = noise_var.sqrt()[:, None] * torch.randn(count, phi.arriving, dtype=self.dtype, generator=generator)
        return index, Batch(signal, phi.apply(signal) + phi.combine(noise), phi, noise_var)

    def _pilots(self, generator: torch.Generator) -> int:
        """The scenario's number or, as often, one from a third of it to the most there are, uniform in its logarithm."""
        usual, most = min(self.problem.scenario.frontend.pilots, self.beams.pilots), self.beams.pilots
        if most == usual:
            return usual
        other, size = torch.rand(2, generator=generator).tolist()
        least = max(1, usual // _FEWEST_PILOTS)
        return usual if other < 0.5 else round(least * (most / least) ** size)
