"""How long a call takes, by torch.utils.benchmark."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch.utils.benchmark import Timer


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
