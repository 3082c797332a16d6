"""Intervals of 95 %: of a ratio of sums by the bootstrap, of a share by Wilson."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

LEVEL = 0.95
RESAMPLES = 1000
_AT_ONCE = 50


def ratio_interval(above: ArrayLike, below: ArrayLike, *, group: int = 1, seed: int = 0) -> tuple[float, float]:
    """The percentile interval of Σ above / Σ below, [samples] each; whole groups of `group` samples in a row are drawn.

    An end is infinite where that many resamples are: a sample that diverged counts as an infinite error.
    """
    error, power = np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64)
    starts = np.arange(0, len(error), group)
    sums = np.add.reduceat(error, starts), np.add.reduceat(power, starts)
    if len(starts) == 1:
        ratio = float(sums[0][0] / sums[1][0])
        return ratio, ratio
    with warnings.catch_warnings(), np.errstate(invalid="ignore"):
        warnings.simplefilter("ignore")
        found = stats.bootstrap(
            sums, lambda a, b, axis: a.sum(axis) / b.sum(axis), n_resamples=RESAMPLES, batch=_AT_ONCE, paired=True,
            vectorized=True, confidence_level=LEVEL, method="percentile", rng=np.random.default_rng(seed),
        )  # fmt: skip
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(found.bootstrap_distribution, [tail, 1 - tail], method="inverted_cdf")
    return float(low), float(high)


def wilson(count: int, trials: int) -> tuple[float, float]:
    """The interval of a probability of which `count` of `trials` were seen."""
    interval = stats.binomtest(count, trials).proportion_ci(LEVEL, method="wilson")
    return float(interval.low), float(interval.high)
