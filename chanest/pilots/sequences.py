"""Pilot symbols: QPSK by a seed, and the pseudo-random sequence of 5G NR (TS 38.211, 5.2.1)."""

import math

import torch
from torch import Tensor

_DISCARDED = 1600
_LENGTH = 31


def qpsk(count: int, seed: int) -> Tensor:
    """`count` QPSK symbols of modulus one: [count], complex64; those of Sionna after `sionna.phy.config.seed = seed`."""
    bits = torch.randint(2, (count, 2), generator=torch.Generator().manual_seed(seed)).float()
    return torch.complex(1 - 2 * bits[:, 0], 1 - 2 * bits[:, 1]) / math.sqrt(2)


def gold_sequence(length: int, start: int) -> Tensor:
    """c(0) … c(length - 1) of the Gold sequence that begins with c_init = `start`: [length], integers 0 and 1."""
    first, second = [1, *[0] * (_LENGTH - 1)], [start >> shift & 1 for shift in range(_LENGTH)]
    for n in range(_DISCARDED + length - _LENGTH):
        first.append(first[n + 3] ^ first[n])
        second.append(second[n + 3] ^ second[n + 2] ^ second[n + 1] ^ second[n])
    pairs = zip(first[_DISCARDED:], second[_DISCARDED:], strict=True)
    return torch.tensor([one ^ other for one, other in pairs][:length])
