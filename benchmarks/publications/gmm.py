"""The estimator of Koller et al. 2022, its mixture fitted by the PyPI package `cplx-gmm` of the same group, where installed.

ĥ = Σ_k p(k | y) (μ_k + C_k (C_k + σ²I)⁻¹ (y - μ_k)), for y = h + n.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor

from chanest.problem import ChannelBatch, ChannelProblem
from vlista_core.linalg import cholesky

_COMPONENTS, _SAMPLES, _ROUNDS = 64, 20_000, 30
_SEED = 0
_FULL, _LONGEST = 64, 128
"""Entries up to which covariances are full, and up to which there is a mixture; in between they are circulant."""


@dataclass(frozen=True)
class Mixture:
    """Weights [K], means [K, n] and covariances [K, n, n]."""

    weights: Tensor
    means: Tensor
    covariances: Tensor

    def estimate(self, batch: ChannelBatch) -> Tensor:
        """[batch, n]; one SNR for the whole batch."""
        identity = torch.eye(self.means.shape[1], dtype=self.means.dtype)
        factor = cholesky(self.covariances + batch.noise_var[0] * identity)
        apart = (batch.y[:, None, :] - self.means).permute(1, 2, 0)
        white = torch.linalg.solve_triangular(factor, apart, upper=False)
        logs = -white.abs().square().sum(1) - 2.0 * factor.diagonal(dim1=1, dim2=2).real.log().sum(1)[:, None]
        chances = (logs + self.weights.log()[:, None]).softmax(0)
        means = self.means[:, :, None] + self.covariances @ torch.cholesky_solve(apart, factor)
        found: Tensor = (chances[:, None, :] * means).sum(0).mT
        return found


@cache
def fitted_mixture(problem: ChannelProblem) -> Mixture | None:
    """The mixture of training channels, fitted once; None without the package or where channels are too long for it."""
    length = problem.signal_length
    if length > _LONGEST or find_spec("cplx_gmm") is None:
        return None
    package = import_module("cplx_gmm")
    channels = torch.cat([
        problem.sample(1000, seed=_SEED, split="train", start=start, snr_db=0.0).signal
        for start in range(0, _SAMPLES, 1000)
    ])  # fmt: skip
    made = package.GaussianMixtureCplx(
        n_components=_COMPONENTS,
        covariance_type="full" if length <= _FULL else "circulant",
        random_state=_SEED,
        max_iter=_ROUNDS,
        zero_mean=True,
    )
    made.fit(channels.to(torch.complex128).numpy())
    parts = (torch.from_numpy(part) for part in (made.weights_, made.means_, made.covariances_))
    weights, means, covariances = parts
    return Mixture(weights.float(), means.to(torch.complex64), covariances.to(torch.complex64))
