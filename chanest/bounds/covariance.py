"""The LMMSE filter of a helper that knows the covariance of every sample."""

import torch

from chanest.bounds.base import Genie
from chanest.channels.rays import Rays
from chanest.channels.scm import ScmSource
from chanest.covariances.kronecker import KroneckerCovariance
from chanest.problem import ChannelProblem


class GenieCovariance(Genie):
    """R = R_tx ⊗ R_rx of the sample is known: given it the channel is Gaussian, so no estimator of one snapshot is better."""

    name = "genie-covariance"
    label = "genie: covariance known"
    summary = "LMMSE that knows the covariance of each sample; the spatial channel model, which is Gaussian given it"

    @classmethod
    def applies(cls, problem: ChannelProblem) -> bool:
        return isinstance(problem.source, ScmSource)

    def prior(self, rays: Rays) -> KroneckerCovariance:
        source = self.problem.source
        if not isinstance(source, ScmSource):
            raise TypeError(f"source must be a ScmSource, got {type(source).__name__}")
        rx, tx = (covariance.to(torch.complex128) for covariance in source.covariances(rays))
        return KroneckerCovariance(tx[:, None], rx[:, None])
