"""Distributions over dictionaries: what VLISTA needs of one, and the Gaussian of the paper.

Any reparametrisable family will do: a subclass of `DictionaryDistribution` that can be sampled and whose density can be
evaluated. The divergence has a Monte Carlo default; the Gaussian overrides it by its closed form.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from vlista_core.models.base import inverse_softplus
from vlista_core.prox import squared_modulus

_LEAST_DEVIATION = 1e-6


class DictionaryDistribution(ABC):
    """A distribution of dictionaries [batch, n, b], one for each sample, entries independent."""

    RAW_MAPS: ClassVar[int]
    """How many maps [n, b] of free parameters a network gives besides the centre."""

    @classmethod
    @abstractmethod
    def from_raw(cls, centre: Tensor, raw: Tensor) -> Self:
        """The distribution that a network's outputs stand for. centre: [batch, n, b], raw: [batch, RAW_MAPS, n, b], real."""

    @classmethod
    @abstractmethod
    def raw_start(cls, deviation: float) -> list[float]:
        """The values of the raw maps at which the standard deviation is `deviation`."""

    @abstractmethod
    def select(self, index: slice) -> Self:
        """The distribution of some of the samples."""

    @abstractmethod
    def shifted(self, offset: Tensor) -> Self:
        """The distribution of Ψ + offset. offset: [batch or 1, n, b]."""

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """[batch, n, b]."""

    @abstractmethod
    def sample(self, noise: Tensor) -> Tensor:
        """A reparametrised draw made from standard normal noise of the same shape (or [1, n, b]): [batch, n, b]."""

    @abstractmethod
    def log_density(self, dictionary: Tensor) -> Tensor:
        """Logarithm of the density, summed over the entries: [batch]."""

    def divergence(self, other: "DictionaryDistribution", sample: Tensor) -> Tensor:
        """KL(self ‖ other), here estimated from one draw of `self`: [batch]."""
        return self.log_density(sample) - other.log_density(sample)


@dataclass(frozen=True)
class Gaussian(DictionaryDistribution):
    """Independent normal entries; circular where complex, with E|Ψ - mean|² = deviation²."""

    RAW_MAPS: ClassVar[int] = 1

    centre: Tensor
    """[batch or 1, n, b]."""
    deviation: Tensor
    """Standard deviation, real and positive, of the same shape or one that broadcasts to it."""

    @classmethod
    def from_raw(cls, centre: Tensor, raw: Tensor) -> Self:
        return cls(centre, nn.functional.softplus(raw[:, 0]) + _LEAST_DEVIATION)

    @classmethod
    def raw_start(cls, deviation: float) -> list[float]:
        return [inverse_softplus(deviation)]

    def select(self, index: slice) -> Self:
        return replace(self, centre=self.centre[index], deviation=self.deviation[index])

    def shifted(self, offset: Tensor) -> Self:
        return replace(self, centre=self.centre + offset)

    @property
    def mean(self) -> Tensor:
        return self.centre

    def sample(self, noise: Tensor) -> Tensor:
        return self.centre + self.deviation * noise

    def log_density(self, dictionary: Tensor) -> Tensor:
        variance = self.deviation.square()
        distance = squared_modulus(dictionary - self.centre) / variance
        if dictionary.is_complex():
            return -(distance + torch.log(math.pi * variance)).sum((1, 2))
        return -0.5 * (distance + torch.log(2.0 * math.pi * variance)).sum((1, 2))

    def divergence(self, other: DictionaryDistribution, sample: Tensor) -> Tensor:
        if not isinstance(other, Gaussian):
            return super().divergence(other, sample)
        ratio = (self.deviation / other.deviation).square()
        shift = squared_modulus(self.centre - other.centre) / other.deviation.square()
        total = (ratio + shift - 1.0 - torch.log(ratio)).sum((1, 2))
        return total if self.centre.is_complex() else 0.5 * total


FAMILIES: dict[str, type[DictionaryDistribution]] = {"gaussian": Gaussian}


def standard_gaussian(like: Tensor) -> Gaussian:
    """N(0, 1) entries, the prior of the first dictionary: of the shape, dtype and device of `like`."""
    return Gaussian(torch.zeros_like(like[:1]), torch.ones_like(like[:1].real))
