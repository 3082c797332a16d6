"""A narrowband estimator for many subcarriers: in the delay modes that y itself shows, each a narrowband channel of power one.

The delays of a channel span few dimensions of the subcarriers (`chanest.covariances.delay_powers`). A front end that serves
every subcarrier alike commutes with a change of their basis, so that every mode is measured as one subcarrier is, by the same
beams and with white noise, less of it where the mode is strong. All modes of all samples are one batch of the narrowband
estimator, whose weights are those of one subcarrier of the same arrays: nothing has to be learned for a bandwidth.
"""

from typing import Self

import torch
from torch import Tensor

from chanest.bases.chunks import in_chunks
from chanest.bases.estimator import ChannelEstimator
from chanest.covariances.delay_powers import ModeParts
from chanest.frontend import BeamformingMap, whitened_measurement
from chanest.problem import ChannelProblem
from chanest.uncertainty.estimate import independent
from vlista_core.estimate import Estimate, Measurement
from vlista_core.linops import LinearMap
from vlista_core.tensorfile import Json

_SAMPLES = 16
"""At a time: what they need together, some ten modes each, stays small."""


class Modewise(ChannelEstimator):
    """The estimator of one subcarrier on every delay mode. It has the name of that one."""

    scale_free = True

    def __init__(self, inner: ChannelEstimator, subcarriers: int) -> None:
        """inner: for the same arrays and one subcarrier."""
        super().__init__(subcarriers * inner.signal_length)
        self.inner, self.subcarriers = inner, subcarriers
        vars(self)["name"] = inner.name
        self.forms_product = inner.forms_product

    @classmethod
    def build(cls, problem: ChannelProblem) -> Self:
        raise ValueError("a Modewise is made of an estimator for one subcarrier")

    def configuration(self) -> dict[str, Json]:
        return {"subcarriers": self.subcarriers, "of_each_mode": self.inner.configuration()}

    def infer(self, measured: Measurement) -> Estimate:
        parts = [self.inner.estimate_modes(self._parts(some)).signal for some, _ in in_chunks(measured, _SAMPLES)]
        return Estimate(torch.cat(parts))

    def spread(self, measured: Measurement, found: Estimate, probes: LinearMap | None) -> Tensor | None:
        parts = self._parts(measured)
        variance = self.inner.estimate(parts.each.y, parts.each.phi, parts.each.noise_var).variance
        return None if variance is None else independent(parts.variances_together(variance), probes)

    def _parts(self, measured: Measurement) -> ModeParts:
        white = whitened_measurement(measured)
        if not isinstance(white.phi, BeamformingMap) or white.phi.subcarriers != self.subcarriers:
            raise ValueError(
                f"phi must be a BeamformingMap of {self.subcarriers} subcarriers, all measured alike, for this {self.name}, "
                f"got a {type(white.phi).__name__}"
            )
        return ModeParts.of(white, self.subcarriers)
