"""The maps of chanest meet the map contract in complex double precision."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from chanest.covariances.modes import ModesMap
from chanest.dictionaries import KroneckerMap, LearnedKronecker
from chanest.frontend import BeamformingMap, GridMap
from chanest.pilots import DMRS, Block, Comb, Kronecker, PilotPattern, Pilots
from vlista_core.linops import ScaledMap
from vlista_core.testing import MAP_CHECKS, MapCase


def _normal(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 7) -> Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def _beams(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return _normal((4, 5, 6), dtype), _normal((4, 6, 4, 2), dtype, seed=8)


def _kronecker(dtype: torch.dtype, *, wideband: bool = False) -> KroneckerMap:
    delay = _normal((3, 4), dtype, seed=9) if wideband else None
    return KroneckerMap(_normal((2, 5), dtype), _normal((4, 6), dtype, seed=8), delay)


def _on_grid(
    pattern: PilotPattern,
    dtype: torch.dtype,
    *,
    grid: tuple[int, int] = (2, 12),
    users: int = 1,
    snapshots: int = 1,
    hybrid: bool = False,
    whiten: bool = True,
) -> GridMap:
    """Beams and combiners of each pilot symbol's own, three antennas a user; of a digital receiver unless hybrid."""
    pilots = pattern.on(*grid).with_users(users)
    symbols = len(pilots.pilot_symbols)
    combiner = _normal((4, symbols, 3, 2), dtype, seed=8) if hybrid else None
    beams = _normal((4, 3, symbols, pilots.streams), dtype)
    return GridMap.of(pilots, beams, combiner, antennas=3, whiten=whiten, snapshots=snapshots)


def _of_antennas(pattern: PilotPattern, dtype: torch.dtype, *, snapshots: int = 1) -> GridMap:
    """Streams that are antennas, and no combiner: one map for any batch."""
    return GridMap.of(pattern.on(6, 12), antennas=2, snapshots=snapshots).cast(dtype)


def _irregular(dtype: torch.dtype, *, snapshots: int) -> GridMap:
    """A pilot here and there: several tiles."""
    generator = torch.Generator().manual_seed(3)
    values = torch.where(torch.rand(1, 4, 7, generator=generator) < 0.5, 0.5 + 1j, 0.0)
    pilots = Pilots(values, values[0] != 0)
    return GridMap.of(pilots, _normal((4, 3, 4), dtype), _normal((4, 4, 3, 2), dtype, seed=8), snapshots=snapshots)


DOUBLE = DMRS((0, 1, 4, 5), length=2)
GRID_CASES = [
    MapCase("comb", lambda dtype: _on_grid(Comb(4, symbols=(0, 1)), dtype)),
    MapCase("comb of QPSK, hybrid", lambda dtype: _on_grid(Comb(3, 1, (0, 1), seed=1), dtype, hybrid=True)),
    MapCase("comb, coloured", lambda dtype: _on_grid(Comb(4), dtype, hybrid=True, whiten=False)),
    MapCase("comb of two users", lambda dtype: _on_grid(Comb(4, streams=2), dtype, users=2)),
    MapCase("comb, every symbol a snapshot", lambda dtype: _on_grid(Comb(4, symbols=(0, 1)), dtype, snapshots=2)),
    MapCase("block with codes", lambda dtype: _on_grid(Block((0, 1), 2, seed=1), dtype, grid=(2, 3))),
    MapCase(
        "block, two users of two streams, hybrid",
        lambda dtype: _on_grid(Block((0, 1, 2, 3), 4), dtype, grid=(4, 2), users=2, hybrid=True),
    ),
    MapCase("kronecker pattern", lambda dtype: _on_grid(Kronecker((1,), 2), dtype, grid=(2, 4))),
    MapCase(
        "kronecker pattern, moving, hybrid",
        lambda dtype: _on_grid(Kronecker((0, 2), 2), dtype, grid=(3, 4), users=2, snapshots=3, hybrid=True),
    ),
    MapCase("DMRS of antennas", lambda dtype: _of_antennas(DMRS((0, 1, 2)), dtype)),
    MapCase("DMRS of type 2", lambda dtype: _of_antennas(DMRS((0, 3), 2), dtype)),
    MapCase("DMRS of two symbols, four users", lambda dtype: _on_grid(DOUBLE, dtype, grid=(4, 12), users=4)),
    MapCase("DMRS, every symbol a snapshot", lambda dtype: _of_antennas(DMRS((0, 1), first=3), dtype, snapshots=6)),
    MapCase(
        "DMRS of antennas, hybrid",
        lambda dtype: GridMap.of(DMRS((0, 2)).on(4, 12), None, _normal((4, 1, 3, 2), dtype)),
    ),
    MapCase("irregular", lambda dtype: _irregular(dtype, snapshots=1)),
    MapCase("irregular, moving", lambda dtype: _irregular(dtype, snapshots=2)),
    MapCase(
        "comb through kronecker with delays",
        lambda dtype: (
            _on_grid(Comb(2, seed=1), dtype, grid=(1, 3), hybrid=True)
            @ KroneckerMap(_normal((3, 4), dtype), _normal((3, 5), dtype, seed=8), _normal((3, 4), dtype, seed=9))
        ),
    ),
    MapCase(
        "irregular through kronecker with delays",
        lambda dtype: (
            _irregular(dtype, snapshots=1)
            @ KroneckerMap(_normal((3, 2), dtype), _normal((3, 3), dtype, seed=8), _normal((7, 4), dtype, seed=9))
        ),
    ),
]

