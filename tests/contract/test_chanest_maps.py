"""The maps of chanest meet the map contract in complex double precision."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from chanest.covariances.modes import ModesMap
from chanest.dictionaries import KroneckerMap, LearnedKronecker
from chanest.frontend import BeamformingMap
from vlista_core.testing import MAP_CHECKS, MapCase


def _normal(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 7) -> Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def _beams(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return _normal((4, 5, 6), dtype), _normal((4, 6, 4, 2), dtype, seed=8)


def _kronecker(dtype: torch.dtype, *, wideband: bool = False) -> KroneckerMap:
    delay = _normal((3, 4), dtype, seed=9) if wideband else None
    return KroneckerMap(_normal((2, 5), dtype), _normal((4, 6), dtype, seed=8), delay)


CASES = [
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
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("check", MAP_CHECKS, ids=lambda check: check.__name__)
def test_map_contract(check: Callable[[MapCase, torch.dtype], None], case: MapCase) -> None:
    check(case, torch.complex128)
