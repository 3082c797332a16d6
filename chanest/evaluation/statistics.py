"""Figures of merit of a cell from the errors of its channels, with a bootstrap interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_RESAMPLES, _AT_ONCE = 1000, 50
_LEVEL = 0.95


@dataclass(frozen=True)
class Errors:
    """NMSE of a set of channels in dB; None where it is not a finite number."""

    nmse_db: float | None
    """Ratio of sums: the figure of every table."""
    nmse_low_db: float | None
    """Lower end of the 95 % bootstrap interval of `nmse_db`."""
    nmse_high_db: float | None
    nmse_mean_db: float | None
    """Of the per-channel ratios."""
    nmse_median_db: float | None
    channels: int
    diverged: int
    """Channels whose estimate has a NaN or Inf."""


def summarise(error: NDArray[np.float64], power: NDArray[np.float64], *, group: int = 1, seed: int = 0) -> Errors:
    """error: ‖ĥ - h‖², power: ‖h‖², both [channels]; `group` consecutive channels share their rays.

    The bootstrap draws whole groups, so that snapshots of one user do not count as independent channels.
    """
    bad = ~np.isfinite(error)
    error = np.where(bad, np.inf, error)
    ratios = error / power
    low, high = _interval(error, power, group, seed)
    return Errors(
        nmse_db=_db(error.sum() / power.sum()),
        nmse_low_db=_db(low),
        nmse_high_db=_db(high),
        nmse_mean_db=_db(ratios.mean()),
        nmse_median_db=_db(np.quantile(ratios, 0.5, method="inverted_cdf" if bad.any() else "linear")),
        channels=len(error),
        diverged=int(bad.sum()),
    )


def _interval(
    error: NDArray[np.float64], power: NDArray[np.float64], group: int, seed: int
) -> tuple[np.float64, np.float64]:
    """Quantiles of Σ error / Σ power over resampled groups of channels."""
    starts = np.arange(0, len(error), group)
    errors, powers = np.add.reduceat(error, starts), np.add.reduceat(power, starts)
    generator = np.random.default_rng(seed)
    blocks = []
    for _ in range(_RESAMPLES // _AT_ONCE):
        index = generator.integers(len(starts), size=(_AT_ONCE, len(starts)))
        blocks.append(errors[index].sum(1) / powers[index].sum(1))
    ratios = np.concatenate(blocks)
    tail = (1 - _LEVEL) / 2
    low, high = np.quantile(ratios, [tail, 1 - tail], method="inverted_cdf")
    return low, high


def _db(ratio: np.float64) -> float | None:
    level = 10 * math.log10(ratio) if ratio > 0 else -math.inf
    return level if math.isfinite(level) else None
