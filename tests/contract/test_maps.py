"""Every map of vlista_core meets the map contract, in real and complex double precision."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from vlista_core.dictionaries import LearnedDictionary, dct, wavelet
from vlista_core.linops import DenseMap, GroupedMap, IdentityMap, LinearMap, ScaledMap
from vlista_core.testing import MAP_CHECKS, MapCase, SpyMap
from vlista_core.testing.maps import check_dead_columns


def _normal(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 7) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def _image_basis(make: Callable[[torch.dtype], LinearMap]) -> Callable[[torch.dtype], LinearMap]:
    def build(dtype: torch.dtype) -> LinearMap:
        return DenseMap(make(torch.float64).materialize()[0].to(dtype), rows_orthonormal=True)

    return build


def _grouped(dtype: torch.dtype) -> LinearMap:
    return GroupedMap(_normal((2, 7, 11), dtype), 2)


def _dense(*shape: int) -> Callable[[torch.dtype], LinearMap]:
    return lambda dtype: DenseMap(_normal(shape, dtype))


def _product(*factors: Callable[[torch.dtype], LinearMap]) -> Callable[[torch.dtype], LinearMap]:
    return lambda dtype: functools.reduce(operator.matmul, (factor(dtype) for factor in factors))


def _scaled(inner: Callable[[torch.dtype], LinearMap]) -> Callable[[torch.dtype], LinearMap]:
    """Four samples, each in a unit of its own."""
    return lambda dtype: ScaledMap(inner(dtype), torch.tensor([0.5, 1.0, 2.0, 3.0], dtype=dtype.to_real()))


CASES = [
    MapCase("dense shared", _dense(7, 11)),
    MapCase("dense per sample", _dense(4, 7, 11)),
    MapCase("identity", lambda dtype: IdentityMap(9, dtype)),
    MapCase("composed", _product(_dense(4, 7, 11), _dense(11, 13))),
    MapCase("composed twice", _product(_dense(5, 7), _dense(4, 7, 6), _dense(6, 8))),
    MapCase("learned", lambda dtype: LearnedDictionary(_normal((7, 11), dtype))),
    MapCase("learned, scaled", lambda dtype: LearnedDictionary(_normal((7, 11), dtype), scaled=True)),
    MapCase("dct", _image_basis(lambda dtype: dct(5, 6, dtype))),
    MapCase("wavelet", _image_basis(lambda dtype: wavelet(12, 9, dtype=dtype))),
    MapCase("through a basis", _product(_dense(4, 7, 30), _image_basis(lambda dtype: dct(5, 6, dtype)))),
    MapCase("grouped", lambda dtype: GroupedMap(_normal((2, 7, 11), dtype), 2)),
    MapCase(
        "grouped after a shared one",
        lambda dtype: GroupedMap(_normal((2, 7, 11), dtype), 2) @ DenseMap(_normal((11, 9), dtype)),
    ),
    MapCase("scaled", _scaled(_dense(4, 7, 11))),
    MapCase("scaled, shared", _scaled(_dense(7, 11))),
    MapCase("spy", lambda dtype: SpyMap(DenseMap(_normal((4, 7, 11), dtype)))),
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=["real", "complex"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("check", MAP_CHECKS, ids=lambda check: check.__name__)
def test_map_contract(check: Callable[[MapCase, torch.dtype], None], case: MapCase, dtype: torch.dtype) -> None:
    check(case, dtype)


@dataclass(frozen=True, eq=False)
class _Naive(DenseMap):
    """Takes every norm for what it is, as a product too."""

    def __matmul__(self, other: LinearMap) -> LinearMap:
        return _Naive(self.materialize() @ other.materialize())

    def column_norms(self) -> torch.Tensor:
        return self._column_norms()


def test_the_checks_can_fail() -> None:
    with pytest.raises(AssertionError, match="norms of live and dead columns"):
        check_dead_columns(MapCase("naive", lambda dtype: _Naive(_normal((4, 7, 11), dtype))), torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_column_is_dead_in_the_precision_of_its_map(dtype: torch.dtype) -> None:
    matrix = torch.eye(4, dtype=dtype)
    matrix[1, 1], matrix[2, 2] = 1e-7, 1e-3
    dead = DenseMap(matrix).column_norms()[0] == 0
    assert dead.tolist() == [False, dtype == torch.float32, False, False]
    assert bool((DenseMap(torch.zeros(3, 4, dtype=dtype)).column_norms() == 0).all())
