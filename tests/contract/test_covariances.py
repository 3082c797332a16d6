"""Every kind of covariance meets the covariance contract and, being a linear map, the map contract."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from chanest.arrays import Array, upa
from chanest.covariances.angular import AngularCovariance, AngularGrid
from chanest.covariances.columns import ColumnCovariance, MainDirections
from chanest.covariances.delay_angle import DelayAngleCovariance
from chanest.covariances.delays import DelayCovariance
from chanest.covariances.directions import DirectionCovariance, Directions
from chanest.covariances.grid import GridCovariance
from chanest.covariances.kronecker import KroneckerCovariance
from chanest.covariances.lag_layout import LagLayout
from chanest.covariances.lags import LagCovariance
from chanest.covariances.modes import DecoupledCovariance, ModeCovariance, SeparableCovariance
from chanest.covariances.offgrid import PathCovariance, Paths
from chanest.covariances.slots import SlotColumns, SlotCovariance
from chanest.dictionaries import Link, angular_dictionary
from chanest.frontend import BeamformingMap, GridMap
from chanest.pilots import Pilots
from vlista_core.gaussian import Covariance, DenseCovariance, WhiteCovariance
from vlista_core.linops import LinearMap
from vlista_core.testing import COVARIANCE_CHECKS, MAP_CHECKS, CovarianceCase, MapCase
from vlista_core.testing.covariances import check_blind, check_scale

BATCH, PILOTS = 3, 4
TX, RX = upa(2, 3), upa(1, 2)
DUAL = upa(1, 2, polarization="cross")
FREQUENCIES = (0.0, 1e5, 2e5)
LAYOUT = LagLayout(RX, TX)


def _normal(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def _positive(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    return 0.1 + torch.rand(shape, dtype=dtype.to_real(), generator=torch.Generator().manual_seed(seed))


def _definite(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    factor = _normal((*shape, shape[-1]), dtype, seed)
    return factor @ factor.mH


def _directions(dtype: torch.dtype) -> Directions:
    departing, arriving = _normal((5, 2), dtype.to_real(), 1), _normal((4, 2), dtype.to_real(), 2)
    return Directions.of(departing, arriving, LAYOUT)


def _lags(dtype: torch.dtype, batch: int = BATCH) -> LagCovariance:
    return DirectionCovariance(_positive((batch, 20), dtype, 3), _directions(dtype)).as_lags


def _dual_lags(dtype: torch.dtype) -> LagCovariance:
    """One product of polarisations and places."""
    layout = LagLayout(DUAL, replace(TX, polarization="VH"))
    of_places = _lags(dtype).materialize().reshape(BATCH, TX.elements, RX.elements, TX.elements, RX.elements)
    both = _definite((BATCH, 4), dtype, 7).reshape(BATCH, 2, 2, 2, 2)
    whole = torch.einsum("bacde,btrsu->batcrdseu", both, of_places)
    return LagCovariance(layout.of_matrix(whole.reshape(BATCH, layout.tx.ports * DUAL.ports, -1)), layout)


def _kronecker(dtype: torch.dtype, *, delay: bool) -> KroneckerCovariance:
    across = _definite((BATCH, 2, len(FREQUENCIES)), dtype, 6) if delay else None
    return KroneckerCovariance(
        _definite((BATCH, 2, TX.ports), dtype, 4), _definite((BATCH, 2, RX.ports), dtype, 5), across
    )


def _decoupled(dtype: torch.dtype) -> DecoupledCovariance:
    return DecoupledCovariance(_kronecker(dtype, delay=True))


def _separable(dtype: torch.dtype) -> SeparableCovariance:
    return SeparableCovariance(_positive((1, len(FREQUENCIES)), dtype, 14), _lags(dtype))


def _in_modes(within: Covariance, dtype: torch.dtype) -> ModeCovariance:
    """On five subcarriers, of which the covariance uses three directions."""
    return ModeCovariance(torch.linalg.qr(_normal((5, len(FREQUENCIES)), dtype, 15)).Q[None], within)


def _slot(dtype: torch.dtype, rank: int) -> SlotCovariance:
    """Four snapshots of three subcarriers, two modes of each axis and two antennas."""
    time, delay = (torch.linalg.qr(_normal((size, 2), dtype, 16)).Q for size in (4, 3))
    return SlotCovariance(SlotColumns(time, delay, _normal((8, rank), dtype, 17)))


def _grid_pilots(dtype: torch.dtype, antennas: int = 1) -> LinearMap:
    """Two streams that take the subcarriers of the second and the last symbol in turn."""
    values = torch.zeros(2, 4, 3, dtype=dtype)
    values[0, 1::2, 0], values[1, 1::2, 1] = 1.0, 2.0
    return GridMap.of(Pilots(values, (values != 0).any(0)), antennas=antennas, snapshots=4)


def _delays(dtype: torch.dtype, batch: int = BATCH) -> DelayCovariance:
    """Four snapshots of three subcarriers, five delays, two ports and two antennas."""
    space = _definite((1, 2), dtype, 20)
    across = _normal((1, len(FREQUENCIES), 5), dtype, 19)
    return DelayCovariance(_definite((1, 4), dtype, 18), across, _positive((batch, 2, 5), dtype, 21), space)


def _columns(dtype: torch.dtype, *, count: int, subcarriers: int) -> ColumnCovariance:
    delay = _normal((BATCH, subcarriers, count), dtype, 7)
    return ColumnCovariance(delay, _normal((BATCH, TX.ports * RX.ports, count), dtype, 8))


def _grid(dtype: torch.dtype, rx: Array, frequencies: tuple[float, ...] | None) -> GridCovariance:
    link = Link(rx, TX, frequencies)
    psi = angular_dictionary(rx, TX, frequencies, oversampling=1.5).cast(dtype)
    return GridCovariance.of(_positive((BATCH, psi.shape[1]), dtype, 9), link, psi)


def _angular(dtype: torch.dtype, rx: Array) -> AngularCovariance:
    grid = AngularGrid(rx, TX, 1.5, dtype)
    return AngularCovariance(_positive((BATCH, grid.atoms), dtype, 9), grid)


def _delay_angle(dtype: torch.dtype, batch: int = BATCH) -> DelayAngleCovariance:
    """Three modes, four delays."""
    grid = AngularGrid(RX, TX, 1.5, dtype)
    return DelayAngleCovariance(_normal((batch, 3, 4), dtype, 22), _positive((batch, 4, grid.atoms), dtype, 23), grid)


def _paths(dtype: torch.dtype, rx: Array) -> PathCovariance:
    real = dtype.to_real()
    paths = Paths(_normal((BATCH, 3, 2), real, 10), _normal((BATCH, 3, 2), real, 11), rx, TX)
    signals = paths.signals()
    return PathCovariance(_angular(dtype, rx), _positive(signals.shape[:3], dtype, 12), signals)


def _beams(dtype: torch.dtype, *, chains: int = 0, subcarriers: int = 1) -> LinearMap:
    transmit = _normal((BATCH, TX.ports, PILOTS), dtype, 12)
    combiner = _normal((BATCH, PILOTS, RX.ports, chains), dtype, 13) if chains else None
    return BeamformingMap.of(transmit, combiner, antennas=RX.ports, subcarriers=subcarriers)


def _digital(dtype: torch.dtype) -> LinearMap:
    return _beams(dtype)


def _hybrid(dtype: torch.dtype) -> LinearMap:
    return _beams(dtype, chains=1)


def _wideband(dtype: torch.dtype) -> LinearMap:
    return _beams(dtype, subcarriers=len(FREQUENCIES))


def _wideband_hybrid(dtype: torch.dtype) -> LinearMap:
    return _beams(dtype, chains=1, subcarriers=len(FREQUENCIES))


def _wider(dtype: torch.dtype) -> LinearMap:
    return _beams(dtype, subcarriers=5)


def _wider_hybrid(dtype: torch.dtype) -> LinearMap:
    return _beams(dtype, chains=1, subcarriers=5)


NARROW, WIDE, WIDER = (_digital, _hybrid), (_wideband, _wideband_hybrid), (_wider, _wider_hybrid)
CASES = [
    CovarianceCase("dense", lambda dtype: DenseCovariance(_definite((BATCH, 12), dtype, 1)), NARROW),
    CovarianceCase("dense, shared", lambda dtype: DenseCovariance(_definite((1, 12), dtype, 1)), NARROW),
    CovarianceCase("white", lambda dtype: WhiteCovariance(_positive((1,), dtype, 1).to(dtype), 12), NARROW),
    CovarianceCase("lags", _lags, NARROW),
    CovarianceCase("lags, shared", lambda dtype: _lags(dtype, 1), NARROW),
    CovarianceCase("lags, dual polarised", _dual_lags),
    CovarianceCase(
        "directions", lambda dtype: DirectionCovariance(_positive((BATCH, 20), dtype, 3), _directions(dtype)), NARROW
    ),
    CovarianceCase("kronecker", lambda dtype: _kronecker(dtype, delay=False), NARROW),
    CovarianceCase("kronecker with delays", lambda dtype: _kronecker(dtype, delay=True), WIDE),
    CovarianceCase("modes apart", _decoupled, WIDE),
    CovarianceCase("modes alike", _separable, WIDE),
    CovarianceCase("in modes", lambda dtype: _in_modes(_kronecker(dtype, delay=True), dtype), WIDER),
    CovarianceCase("in modes, apart", lambda dtype: _in_modes(_decoupled(dtype), dtype), WIDER),
    CovarianceCase("in modes, alike", lambda dtype: _in_modes(_separable(dtype), dtype), WIDER),
    CovarianceCase("few columns", lambda dtype: _columns(dtype, count=3, subcarriers=1), NARROW, dense=False),
    CovarianceCase("many columns", lambda dtype: _columns(dtype, count=30, subcarriers=1), NARROW, dense=False),
    CovarianceCase("few columns with delays", lambda dtype: _columns(dtype, count=7, subcarriers=3), WIDE, dense=False),
    CovarianceCase(
        "many columns with delays", lambda dtype: _columns(dtype, count=50, subcarriers=3), WIDE, dense=False
    ),
    CovarianceCase(
        "main directions",
        lambda dtype: MainDirections(_normal((1, 12, 3), dtype, 1), torch.full((1,), 0.2, dtype=dtype)),
        NARROW,
    ),
    CovarianceCase("slot of few columns", lambda dtype: _slot(dtype, 3), (_grid_pilots,)),
    CovarianceCase("slot of many columns", lambda dtype: _slot(dtype, 8), (_grid_pilots,)),
    CovarianceCase("delays", _delays, (lambda dtype: _grid_pilots(dtype, 2),)),
    CovarianceCase("delays, shared", lambda dtype: _delays(dtype, 1), (lambda dtype: _grid_pilots(dtype, 2),)),
    CovarianceCase("grid", lambda dtype: _grid(dtype, RX, None), NARROW),
    CovarianceCase("grid with delays", lambda dtype: _grid(dtype, RX, FREQUENCIES), WIDE),
    CovarianceCase("grid, dual polarised", lambda dtype: _grid(dtype, DUAL, None)),
    CovarianceCase("angles", lambda dtype: _angular(dtype, RX), NARROW),
    CovarianceCase("angles, dual polarised", lambda dtype: _angular(dtype, DUAL)),
    CovarianceCase("delays and angles", _delay_angle, WIDE),
    CovarianceCase("delays and angles, shared", lambda dtype: _delay_angle(dtype, 1), WIDE),
    CovarianceCase("paths off the grid", lambda dtype: _paths(dtype, RX), NARROW),
    CovarianceCase("paths off the grid, dual polarised", lambda dtype: _paths(dtype, DUAL)),
]


@pytest.mark.parametrize("check", COVARIANCE_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_covariance_contract(case: CovarianceCase, check: Callable[[CovarianceCase, torch.dtype], None]) -> None:
    check(case, torch.complex128)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("check", COVARIANCE_CHECKS, ids=lambda check: check.__name__)
def test_real_covariances(dtype: torch.dtype, check: Callable[[CovarianceCase, torch.dtype], None]) -> None:
    check(CovarianceCase("dense", lambda kind: DenseCovariance(_definite((BATCH, 12), kind, 1))), dtype)


MAPS: dict[str, Callable[[torch.dtype], LinearMap]] = {
    **{case.name: case.make for case in CASES},
    "directions as a dictionary": _directions,
    "lags of directions": lambda dtype: _directions(dtype).lags,
    "lags of a grid": lambda dtype: _grid(dtype, RX, None).table,
}


@pytest.mark.parametrize("check", MAP_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", MAPS)
def test_map_contract(name: str, check: Callable[[MapCase, torch.dtype], None]) -> None:
    check(MapCase(name, MAPS[name]), torch.complex128)


def test_every_kind_of_covariance_is_checked() -> None:
    def kinds(cls: type) -> set[type]:
        below: list[type] = cls.__subclasses__()
        return {cls, *(kind for each in below for kind in kinds(each))}

    checked = {type(case.make(torch.complex128)) for case in CASES}
    shipped = {kind for kind in kinds(Covariance) if kind.__module__ != __name__}
    assert {kind for kind in shipped if not getattr(kind, "__abstractmethods__", None)} == checked


@dataclass(frozen=True, eq=False)
class _Jittered(DenseCovariance):
    """Adds a jitter that has units, and so is wrong for small signals."""

    def seen(self, phi: LinearMap) -> Tensor:
        return super().seen(phi) + 1e-6 * torch.eye(phi.shape[0], dtype=phi.dtype)

    def mixture(self, weights: Tensor) -> _Jittered:
        return _Jittered(super().mixture(weights).materialize())


@dataclass(frozen=True, eq=False)
class _JitteredColumns(ColumnCovariance):
    """The same jitter where there are few columns: takes for measured what was not."""

    def gram_seen(self, phi: LinearMap) -> Tensor:
        gram = super().gram_seen(phi)
        return gram + 1e-6 * torch.eye(gram.shape[1], dtype=gram.dtype)


def test_the_checks_can_fail() -> None:
    dense = CovarianceCase("jittered", lambda dtype: _Jittered(_definite((BATCH, 12), dtype, 1)))
    with pytest.raises(AssertionError, match="1e-06 times as large: mean differs"):
        check_scale(dense, torch.complex128)
    few = _columns(torch.complex128, count=3, subcarriers=1)
    columns = CovarianceCase("jittered", lambda dtype: _JitteredColumns(few.delay, few.space), NARROW, dense=False)
    with pytest.raises(AssertionError, match="of zeros: variance differs"):
        check_blind(columns, torch.complex128)
