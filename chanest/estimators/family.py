"""Estimators that weigh the members of a family of covariances by what y shows; who knows more may bring other weights."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from chanest.estimators.base import ChannelEstimator
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
        """The estimate with weights from wherever: [batch, members]."""

    @abstractmethod
    def spread_given(
        self, measured: Measurement, found: Estimate, log_weights: Tensor, probes: LinearMap | None
    ) -> Tensor:
        """See `spread`, with weights from wherever."""

    def infer(self, measured: Measurement) -> Estimate:
        return self.infer_given(measured, self.log_weights(measured))

    def spread(self, measured: Measurement, found: Estimate, probes: LinearMap | None) -> Tensor:
        return self.spread_given(measured, found, self.log_weights(measured), probes)
