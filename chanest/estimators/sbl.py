"""Sparse Bayesian learning on a grid of angles: x_j ~ CN(0, γ_j), γ by maximum likelihood of y, all at once.

y ~ CN(0, C), C = AΓAᴴ + σ²I, A = ΦΨ. With q_j = a_jᴴC⁻¹y and s_j = a_jᴴC⁻¹a_j the posterior mean is γ_j q_j, its variance
γ_j - γ_j² s_j, and MacKay's fixed point γ_j ← |E x_j|²/(1 - Var x_j/γ_j) is γ_j |q_j|²/s_j.

Neighbours are coupled (after Fang, Shen, Li & Li 2015): between steps each γ_j gives a share to the next angles of its grid.
A cluster of a channel is a patch of angles and lies off the grid; with γ_j apart from each other the fixed point breaks it
into a few spikes that also fit the noise. Without coupling (`coupling` 0) it is the plain method.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from chanest.arrays import Array
from chanest.dictionaries import KroneckerMap, grid_points
from chanest.estimators.grid import Choices, GridEstimator, Settings
from vlista_core.checkpoint import register_model
from vlista_core.estimate import Estimate, Measurement
from vlista_core.linalg import cholesky

_LEAST_NOISE = 1e-5


@register_model
class SBL(GridEstimator):
    """SBL with σ² = level; gives the posterior variance of every entry of the channel.

    Works in units of the root mean square of y, with σ² at least 1e-5 of it. Few iterations from equal γ are a regulariser
    of their own: their number is tuned like the rest.
    """

    name = "sbl"
    summary = "sparse Bayesian learning on an angular grid, neighbouring angles coupled"
    defaults: ClassVar[Settings] = {
        "oversampling": 1.5,
        "noise_factor": 1.5,
        "model_error": 0.0,
        "coupling": 0.15,
        "iterations": 10,
    }
    choices: ClassVar[Choices] = {
        "coupling": (0.0, 0.05, 0.1, 0.15, 0.2, 0.3),
        "noise_factor": (1.0, 1.5, 2.0),
        "iterations": (6, 10, 15),
        "oversampling": (1.5, 2.0),
        "model_error": (0.0, 1e-3, 1e-2),
    }
    chunk_bytes = 2**23

    def solve(self, measured: Measurement, dictionary: KroneckerMap) -> Estimate:
        power = measured.y.abs().square().mean(1)
        unit = torch.where(power > 0, power, 1.0)
        y = measured.y / unit.sqrt()[:, None]
        noise = (self.level(measured) / unit).clamp_min(_LEAST_NOISE)
        a = (measured.phi @ dictionary).materialize().expand(len(y), -1, -1)
        energy = torch.view_as_real(a).square().sum((1, 2, 3))
        variances = (y.shape[1] / energy)[:, None].expand(-1, a.shape[2])
        for _ in range(int(self.settings["iterations"])):
            precision = _precision(a, variances, noise)
            projected = precision @ a
            quality = (y[:, None, :].conj() @ projected)[:, 0].abs().square()
            sparsity = (torch.view_as_real(projected) * torch.view_as_real(a)).sum((1, 3))
            variances = variances * quality / sparsity.clamp_min(torch.finfo(sparsity.dtype).tiny)
            variances = self._coupled(variances)
        precision = _precision(a, variances, noise)
        code = variances * ((y[:, None, :].conj() @ precision) @ a)[:, 0].conj()
        variance = unit[:, None] * _signal_variance(a, dictionary, variances, precision)
        code = unit.sqrt()[:, None] * code
        return Estimate(dictionary.apply(code), code, variance)

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


def _precision(a: Tensor, variances: Tensor, noise: Tensor) -> Tensor:
    """C⁻¹ of C = AΓAᴴ + σ²I. a: [batch, m, atoms], variances: [batch, atoms], noise: [batch] -> [batch, m, m]."""
    covariance = (a * variances[:, None, :]) @ a.mH
    covariance.diagonal(dim1=-2, dim2=-1).add_(noise[:, None])
    return torch.cholesky_inverse(cholesky(covariance))


def _signal_variance(a: Tensor, dictionary: KroneckerMap, variances: Tensor, precision: Tensor) -> Tensor:
    """Diagonal of Ψ(Γ - ΓAᴴC⁻¹AΓ)Ψᴴ: [batch, n]."""
    delay = dictionary.delay
    powers = replace(
        dictionary,
        rx=dictionary.rx.abs().square(),
        tx=dictionary.tx.abs().square(),
        delay=None if delay is None else delay.abs().square(),
    )
    cross = dictionary.apply_block(variances[:, :, None] * a.mH)
    explained = torch.view_as_real(cross @ precision) * torch.view_as_real(cross)
    return (powers.apply(variances) - explained.sum((2, 3))).clamp_min(0)
