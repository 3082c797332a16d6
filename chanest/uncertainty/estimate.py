"""How far off an estimate may be: estimates whose variance is worked out when somebody asks for it."""

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from vlista_core.estimate import Estimate
from vlista_core.linops import LinearMap

Spread = Callable[[LinearMap | None], Tensor | None]
"""Variance of the errors of ĥ or, given a map P, of Pĥ: [batch, n] or [batch, p]; None where nobody knows."""

Radius = Callable[[float], Tensor]
"""Half the width of the interval of a level in standard deviations: [batch]."""


class ChannelEstimate(Estimate):
    """An Estimate whose variance costs nothing until it is read."""

    _spread: Spread
    _own: Spread
    _radius: Radius | None

    def __init__(
        self, found: Estimate, spread: Spread, *, own: Spread | None = None, radius: Radius | None = None
    ) -> None:
        """spread: what `variance` is; own: what it was before calibration, the same where there was none."""
        super().__init__(**vars(found))
        del self.__dict__["variance"]
        self.__dict__.update(_spread=spread, _own=own or spread, _radius=radius)

    @cached_property
    def variance(self) -> Tensor | None:
        """E|h - ĥ|² of each entry: [batch, n]; None for an estimator without posterior and without calibration."""
        return self._spread(None)

    @cached_property
    def own_variance(self) -> Tensor | None:
        """The variance that the method itself gives, before calibration: [batch, n] or None."""
        return self._own(None)

    def variance_through(self, probes: LinearMap) -> Tensor | None:
        """The variance of the errors of Pĥ, such as what beams let through. probes: P, [p, n] each -> [batch, p].

        Errors of different antennas belong together: this is not what `variance` alone could tell.
        """
        return self._spread(probes)

    def interval(self, level: float) -> Tensor:
        """Radius of the disc about ĥ_i that holds h_i with probability `level` or more, whatever the errors' law: [batch, n].

        Conformal: see Calibration.radius for what is promised. A ValueError without a calibration.
        """
        if self._radius is None or self.variance is None:
            raise ValueError(
                "this estimate has no calibrated intervals; fit them with: chanest calibrate SCENARIO -e NAME"
            )
        return self._radius(level)[:, None] * self.variance.sqrt()


def independent(variance: Tensor, probes: LinearMap | None) -> Tensor:
    """The variance of Pĥ where the errors of the entries have nothing to do with each other: Σ_i |P_ki|² v_i."""
    if probes is None:
        return variance
    squared = probes.materialize().abs().square()
    return (squared @ variance[..., None])[..., 0]


def of_samples(samples: Tensor, probes: LinearMap | None) -> Tensor:
    """The variance of draws from a posterior. samples: [draws, batch, n] -> [batch, n or p]."""
    draws = samples if probes is None else torch.stack([probes.apply(sample) for sample in samples])
    return (draws - draws.mean(0)).abs().square().sum(0) / (len(draws) - 1)
