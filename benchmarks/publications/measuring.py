"""Measure estimators on the same draws, one after the other: error, and process time of one thread."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from vlista_core.study.measuring import finite
from vlista_core.tensorfile import Json

Estimate = Callable[[int], Tensor]
"""The estimates of batch number i of the draws: [batch, n]."""


@dataclass
class Tally:
    """What one method has come to."""

    errors: list[Tensor] = field(default_factory=list)
    """‖ŝ - s‖² of the samples of each batch: [batch]."""
    powers: list[Tensor] = field(default_factory=list)
    """‖s‖², as many."""
    seconds: float = math.inf
    """Of the fastest batch, per sample."""

    def take(self, estimate: Tensor, signal: Tensor, seconds: float) -> None:
        """Add a batch. estimate, signal: [batch, n]."""
        self.errors.append((estimate - signal).abs().square().sum(1, dtype=torch.float64))
        self.powers.append(signal.abs().square().sum(1, dtype=torch.float64))
        self.seconds = min(self.seconds, seconds / len(signal))


@dataclass
class Method:
    """Something to be measured, and what is known of it."""

    name: str
    estimate: Estimate
    printed: float | None = None
    """In dB."""
    facts: Mapping[str, Json] = field(default_factory=dict)


def measured(methods: Sequence[Method], signals: Sequence[Tensor]) -> list[Json]:
    """An entry of a row for each method: NMSE as a ratio of sums, its standard error in dB, milliseconds per sample of the
    fastest batch.

    signals: the truth of each batch, [batch, n]. The methods take turns batch by batch, so that all meet the machine alike.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    tallies = [Tally() for _ in methods]
    try:
        with torch.no_grad():
            for number, signal in enumerate(signals):
                for method, tally in zip(methods, tallies, strict=True):
                    start = time.process_time()
                    estimate = method.estimate(number)
                    tally.take(estimate, signal, time.process_time() - start)
    finally:
        torch.set_num_threads(threads)
    return [_entry(method, tally) for method, tally in zip(methods, tallies, strict=True)]


def _entry(method: Method, tally: Tally) -> Json:
    error, power = torch.cat(tally.errors), torch.cat(tally.powers)
    ratio = float(error.sum() / power.sum())
    level = 10 * math.log10(ratio) if ratio > 0 else -math.inf
    apart = float((error - ratio * power).square().sum().sqrt() / error.sum()) if ratio > 0 else 0.0
    printed: dict[str, Json] = {} if method.printed is None else {"printed": method.printed}
    facts: dict[str, Json] = {
        "standard_error": finite(10 / math.log(10) * apart, 3),
        "ms": finite(1e3 * tally.seconds, 4),
    }
    return {"name": method.name, **printed, "found": finite(level, 3), **facts, **method.facts}
