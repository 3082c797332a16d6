"""Samples a few at a time: chunks that stay in cache, worked on by as many threads as torch has.

Batched factorisations of small matrices run on one core whatever the number of threads, so that chunks side by side make use of
the others. Each thread runs its operations by itself; results are those of one thread.
"""

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from vlista_core.estimate import Estimate, Measurement

Result = TypeVar("Result")
_FEWEST = 4
"""Samples for which another thread is worth its while."""


def in_chunks(measured: Measurement, size: int | None) -> Iterator[tuple[Measurement, Tensor]]:
    """Consecutive samples, at most `size` of them at once, and which they are. None is all of them."""
    for some in _chunks(measured, size):
        yield _selected(measured, some), some


def chunk_by_chunk(
    function: Callable[[Measurement, Tensor], Result], measured: Measurement, size: int | None
) -> list[Result]:
    """function of every chunk of samples and of which they are, in order, without gradients; on a CPU several at a time.

    size: samples of a chunk at the most, each chunk on one thread; None is all of them at once, on all threads.
    """
    chunks, threads = _chunks(measured, size), torch.get_num_threads()

    @torch.no_grad()
    def one(some: Tensor) -> Result:
        return function(_selected(measured, some), some)

    if size is None or threads == 1 or measured.y.device.type != "cpu":
        return [one(some) for some in chunks]
    try:
        if len(chunks) == 1:
            torch.set_num_threads(1)
            return [one(chunks[0])]
        with ThreadPoolExecutor(min(threads, len(chunks)), initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(one, chunks))
    finally:
        torch.set_num_threads(threads)  # of this thread, and of those which are yet to come


def _chunks(measured: Measurement, size: int | None) -> tuple[Tensor, ...]:
    """Which samples each chunk has. Chunks are of nearly one size, and as many as keep all threads busy to the end."""
    every, device = len(measured.y), measured.y.device
    if size is None:
        size = every
    elif device.type == "cpu":
        threads = max(1, min(torch.get_num_threads(), every // _FEWEST))
        rounds = math.ceil(every / (max(1, size) * threads))
        size = math.ceil(every / (rounds * threads))
    return tuple(torch.arange(every, device=device).split(max(1, size)))


def _selected(measured: Measurement, some: Tensor) -> Measurement:
    return measured if len(some) == len(measured.y) else measured.select(some)


def joined(parts: list[Estimate]) -> Estimate:
    """One Estimate from those of consecutive samples; trajectories and draws are kept only where there is one part."""
    if len(parts) == 1:
        return parts[0]
    every = ("signal", "code", "variance", "iterations", "log_evidence", "freedom", "own_share")
    names = [name for name in every if getattr(parts[0], name) is not None]
    build: Callable[..., Estimate] = Estimate
    return build(**{name: torch.cat([getattr(part, name) for part in parts]) for name in names})


def selected(found: Estimate, some: Tensor) -> Estimate:
    """Signal, code and variance of the chosen samples."""
    code, variance = (None if each is None else each[some] for each in (found.code, found.variance))
    return Estimate(found.signal[some], code=code, variance=variance)
