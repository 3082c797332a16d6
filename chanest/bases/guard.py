"""A way out for estimators that know one kind of channel: where y speaks against it, the universal estimate answers.

Both have a Gaussian model of y and its evidence. The weight of the own model is its posterior probability, after a price that
the universal one pays for the powers it fitted to y: so much for each degree of freedom that it uses. On channels of the kind
that was learned the own model has it; on others the universal one; the variance is that of the mixture.
"""

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from chanest.bases.estimator import ChannelEstimator
from vlista_core.estimate import Estimate, Measurement
from vlista_core.gaussian import Posterior
from vlista_core.linops import LinearMap
from vlista_core.prox import squared_modulus

if TYPE_CHECKING:
    from chanest.estimators.universal import Universal

_PRICE, _DOUBT = 0.7, 2.0
"""In nats: for each degree of freedom that the universal model uses, and once. Chosen on validation channels of CDL-C, where
the guard costs 0.04 dB at 0 dB, and of two streets, where it stays 0.1 dB behind the universal estimate there."""
_LEAST = 1e-3
"""A weight below this, of either model, is none: nothing is lost by rounding where one of them is right."""


class Guarded(ChannelEstimator):
    """An estimator with a family of its own and, where `guard` is set, a universal one for what is not of that family."""

    guard: "Universal | None" = None
    """For the same arrays; None leaves the estimator to itself."""

    def protect(self, guard: "Universal | None") -> None:
        """Answer by `guard` where y speaks against the own family; None takes the guard away."""
        object.__setattr__(self, "guard", guard)  # no part of this module: a file holds the own weights alone

    def alone(self) -> Self:
        """The same estimator without its guard."""
        unguarded = copy.copy(self)
        unguarded.protect(None)
        return unguarded

    def weighed(self, measured: Measurement, own: Posterior, found: Estimate) -> Estimate:
        """The own estimate and the universal one by their weights; says which it was in `own_share`."""
        if self.guard is None:
            return found
        other = self.guard.infer(measured)
        share = self._share(own.log_evidence, other)
        mixed = other.signal + share[:, None] * (found.signal - other.signal)
        return replace(found, signal=mixed, own_share=share)

    def spread_weighed(self, measured: Measurement, own: Posterior, probes: LinearMap | None) -> Tensor:
        """The variance of the mixture. own: of the own model, through the probes where there are some."""
        if self.guard is None:
            return own.variance
        other = self.guard.infer(measured)
        share = self._share(own.log_evidence, other)[:, None]
        if not bool((share < 1).any()):
            return own.variance
        spread = self.guard.spread(measured, other, probes)
        signal = other.signal if probes is None else probes.apply(other.signal)
        apart = share * (1.0 - share) * squared_modulus(own.mean - signal)
        return share * own.variance + (1.0 - share) * spread + apart

    @staticmethod
    def _share(own: Tensor, other: Estimate) -> Tensor:
        """The probability of the own model: [batch]. own: its log evidence."""
        assert other.log_evidence is not None
        assert other.freedom is not None
        share = torch.sigmoid(own - other.log_evidence + _PRICE * other.freedom + _DOUBT)
        share = torch.where(share < _LEAST, 0.0, share)
        return torch.where(share > 1.0 - _LEAST, 1.0, share)