CASES = [
    *GRID_CASES,
    MapCase("beamforming, whitened", lambda dtype: BeamformingMap.of(*_beams(dtype))),
    MapCase("beamforming, coloured", lambda dtype: BeamformingMap.of(*_beams(dtype), whiten=False)),
    MapCase("beamforming, digital", lambda dtype: BeamformingMap.of(_beams(dtype)[0], antennas=3)),
    MapCase("beamforming, wideband", lambda dtype: BeamformingMap.of(*_beams(dtype), subcarriers=3)),
    MapCase(
        "beamforming, digital wideband",
        lambda dtype: BeamformingMap.of(_beams(dtype)[0], antennas=2, subcarriers=3),
    ),
    MapCase("kronecker", _kronecker),
    MapCase("delay modes", lambda dtype: ModesMap(_normal((5, 3), dtype, seed=10), 4)),
    MapCase("kronecker with delays", lambda dtype: _kronecker(dtype, wideband=True)),
    MapCase("learned kronecker", lambda dtype: LearnedKronecker(_kronecker(dtype))),
    MapCase(
        "learned kronecker with delays",
        lambda dtype: LearnedKronecker(_kronecker(dtype, wideband=True)),
    ),
    MapCase(
        "beamforming through kronecker",
        lambda dtype: (
            BeamformingMap.of(_normal((4, 4, 6), dtype), antennas=2)
            @ KroneckerMap(_normal((2, 5), dtype), _normal((4, 6), dtype))
        ),
    ),
    MapCase(
        "scaled beamforming through kronecker, hybrid",
        lambda dtype: (
            ScaledMap(BeamformingMap.of(*_beams(dtype)), torch.tensor([0.5, 1.0, 2.0, 3.0], dtype=dtype.to_real()))
            @ KroneckerMap(_normal((4, 3), dtype), _normal((5, 6), dtype))
        ),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("check", MAP_CHECKS, ids=lambda check: check.__name__)
def test_map_contract(check: Callable[[MapCase, torch.dtype], None], case: MapCase) -> None:
    check(case, torch.complex128)


@pytest.mark.parametrize("case", GRID_CASES[:-2], ids=lambda case: case.name)
def test_a_front_end_with_the_data_of_other_samples_is_theirs(case: MapCase) -> None:
    whole, index = case.make(torch.complex128), torch.tensor([3, 1])
    part = whole.with_tensors([tensor[index] if whole.batch else tensor for tensor in whole.tensors()])
    x = _normal((2, whole.shape[1]), torch.complex128)
    assert torch.equal(part.apply(x), whole.select(index).apply(x))
