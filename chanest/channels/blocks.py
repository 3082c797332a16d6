"""Work in aligned blocks: the bits of a sample depend on its index alone, not on the request, nor on the threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch
from torch import Tensor

BLOCK = 16
"""Samples are always computed in blocks of this many that start at a multiple of it, whatever was asked for.

Every product then has the same shape for the same sample, so its bits cannot depend on the size of the request.
"""

_lock = threading.Lock()
_users = 0
_threads_before = 1


def in_blocks(start: int, count: int, compute: Callable[[range], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Samples start … start + count - 1 from whole aligned blocks. compute(indices) gives tensors [BLOCK, ...].

    Blocks are spread over as many threads as torch may use, and each runs on one: no operation of a block waits for a
    second core, which on a busy machine costs far more than the operation itself.
    """
    firsts = range(start - start % BLOCK, start + count, BLOCK)
    with _one_thread_an_operation() as threads:
        results = _prepared(compute(range(firsts[0], firsts[0] + BLOCK)), firsts[0], start, count)

        def run(first: int) -> None:
            _store(results, compute(range(first, first + BLOCK)), first, start, count)

        if threads == 1 or len(firsts) < 3:
            for first in firsts[1:]:
                run(first)
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(run, firsts[1:]))
    return results


def _prepared(tensors: tuple[Tensor, ...], first: int, start: int, count: int) -> tuple[Tensor, ...]:
    results = tuple(tensor.new_empty(count, *tensor.shape[1:]) for tensor in tensors)
    _store(results, tensors, first, start, count)
    return results


def _store(results: tuple[Tensor, ...], tensors: tuple[Tensor, ...], first: int, start: int, count: int) -> None:
    low, high = max(first, start), min(first + BLOCK, start + count)
    for result, tensor in zip(results, tensors, strict=True):
        result[low - start : high - start] = tensor[low - first : high - first]


@contextmanager
def _one_thread_an_operation() -> Iterator[int]:
    """torch's operations on one thread each while the block runs; gives the number of threads there were before."""
    global _users, _threads_before
    with _lock:
        if _users == 0:
            _threads_before = torch.get_num_threads()
            torch.set_num_threads(1)
        _users += 1
        threads = _threads_before
    try:
        yield threads
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                torch.set_num_threads(_threads_before)
