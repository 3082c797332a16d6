"""Random draws that depend on (seed, split, index) alone: never on the batch size, the order or the global generators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, get_args

import numpy as np
import torch

Split = Literal["train", "validation", "test"]

_SPLITS: tuple[str, ...] = get_args(Split)
_INDEX_LIMIT = 2**30
_MASK = 2**32 - 1


def sample_generators(seed: int, split: Split, indices: Sequence[int], stream: str = "") -> list[torch.Generator]:
    """A CPU generator for each index.

    torch's Mersenne Twister takes 32 bits of seed. For one `seed` and `stream` the map (split, index) -> 32 bits is a
    permutation, so training, validation and test draws cannot coincide, nor can two samples.
    """
    if split not in _SPLITS:
        raise ValueError(f"split must be one of {', '.join(_SPLITS)}, got {split!r}")
    if not isinstance(seed, int) or seed < 0:
        raise ValueError(f"seed must be a non-negative integer, got {seed!r}")
    key, multiplier = np.random.SeedSequence([seed, *stream.encode()]).generate_state(2)
    generators = []
    for index in indices:
        if not 0 <= index < _INDEX_LIMIT:
            raise ValueError(f"index must be in [0, {_INDEX_LIMIT}), got {index}")
        word = (_SPLITS.index(split) << 30 | index) ^ int(key)
        word = word * (int(multiplier) | 1) & _MASK
        word = (word ^ word >> 16) * 0x7FEB352D & _MASK
        generators.append(torch.Generator().manual_seed(word ^ word >> 15))
    return generators


def for_each_sample(draw: Callable[[int], object], count: int) -> None:
    """Run draw(0) … draw(count - 1), spread over threads: generators are per sample, so the order does not matter."""
    threads = min(torch.get_num_threads(), count)
    if threads <= 1:
        for position in range(count):
            draw(position)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(draw, range(count), chunksize=max(1, count // (4 * threads))))
