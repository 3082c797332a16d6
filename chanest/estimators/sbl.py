"""Sparse Bayesian learning on a grid of angles: x_j ~ CN(0, γ_j), γ by maximum likelihood of y, all at once.

y ~ CN(0, C), C = ΦRΦᴴ + σ²I, R = ΨΓΨᴴ. With a_j = Φψ_j, q_j = a_jᴴC⁻¹y and s_j = a_jᴴC⁻¹a_j the posterior mean is γ_j q_j,
its variance γ_j - γ_j² s_j, and MacKay's fixed point γ_j ← |E x_j|²/(1 - Var x_j/γ_j) is γ_j |q_j|²/s_j.

Neighbours are coupled (after Fang, Shen, Li & Li 2015): between steps each γ_j gives a share to the next angles of its grid.
A cluster of a channel is a patch of angles and lies off the grid; with γ_j apart from each other the fixed point breaks it
into a few spikes that also fit the noise. Without coupling (`coupling` 0) it is the plain method.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from chanest.arrays import Array
from chanest.dictionaries import KroneckerMap, grid_points
from chanest.estimators.grid import Choices, GridEstimator, Link, Settings
from vlista_core.checkpoint import register_model
from vlista_core.estimate import Estimate, Measurement
from vlista_core.linalg import cholesky

_LEAST_NOISE = 1e-5
_LONGEST = 4096


@register_model
class SBL(GridEstimator):
    """SBL with σ² = level; gives the posterior variance of every entry of the channel.

    Works in units of the root mean square of y, with σ² at least 1e-5 of it. Few iterations from equal γ are a regulariser
    of their own: their number is tuned like the rest.
    """

    name = "sbl"
    summary = "sparse Bayesian learning on an angular grid, neighbouring angles coupled"
    forms_product = True
    defaults: ClassVar[Settings] = {
        "oversampling": 2.0,
        "noise_factor": 2.0,
        "model_error": 0.0,
        "coupling": 0.15,
        "iterations": 10,
    }
    choices: ClassVar[Choices] = {
        "noise_factor": (1.0, 1.5, 2.0, 2.5, 3.0, 4.0),
        "coupling": (0.0, 0.1, 0.15, 0.2, 0.3, 0.4),
        "iterations": (6, 10, 15, 25),
        "oversampling": (1.5, 2.0, 2.5, 3.0),
        "model_error": (0.0, 1e-3, 1e-2),
    }
    chunk_bytes = 2**25

    def __init__(self, link: Link, settings: Settings) -> None:
        if link.signal_length > _LONGEST:
            raise ValueError(
                f"sbl works with the covariance of all entries of vec(H), at most {_LONGEST} of them, got "
                f"{link.signal_length}; use somp or sw-omp for many subcarriers"
            )
        super().__init__(link, settings)

    def solve(self, measured: Measurement, dictionary: KroneckerMap) -> Estimate:
        power = measured.y.abs().square().mean(1)
        unit = torch.where(power > 0, power, 1.0)
        y = measured.y / unit.sqrt()[:, None]
        noise = (self.level(measured) / unit).clamp_min(_LEAST_NOISE)
        phi = measured.phi.materialize().expand(len(y), -1, -1)
        lags = Lags.of(self.link, dictionary)
        energy = lags.quadratic_forms(phi.mH @ phi).sum(1)
        variances = (y.shape[1] / energy)[:, None].expand(-1, dictionary.shape[1])
        for _ in range(int(self.settings["iterations"])):
            precision = _precision(phi, lags.covariance(variances), noise)
            quality = _correlations(y, phi, precision, dictionary).abs().square()
            sparsity = lags.quadratic_forms(phi.mH @ precision @ phi)
            variances = variances * quality / sparsity.clamp_min(torch.finfo(sparsity.dtype).tiny)
            variances = self._coupled(variances)
        covariance = lags.covariance(variances)
        precision = _precision(phi, covariance, noise)
        code = unit.sqrt()[:, None] * variances * _correlations(y, phi, precision, dictionary)
        seen = phi @ covariance
        explained = (torch.view_as_real(precision @ seen) * torch.view_as_real(seen)).sum((1, 3))
        variance = (covariance.diagonal(dim1=-2, dim2=-1).real - explained).clamp_min(0)
        return Estimate(dictionary.apply(code), code, unit[:, None] * variance)

    def _coupled(self, variances: Tensor) -> Tensor:
        """γ_j + β(γ_j-1 + γ_j+1), over 1 + 2β, along each axis of both arrays. The grids go round. [batch, atoms]."""
        share = self.settings["coupling"]
        field = variances.reshape(len(variances), -1, *self._axes(self.link.tx), *self._axes(self.link.rx))
        for axis in (3, 4, 6, 7):
            field = (field + share * (field.roll(1, axis) + field.roll(-1, axis))) / (1 + 2 * share)
        return field.reshape(variances.shape)

    def _axes(self, array: Array) -> tuple[int, int, int]:
        """Polarisations and grid points along columns and rows, as the atoms are counted."""
        across, down = (grid_points(size, self.settings["oversampling"]) for size in (array.columns, array.rows))
        return len(array.slants), across, down


@dataclass(frozen=True)
class Lags:
    """The products ψ_p ψ_p'* of a grid of phase ramps: they depend on how far apart two antennas are, not on where.

    So R = ΨΓΨᴴ is a table of lags looked up n² times, and all ψ_jᴴMψ_j come from the sums of M over each lag: ΦΨ, with its
    many atoms, is not needed.
    """

    lag: Tensor
    """[n²]: which lag the antennas p and p' have."""
    table: KroneckerMap
    """[lags, atoms]."""

    @classmethod
    def of(cls, link: Link, dictionary: KroneckerMap) -> Self:
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
        return cls(lag.flatten().to(device), KroneckerMap(rx, tx, delay[0] if delay else None))

    def covariance(self, variances: Tensor) -> Tensor:
        """R = ΨΓΨᴴ. variances: [batch, atoms] -> [batch, n, n]."""
        values = self.table.apply(variances.to(self.table.dtype))
        size = math.isqrt(len(self.lag))
        return values.index_select(1, self.lag).reshape(-1, size, size)

    def quadratic_forms(self, matrix: Tensor) -> Tensor:
        """ψ_jᴴMψ_j of every atom, for Hermitian M: [batch, n, n] -> [batch, atoms], real."""
        sums = torch.zeros(len(matrix), self.table.shape[0], dtype=matrix.dtype, device=matrix.device)
        return self.table.adjoint(sums.index_add(1, self.lag, matrix.flatten(1))).real


def _array_lags(array: Array) -> Tensor:
    """A number for the polarisations and the distance of every two ports: [ports, ports]."""
    port = torch.arange(array.ports)
    slant, column, row = port // array.elements, port // array.rows % array.columns, port % array.rows
    across = column[:, None] - column + array.columns - 1
    down = row[:, None] - row + array.rows - 1
    return ((slant[:, None] * 2 + slant) * (2 * array.columns) + across) * (2 * array.rows) + down


def _precision(phi: Tensor, covariance: Tensor, noise: Tensor) -> Tensor:
    """C⁻¹ of C = ΦRΦᴴ + σ²I. phi: [batch, m, n], covariance: [batch, n, n], noise: [batch] -> [batch, m, m]."""
    total = phi @ covariance @ phi.mH
    total.diagonal(dim1=-2, dim2=-1).add_(noise[:, None])
    return torch.cholesky_inverse(cholesky(total))


def _correlations(y: Tensor, phi: Tensor, precision: Tensor, dictionary: KroneckerMap) -> Tensor:
    """AᴴC⁻¹y: [batch, atoms]."""
    weighted = (y[:, None, :].conj() @ precision) @ phi
    return dictionary.adjoint(weighted[:, 0].conj())
