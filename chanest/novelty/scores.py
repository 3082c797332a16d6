"""What may tell a frame of other channels: some numbers for each frame, from what an estimator makes of it.

None needs the truth. A score of one's own is a function and a line in `SCORES`; how its values are spread where nothing has
changed is for the detector to find out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from chanest.bases.estimator import ChannelEstimator
from chanest.estimators.gmm import GMM
from chanest.estimators.vlista import VLISTAEstimator
from chanest.uncertainty.estimate import of_samples
from vlista_core.estimate import Measurement

Shape = tuple[int, int, int]
"""Of the channel: subcarriers, transmit antennas, receive antennas."""
Features = Callable[[ChannelEstimator, Measurement, Shape], Tensor]
"""[frames, features], real."""

_DRAWS = 20
"""Dictionaries that are drawn for a frame; the paper draws 100 for an image."""


@dataclass(frozen=True)
class Score:
    """A score, and the estimator whose weights it takes unless another is given."""

    summary: str
    estimator: str
    features: Features


def antennas(estimator: ChannelEstimator, measured: Measurement, shape: Shape) -> Tensor:
    """How the likelihood of y would rise with a gain at every antenna: [frames, 2(N_t + N_r)].

    For y ~ CN(0, ΦDRDᴴΦᴴ + σ²I) with gains D = diag(g), the gradient at g = 1 is, up to a mean that a reference takes away,
    Σ ĥ·conj(Φᴴ(y - Φĥ))/σ² over the entries of an antenna: what is left of y, held against what was estimated. Its real part
    is about the antenna's gain, the imaginary part about its phase. Rao's score test, with the covariance that the estimator
    has found for this very frame. Together they see far more than antennas: most changes of how entries are correlated.
    """
    signal = estimator.estimate(measured.y, measured.phi, measured.noise_var).signal
    left = measured.phi.adjoint(measured.y - measured.phi.apply(signal)) / measured.noise_var[:, None]
    gradient = (signal * left.conj()).reshape(-1, *shape).sum(1)
    return torch.view_as_real(torch.cat([gradient.sum(2), gradient.sum(1)], 1)).flatten(1)


def residual(estimator: ChannelEstimator, measured: Measurement, shape: Shape) -> Tensor:
    """log ‖y - Φĥ‖²/(mσ²): [frames, 1]."""
    signal = estimator.estimate(measured.y, measured.phi, measured.noise_var).signal
    power = (measured.y - measured.phi.apply(signal)).abs().square().mean(1)
    return (power / measured.noise_var).log()[:, None]


@torch.no_grad()
def likelihood(estimator: ChannelEstimator, measured: Measurement, shape: Shape) -> Tensor:
    """log p(y)/m under the mixture, without the constant: [frames, 1]. Too likely is as strange as too unlikely."""
    if not isinstance(estimator, GMM):
        raise ValueError(f"the score likelihood needs a gmm, whose p(y) it is, got {estimator.name}")
    return estimator.log_likelihood(measured)[:, None] / measured.y.shape[1]


def dictionary(estimator: ChannelEstimator, measured: Measurement, shape: Shape) -> Tensor:
    """The logarithm of the variance of ĥ over dictionaries drawn from the posterior, relative to its power: [frames, 1].

    The paper takes the variance itself, which a line of sight (CDL-D, E) does not change.
    """
    if not isinstance(estimator, VLISTAEstimator):
        raise ValueError(f"the score dictionary needs a vlista, whose dictionaries it draws, got {estimator.name}")
    found = estimator.estimate(measured.y, measured.phi, measured.noise_var, n_samples=_DRAWS)
    power = found.signal.abs().square().mean(1, keepdim=True)
    return (of_samples(cast(Tensor, found.samples), None).mean(1, keepdim=True) / power).log()


SCORES = {
    "antennas": Score("gradient of the likelihood by a gain of every antenna; any estimator", "gated-lmmse", antennas),
    "residual": Score("power of y - Φĥ over that of the noise; any estimator", "gated-lmmse", residual),
    "likelihood": Score("log p(y) under a Gaussian mixture", "gmm", likelihood),
    "dictionary": Score("variance of ĥ over VLISTA's posterior dictionaries", "vlista", dictionary),
}
"""Name -> score, best first."""


def get_score(name: str) -> Score:
    """The score registered as `name`, or a ValueError that lists the known ones."""
    if name not in SCORES:
        raise ValueError(f"unknown score {name!r}; known are {', '.join(SCORES)}")
    return SCORES[name]
