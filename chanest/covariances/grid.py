"""Covariances of sparse codes on a grid of phase ramps, for arrays of any polarisation and any number of subcarriers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from chanest.arrays import Array
from chanest.covariances.lags import lag_between
from chanest.dictionaries import KroneckerMap, Link
from vlista_core.gaussian import Covariance
from vlista_core.linops import DenseMap, LinearMap


@dataclass(frozen=True, eq=False)
class GridLags(LinearMap):
    """The products ψ_p ψ_p'* of a grid of phase ramps: variances of the atoms [batch, atoms] -> covariances at lags.

    They depend on how far apart two antennas are, not on where. So R = ΨΓΨᴴ is a table of lags looked up n² times, and all
    ψ_jᴴMψ_j come from the sums of M over each lag: ΦΨ, with its many atoms, is not needed.
    """

    table: KroneckerMap
    """[lags, atoms]."""
    lag: Tensor
    """Which lag the antennas p and p' have: [n²]."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.table.shape

    def apply(self, x: Tensor) -> Tensor:
        return self.table.apply(x)

    def adjoint(self, y: Tensor) -> Tensor:
        return self.table.adjoint(y)

    def materialize(self) -> Tensor:
        return self.table.materialize()

    @classmethod
    def of(cls, link: Link, dictionary: KroneckerMap) -> GridLags:
        """The lags of a dictionary made for `link`."""
        pairs = [_array_lags(link.tx), _array_lags(link.rx)]
        if dictionary.delay is not None:
            subcarrier = torch.arange(link.subcarriers)
            pairs.insert(0, subcarrier[:, None] - subcarrier + link.subcarriers - 1)
        device = dictionary.device
        lag, tables = torch.zeros(1, 1, dtype=torch.int64), []
        for pair, factor in zip(pairs, dictionary.factors, strict=True):
            distinct, place = torch.unique(pair, return_inverse=True)
            lag = (lag[:, None, :, None] * len(distinct) + place[:, None, :]).reshape(len(lag) * len(place), -1)
            example = torch.zeros(len(distinct), dtype=torch.int64)
            example[place.flatten()] = torch.arange(place.numel())
            first, second = ((example // len(place)).to(device), (example % len(place)).to(device))
            tables.append(factor[first] * factor[second].conj())
        *delay, tx, rx = tables
        return cls(KroneckerMap(rx, tx, delay[0] if delay else None), lag.flatten().to(device))

    def matrix(self, variances: Tensor) -> Tensor:
        """R = ΨΓΨᴴ. variances: [batch, atoms] -> [batch, n, n]."""
        values = self.apply(variances.to(self.dtype))
        size = math.isqrt(len(self.lag))
        return values.index_select(1, self.lag).reshape(-1, size, size)

    def quadratic_forms(self, matrix: Tensor) -> Tensor:
        """ψ_jᴴMψ_j of every atom, for Hermitian M: [batch, n, n] -> [batch, atoms], real."""
        sums = torch.zeros(len(matrix), self.shape[0], dtype=matrix.dtype, device=matrix.device)
        return self.adjoint(sums.index_add(1, self.lag, matrix.flatten(1))).real


@dataclass(frozen=True, eq=False)
class GridCovariance(Covariance):
    """R = ΨΓΨᴴ for variances γ of the atoms of a grid; any polarisations and subcarriers."""

    atoms: Tensor
    """γ: [batch, atoms], real."""
    lags: GridLags

    @property
    def length(self) -> int:
        return math.isqrt(len(self.lags.lag))

    @property
    def dtype(self) -> torch.dtype:
        return self.lags.dtype

    def apply(self, x: Tensor) -> Tensor:
        self._check_input("x", x, self.length)
        return DenseMap(self.materialize()).apply(x)

    def mixture(self, weights: Tensor) -> GridCovariance:
        return GridCovariance(weights @ self.atoms, self.lags)

    def materialize(self) -> Tensor:
        return self.lags.matrix(self.atoms)


def _array_lags(array: Array) -> Tensor:
    """A number for the polarisations and the distance of every two ports: [ports, ports]."""
    polarisations = len(array.slants)
    pair = torch.arange(polarisations**2).reshape(polarisations, -1)
    lag = lag_between(array)
    return (pair[:, None, :, None] * (lag.max() + 1) + lag[:, None]).reshape(array.ports, array.ports)
