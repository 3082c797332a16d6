"""Covariances of sparse codes on a grid of phase ramps, for arrays of any polarisation and any number of subcarriers."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from chanest.arrays import Array
from chanest.covariances.lag_layout import lag_between
from chanest.dictionaries import KroneckerMap, Link
from vlista_core.gaussian import Covariance
from vlista_core.linops import DenseMap


@dataclass(frozen=True, eq=False)
class GridCovariance(Covariance):
    """R = ΨΓΨᴴ for variances γ of the atoms of a grid of phase ramps; any polarisations and subcarriers.

    The products ψ_p ψ_p'* depend on how far apart two antennas are, not on where. So R is a table of lags looked up n² times,
    and all ψ_jᴴMψ_j come from the sums of M over each lag: ΦΨ, with its many atoms, is not needed.
    """

    atoms: Tensor
    """γ: [batch, atoms], real."""
    table: KroneckerMap
    """From γ to the covariance at each lag: [lags, atoms]."""
    lag: Tensor
    """Which lag the antennas p and p' have: [1, n²]."""

    @classmethod
    def of(cls, atoms: Tensor, link: Link, dictionary: KroneckerMap) -> "GridCovariance":
        """For variances [batch, atoms] of a dictionary made for `link`."""
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
        return cls(atoms, KroneckerMap(rx, tx, delay[0] if delay else None), lag.reshape(1, -1).to(device))

    @property
    def length(self) -> int:
        return math.isqrt(self.lag.shape[1])

    @property
    def dtype(self) -> torch.dtype:
        return self.table.dtype

    def apply(self, x: Tensor) -> Tensor:
        self._check_input("x", x, self.length)
        return DenseMap(self.materialize()).apply(x)

    def mixture(self, weights: Tensor) -> "GridCovariance":
        return replace(self, atoms=weights @ self.atoms)

    def materialize(self) -> Tensor:
        values = self.table.apply(self.atoms.to(self.dtype))
        return values.index_select(1, self.lag[0]).reshape(-1, self.length, self.length)

    def quadratic_forms(self, matrix: Tensor) -> Tensor:
        """ψ_jᴴMψ_j of every atom, for Hermitian M: [batch, n, n] -> [batch, atoms], real."""
        sums = torch.zeros(len(matrix), self.table.shape[0], dtype=matrix.dtype, device=matrix.device)
        return self.table.adjoint(sums.index_add(1, self.lag[0], matrix.flatten(1))).real


def _array_lags(array: Array) -> Tensor:
    """A number for the polarisations and the distance of every two ports: [ports, ports]."""
    polarisations = len(array.slants)
    pair = torch.arange(polarisations**2).reshape(polarisations, -1)
    lag = lag_between(array)
    return (pair[:, None, :, None] * (lag.max() + 1) + lag[:, None]).reshape(array.ports, array.ports)
