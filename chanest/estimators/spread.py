"""How far off an estimate may be: estimates whose variance is worked out when somebody asks for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from vlista_core.estimate import Estimate, Measurement
from vlista_core.linalg import cholesky
from vlista_core.linops import LinearMap

Spread = Callable[[LinearMap | None], Tensor | None]
"""Variance of the errors of ĥ or, given a map P, of Pĥ: [batch, n] or [batch, p]; None where nobody knows."""

_LEAST_SHARE = 1e-2
"""Of the mean variance of a channel's entries: what comes out below it is the rounding of R, which need not be definite."""

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
            raise ValueError("this estimate has no calibrated intervals; fit them with: chanest calibrate")
        return self._radius(level)[:, None] * self.variance.sqrt()


def independent(variance: Tensor, probes: LinearMap | None) -> Tensor:
    """The variance of Pĥ where the errors of the entries have nothing to do with each other: Σ_i |P_ki|² v_i."""
    if probes is None:
        return variance
    squared = probes.materialize().abs().square()
    return (squared @ variance[..., None])[..., 0]


def gaussian(covariance: Tensor, measured: Measurement, probes: LinearMap | None) -> tuple[Tensor, Tensor]:
    """What y leaves open of h ~ CN(0, R): mean and variance of h given y or, with P, of Ph; both [batch, n or p].

    The mean is RΦᴴC⁻¹y and the covariance R - RΦᴴC⁻¹ΦR, with C = ΦRΦᴴ + σ²I. covariance: R, [batch or 1, n, n].
    """
    phi = measured.phi
    seen = phi.apply_block(covariance)
    total = phi.apply_block(seen.mH.contiguous()).clone()
    total.diagonal(dim1=1, dim2=2).add_(measured.noise_var[:, None])
    before = covariance.diagonal(dim1=1, dim2=2).real
    if probes is not None:
        rows = probes.materialize()
        before = (rows * (covariance @ rows.mH).mT).sum(-1).real
        seen = seen @ rows.mH
    both = torch.cat([seen, measured.y[..., None]], 2)
    white = torch.linalg.solve_triangular(cholesky(total), both, upper=False)
    seen, y = white[..., :-1], white[..., -1:]
    explained = torch.view_as_real(seen).square().sum((1, 3))
    left = (before - explained).clamp_min(0.0)
    if probes is None:
        left = left.maximum(_LEAST_SHARE * left.mean(1, keepdim=True))
    return (seen.mH @ y)[..., 0], left


def of_samples(samples: Tensor, probes: LinearMap | None) -> Tensor:
    """The variance of draws from a posterior. samples: [draws, batch, n] -> [batch, n or p]."""
    draws = samples if probes is None else torch.stack([probes.apply(sample) for sample in samples])
    return (draws - draws.mean(0)).abs().square().sum(0) / (len(draws) - 1)
