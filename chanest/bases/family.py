"""Estimators that weigh the members of a family of covariances by what y shows.

`chanest.tracking` gives them weights of its own, which carry on what earlier snapshots have shown.
"""

from abc import abstractmethod
from functools import partial

import torch
from torch import Tensor

from chanest.bases.chunks import chunk_by_chunk, joined
from chanest.bases.estimator import ChannelEstimator
from chanest.uncertainty.estimate import ChannelEstimate
from vlista_core.estimate import Estimate, Measurement
from vlista_core.linops import LinearMap


class FamilyEstimator(ChannelEstimator):
    """h is Gaussian given the member of the family it belongs to; y says which members are likely."""

    @abstractmethod
    def log_prior_weights(self) -> Tensor:
        """log p(k) of the members: [members]."""

    @abstractmethod
    def log_weights(self, measured: Measurement) -> Tensor:
        """log p(k | y) of the members: [batch, members]."""

    @abstractmethod
    def infer_given(self, measured: Measurement, log_weights: Tensor) -> Estimate:
        """The estimate with these weights: [batch, members]."""

    @abstractmethod
    def spread_given(
        self, measured: Measurement, found: Estimate, log_weights: Tensor, probes: LinearMap | None
    ) -> Tensor:
        """See `spread`, with these weights."""

    def infer(self, measured: Measurement) -> Estimate:
        return self.infer_given(measured, self.log_weights(measured))

    def spread(self, measured: Measurement, found: Estimate, probes: LinearMap | None) -> Tensor:
        return self.spread_given(measured, found, self.log_weights(measured), probes)

    def weigh(self, measured: Measurement) -> Tensor:
        """`log_weights` of any number of samples."""
        return torch.cat(chunk_by_chunk(lambda part, _: self.log_weights(part), measured, self.chunk(measured)))

    def estimate_given(self, measured: Measurement, log_weights: Tensor) -> ChannelEstimate:
        """`estimate` with these weights: [batch, members]. The variance is that of the weighted family itself."""

        def inferred(part: Measurement, some: Tensor) -> Estimate:
            return self.infer_given(part, log_weights[some])

        found = joined(chunk_by_chunk(inferred, measured, self.chunk(measured)))

        def one(part: Measurement, some: Tensor, kept: Estimate, probes: LinearMap | None) -> Tensor:
            return self.spread_given(part, kept, log_weights[some], probes)

        return ChannelEstimate(found, partial(self.spread_in_chunks, one, measured, found))
