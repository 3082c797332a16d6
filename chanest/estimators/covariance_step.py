"""The exact step with a covariance: C = ΦRΦᴴ + σ²I factorised and C⁻¹y, for R given as a table of lags."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from chanest.estimators.linear import with_noise
from chanest.estimators.toeplitz import View
from vlista_core.estimate import Measurement
from vlista_core.linalg import cholesky


class CovarianceStep(NamedTuple):
    """A covariance at work on a measurement: R's spectrum, the Cholesky factor of C, and u = C⁻¹y."""

    spectrum: Tensor
    factor: Tensor
    whitened: Tensor


def covariance_step(measured: Measurement, view: View, table: Tensor) -> CovarianceStep:
    """For the R of each sample, or one for all. table: [batch or 1, receive lags, transmit lags]."""
    spectrum = view.layout.spectrum(table)
    return CovarianceStep(spectrum, *factorised(measured, view.seen(table, spectrum)))


def factorised(measured: Measurement, seen: Tensor) -> tuple[Tensor, Tensor]:
    """The Cholesky factor of C = ΦRΦᴴ + σ²I, and C⁻¹y. seen: ΦRΦᴴ, [batch or 1, m, m]."""
    factor = cholesky(with_noise(seen, measured.noise_var))
    return factor, torch.cholesky_solve(measured.y[..., None], factor)[..., 0]
