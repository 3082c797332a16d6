"""Training beams: random phases, quantised phase shifters, codebook columns, Gaussian, one antenna at a time; unit norm."""

import math
from typing import Literal

import torch
from torch import Tensor

from chanest.arrays import Array
from vlista_core.linalg import cholesky

BeamKind = Literal["phases", "quantised", "dft", "gaussian", "identity"]

CODEBOOKS: dict[BeamKind, str] = {"dft": "DFT codebook", "identity": "array"}
"""Kinds with as many different beams as there are antennas, and what that is the size of."""

_LEAST_PIVOT = 0.05
_MOST_REDRAWS = 1000


def draw_beams(kind: BeamKind, array: Array, count: int, *, bits: int, generator: torch.Generator) -> Tensor:
    """`count` beams of unit norm for `array`, as columns: [ports, count], complex64.

    phases: uniform; quantised: one of 2^bits phases per element; dft: distinct columns of the array's orthonormal DFT
    codebook, one block per polarisation; gaussian: CN entries, which phase shifters without amplitudes cannot make;
    identity: the antennas one after another, so that as many pilots as antennas measure y = h + n.
    """
    ports = array.ports
    if kind in CODEBOOKS and count > ports:
        raise ValueError(f"count must be at most {ports}, the size of the {CODEBOOKS[kind]}, got {count}")
    if kind == "identity":
        return torch.eye(ports, count, dtype=torch.complex64)
    if kind == "dft":
        planar = torch.kron(_dft(array.columns), _dft(array.rows))
        codebook = torch.kron(torch.eye(len(array.slants), dtype=planar.dtype), planar)
        return codebook[:, torch.randperm(ports, generator=generator)[:count]]
    if kind == "gaussian":
        beams = torch.randn(ports, count, dtype=torch.complex64, generator=generator)
        return torch.nn.functional.normalize(beams, dim=0)
    if kind == "phases":
        phase = 2 * math.pi * torch.rand(ports, count, generator=generator)
    elif kind == "quantised":
        phase = 2 * math.pi / 2**bits * torch.randint(2**bits, (ports, count), generator=generator)
    else:
        raise ValueError(f"kind must be phases, quantised, dft, gaussian or identity, got {kind!r}")
    return torch.polar(torch.full_like(phase, 1 / math.sqrt(ports)), phase)


def draw_combiners(
    kind: BeamKind, array: Array, pilots: int, chains: int, *, bits: int, generator: torch.Generator
) -> Tensor:
    """A combiner of `chains` independent columns for each pilot: [pilots, ports, chains], complex64.

    Coarsely quantised columns of a small array can coincide, and a singular combiner cannot be whitened: pilots whose
    columns are (nearly) dependent are drawn again, from the same generator.
    """
    if chains > array.ports:
        raise ValueError(f"chains must be at most the {array.ports} antennas, got {chains}")

    def draw(number: int) -> Tensor:
        if kind in CODEBOOKS:
            return torch.stack([draw_beams(kind, array, chains, bits=bits, generator=generator) for _ in range(number)])
        beams = draw_beams(kind, array, number * chains, bits=bits, generator=generator)
        return beams.reshape(-1, number, chains).movedim(1, 0)

    combiners = draw(pilots).contiguous()
    for _ in range(_MOST_REDRAWS):
        pivots = cholesky(combiners.mH @ combiners).diagonal(dim1=-2, dim2=-1).real
        poor = pivots.amin(1) < _LEAST_PIVOT
        if not bool(poor.any()):
            return combiners
        combiners[poor] = draw(int(poor.sum()))
    raise ValueError(f"no independent combiner columns in {_MOST_REDRAWS} draws; use more bits or fewer chains")


def _dft(size: int) -> Tensor:
    index = torch.arange(size, dtype=torch.float64)
    phase = 2 * math.pi / size * torch.outer(index, index)
    return torch.polar(torch.full_like(phase, 1 / math.sqrt(size)), phase).to(torch.complex64)
