"""How figures are measured: the time of a call, and intervals of 95 % by the bootstrap and by Wilson."""

import math
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy import stats
from torch.utils.benchmark import Timer

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


def finite(value: float, digits: int | None = None) -> float | None:
    """A figure as a row may hold it: rounded where `digits` says how, and None where it is not finite."""
    if not math.isfinite(value):
        return None
    return value if digits is None else round(value, digits)


def wilson(count: int, trials: int) -> tuple[float, float]:
    """The interval of a probability of which `count` of `trials` were seen."""
    interval = stats.binomtest(count, trials).proportion_ci(LEVEL, method="wilson")
    return float(interval.low), float(interval.high)


def milliseconds_of(call: Callable[[], object], *, seconds: float = 3.0) -> float:
    """The median time of a warm call with the present number of threads, CUDA waited for.

    Calls are repeated until their spread is small or `seconds` have passed; a first call that takes longer stands for itself.
    """
    start = time.perf_counter()
    call()
    first = time.perf_counter() - start
    if first >= seconds:
        return 1e3 * first
    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    return float(1e3 * timer.adaptive_autorange(min_run_time=min(0.2, seconds), max_run_time=seconds).median)
