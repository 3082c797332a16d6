"""Random numbers as functions of (key, counter): the same on every device, whatever the batch size, the order, the threads.

The hash is SplitMix64's, which passes BigCrush on counters, with a second key word added between its two products, so that no
two keys give shifted copies of one sequence. It takes a dozen integer operations for 64 bits. Philox4x32-10 would take about
seven times as many: torch has no product of 32-bit words that gives the upper half.
"""

import math
from itertools import product

import numpy as np
import torch
from torch import Tensor

from vlista_core.devices import Device
from vlista_core.draws import Split, for_each_sample, split_number

PIECE = 2**16
"""Numbers of a sample that are made together. On a CPU their words stay in its cache."""

_STEP, _FIRST, _SECOND = (
    word - 2**64 for word in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)  # SplitMix64's constants, as signed words.


def sample_keys(seed: int, split: Split, indices: range, *, stream: str, device: Device = "cpu") -> Tensor:
    """A key of two words for each index, made on the device: int64 [len(indices), 2].

    For one (seed, split, stream) the first word is a permutation of the index, so that no two samples share a key.
    """
    sequence = np.random.SeedSequence(seed, spawn_key=(split_number(seed, split), *stream.encode()))
    steps = torch.arange(indices.start, indices.stop, device=device) * _STEP
    first, second = (int(word) for word in sequence.generate_state(2, np.uint64).view(np.int64))
    none = steps.new_zeros(())
    return torch.stack([hashed(steps + first, none), hashed(steps + second, none)], 1)


def hashed(words: Tensor, key: Tensor) -> Tensor:
    """A permutation of 64-bit words for each key, SplitMix64's finaliser for key 0; `words`, int64, is overwritten."""
    words ^= (words >> 30).bitwise_and_(2**34 - 1)
    torch.add(key, words, alpha=_FIRST, out=words)
    words ^= (words >> 27).bitwise_and_(2**37 - 1)
    words *= _SECOND
    words ^= (words >> 31).bitwise_and_(2**33 - 1)
    return words


def counted_words(keys: Tensor, count: int, *, start: int = 0) -> Tensor:
    """The words of counters start … start + count - 1. keys: [batch, 2] -> int64 [batch, count]."""
    steps = torch.arange(start, start + count, device=keys.device).mul_(_STEP)
    return hashed(steps + keys[:, :1], keys[:, 1:])


def uniforms(keys: Tensor, count: int) -> Tensor:
    """Uniform numbers in (0, 1]. keys: [batch, 2] -> float64 [batch, count]."""
    return _unit(counted_words(keys, count), torch.float64)


def normals(keys: Tensor, shape: tuple[int, ...], *, dtype: torch.dtype = torch.float32, std: float = 1.0) -> Tensor:
    """Normal numbers, E|z|² = std², by Box and Muller's formula. keys: [batch, 2] -> [batch, *shape].

    A pair is made of one word in single precision and of two in double precision.
    """
    if dtype.is_complex:
        parts = normals(keys, (*shape, 2), dtype=dtype.to_real(), std=std / math.sqrt(2.0))
        return torch.view_as_complex(parts)
    out = torch.empty(len(keys), math.prod(shape), dtype=dtype, device=keys.device)
    batch, length = out.shape
    rows = max(1, PIECE // max(1, length)) if keys.device.type == "cpu" else batch
    pieces = list(product(range(0, batch, rows), range(0, length, PIECE)))

    def fill(number: int) -> None:
        row, column = pieces[number]
        _fill(out[row : row + rows, column : column + PIECE], keys[row : row + rows], column, std)

    for_each_sample(fill, len(pieces))
    return out.view(batch, *shape)


def _fill(out: Tensor, keys: Tensor, column: int, std: float) -> None:
    """The normal numbers from `column` on into `out`, [rows, at most PIECE]."""
    length, packed = out.shape[1], 8 // out.itemsize
    half = (length + 1) // 2
    words = counted_words(keys, 2 * half // packed, start=column // packed)
    if packed == 2:
        words = words.view(torch.int32)
    bits = 8 * out.itemsize
    radius = _unit(words[:, :half], out.dtype).log_().mul_(-2.0 * std**2).sqrt_()
    angle = words[:, half:].to(out.dtype).mul_(2.0 * math.pi / 2.0**bits)
    torch.mul(angle.cos(), radius, out=out[:, :half])
    torch.mul(angle.sin_()[:, : length - half], radius[:, : length - half], out=out[:, half:])


def _unit(words: Tensor, dtype: torch.dtype) -> Tensor:
    """Words without their sign as uniform numbers in (0, 1]."""
    bits = 8 * words.itemsize - 1
    return words.bitwise_and(2**bits - 1).to(dtype).add_(0.5).mul_(2.0**-bits)
