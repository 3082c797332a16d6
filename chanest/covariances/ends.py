"""The directions of one end of a link, with powers: the Toeplitz covariance of its array.

Where departures and arrivals are independent of each other the covariance of a channel is a product T ⊗ S of that of the
transmit and that of the receive array, and each is a sum over the directions of its own end.
"""

import math
from functools import cached_property

import torch
from torch import Tensor

from chanest.arrays import Array
from chanest.covariances.angular import elements, ramps
from chanest.covariances.lag_layout import array_lags, lag_between


class EndDirections:
    """Phase ramps over an array of one polarisation, their phases spread evenly over the circle along columns and rows."""

    def __init__(self, array: Array, oversampling: float) -> None:
        """oversampling: directions per element along an axis of more than one element."""
        self.array = array
        self.axes = tuple(1 if size == 1 else math.ceil(oversampling * size) for size in (array.columns, array.rows))

    @property
    def count(self) -> int:
        """G, how many directions there are."""
        return math.prod(self.axes)

    @cached_property
    def phases(self) -> Tensor:
        """From one column and from one row to the next: [G, 2]."""
        steps = [2 * math.pi * (torch.arange(points) - points // 2) / points for points in self.axes]
        return torch.cartesian_prod(*steps).reshape(-1, 2)

    @cached_property
    def atoms(self) -> Tensor:
        """The ramps, entries of modulus one: [N, G]."""
        return ramps(self.phases, elements(self.array))

    @cached_property
    def places(self) -> Tensor:
        """Where a direction lies, for a network: cosine and sine of its phases, and how far it is from the broadside of the
        array, up to one at its end and more where no wave comes from: [5, G]."""
        spacing = torch.tensor([self.array.horizontal_spacing, self.array.vertical_spacing])
        aside = (self.phases / (2 * math.pi * spacing)).square().sum(1, keepdim=True)
        return torch.cat([self.phases.cos(), self.phases.sin(), aside], 1).mT.contiguous()

    def covariance(self, powers: Tensor) -> Tensor:
        """Σ_g p_g a_g a_gᴴ, through its lags: [batch, G] -> [batch, N, N]."""
        lags = powers.to(self._lags.dtype) @ self._lags.to(powers.device)
        return lags[:, lag_between(self.array).to(powers.device)]

    @cached_property
    def _lags(self) -> Tensor:
        """What every direction has at each lag: [G, lags]."""
        return ramps(self.phases, array_lags(self.array)).mT.contiguous()
