"""How an estimator is fitted: a budget in seconds or in steps, a seed, and whom to tell."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

Report = Callable[[float, str], None]
"""Called now and then with the share of the work that is done, 0 to 1, and a few words."""


def silent(share: float, words: str) -> None:
    """A Report that says nothing."""


@dataclass(frozen=True)
class Fit:
    """A budget, the seed of the training draws, and whom to tell.

    With `steps` the work is counted and not timed, so that a fit depends on the seed alone, on any machine.
    """

    seconds: float = 300.0
    steps: int | None = None
    seed: int = 0
    report: Report = field(default=silent, compare=False)
    device: str = field(default="auto", compare=False)
    """Where networks are trained, as `Trainer.accelerator`."""
    timer: Callable[[], float] = field(default=time.monotonic, compare=False)
    """What tells the seconds; `time.process_time` where a busy machine is to give a training what an idle one does."""

    def __post_init__(self) -> None:
        if not self.size > 0:
            raise ValueError(f"a budget must be positive, got {self.size:g}")

    @property
    def size(self) -> float:
        """The budget in its own unit: seconds, or steps."""
        return self.seconds if self.steps is None else float(self.steps)

    @property
    def budget(self) -> str:
        """For people and files, as "300 s" or "40 steps"."""
        return f"{self.seconds:g} s" if self.steps is None else f"{self.steps} steps"

    def part(self, share: float) -> "Fit":
        """A plan with the first part of the budget."""
        steps = None if self.steps is None else max(1, round(share * self.steps))
        return replace(self.telling(0.0, share), seconds=share * self.seconds, steps=steps)

    def telling(self, first: float, last: float) -> "Fit":
        """The same budget for work whose report counts from `first` to `last` of the whole."""
        return replace(self, report=lambda done, words: self.report(first + (last - first) * done, words))

    def blocks(self, count: int, size: int, words: str) -> Iterator[range]:
        """0 … count - 1 in blocks of at most `size`; tells after each how many are done."""
        for first in range(0, count, size):
            block = range(first, min(count, first + size))
            yield block
            self.report(block.stop / count, words)


class Clock:
    """The share of a budget that is gone, by time or by what was ticked off."""

    def __init__(self, plan: Fit) -> None:
        self.plan, self.begin, self.ticks = plan, plan.timer(), 0

    def tick(self) -> None:
        """A piece of work is done: a block of channels, a batch of draws, a step of an optimizer, a score."""
        self.ticks += 1

    def share(self) -> float:
        """From 0; above 1 once the budget is spent."""
        gone = self.plan.timer() - self.begin if self.plan.steps is None else self.ticks
        return gone / self.plan.size

    def report(self, words: str) -> None:
        """Tell the plan's listener how far it is."""
        self.plan.report(min(1.0, self.share()), words)

    def gather(
        self, one: Callable[[int], tuple[Tensor, ...]], words: str, *, until: float, most: float = math.inf
    ) -> list[Tensor]:
        """one(0), one(1), … joined row by row, until that share of the budget is gone or there are `most` rows."""
        parts: list[tuple[Tensor, ...]] = []
        while not parts or (self.share() < until and sum(len(part[0]) for part in parts) < most):
            parts.append(one(len(parts)))
            self.tick()
            self.report(words)
        return [torch.cat(column) for column in zip(*parts, strict=True)]
