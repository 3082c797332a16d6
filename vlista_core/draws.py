"""Random draws that depend on (seed, split, index) alone: never on the batch size, the order or the global generators."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from vlista_core.problems import check_count

Split = Literal["train", "validation", "test"]

BLOCK = 16
"""`in_blocks` computes samples in blocks of this many that start at a multiple of it, whatever was asked for.

Every product then has the same shape for the same sample, so its bits cannot depend on the size of the request.
"""

_SPLITS: tuple[str, ...] = get_args(Split)
_INDEX_LIMIT = 2**30
_MASK = 2**32 - 1

_lock = threading.Lock()
_users = 0
_threads_before = 1


def sample_generators(seed: int, split: Split, indices: Sequence[int], stream: str = "") -> list[torch.Generator]:
    """A CPU generator for each index.

    torch's Mersenne Twister takes 32 bits of seed. For one `seed` and `stream` the map (split, index) -> 32 bits is a
    permutation, so training, validation and test draws cannot coincide, nor can two samples.
    """
    number = split_number(seed, split)
    key, multiplier = np.random.SeedSequence([seed, *stream.encode()]).generate_state(2)
    generators = []
    for index in indices:
        if not 0 <= index < _INDEX_LIMIT:
            raise ValueError(f"index must be in [0, {_INDEX_LIMIT}), got {index}")
        word = (number << 30 | index) ^ int(key)
        word = word * (int(multiplier) | 1) & _MASK
        word = (word ^ word >> 16) * 0x7FEB352D & _MASK
        generators.append(torch.Generator().manual_seed(word ^ word >> 15))
    return generators


def split_number(seed: int, split: Split) -> int:
    """The split as a number, or a ValueError where it or the seed is none that draws can have."""
    if split not in _SPLITS:
        raise ValueError(f"split must be one of {', '.join(_SPLITS)}, got {split!r}")
    if not isinstance(seed, int) or seed < 0:
        raise ValueError(f"seed must be a non-negative integer, got {seed!r}")
    return _SPLITS.index(split)


def for_each_sample(draw: Callable[[int], object], count: int, *, threads: int | None = None) -> None:
    """Run draw(0) … draw(count - 1), spread over threads: generators are per sample, so the order does not matter."""
    threads = min(threads or torch.get_num_threads(), count)
    if threads <= 1:
        for position in range(count):
            draw(position)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(draw, range(count)))


def in_blocks(start: int, count: int, compute: Callable[[range], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Samples start … start + count - 1 from whole aligned blocks. compute(indices) gives tensors [BLOCK, ...].

    Blocks are spread over as many threads as torch may use, and each runs on one: no operation of a block waits for a
    second core, which on a busy machine costs far more than the operation itself.
    """
    check_count("count", count)
    check_count("start", start, least=0)
    firsts = range(start - start % BLOCK, start + count, BLOCK)

    def store(first: int, tensors: tuple[Tensor, ...]) -> None:
        low, high = max(first, start), min(first + BLOCK, start + count)
        for result, tensor in zip(results, tensors, strict=True):
            result[low - start : high - start] = tensor[low - first : high - first]

    def block(first: int) -> tuple[Tensor, ...]:
        return compute(range(first, first + BLOCK))

    with _one_thread_per_operation() as threads:
        tensors = block(firsts[0])
        results = tuple(tensor.new_empty(count, *tensor.shape[1:]) for tensor in tensors)
        store(firsts[0], tensors)
        others = firsts[1:]
        for_each_sample(lambda k: store(others[k], block(others[k])), len(others), threads=threads)
    return results


@contextmanager
def _one_thread_per_operation() -> Iterator[int]:
    """torch's operations on one thread each until all users of this are done; gives the number of threads before."""
    global _users, _threads_before
    with _lock:
        if _users == 0:
            _threads_before = torch.get_num_threads()
            torch.set_num_threads(1)
        _users += 1
    try:
        yield _threads_before
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                torch.set_num_threads(_threads_before)
