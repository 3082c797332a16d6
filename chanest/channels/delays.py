"""Delays that differ from sample to sample: how far they spread, when the first path arrives, and when the receiver stops.

A table gives delays in units of the delay spread. A sample has delays offset + spread·τ_c. Clusters that come later than its
window after the first are cut off, and those that stay share the power. All of it is visible in the rays.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Self

import torch
from pydantic import Field
from torch import Tensor

Range = tuple[float, float]
"""(least, largest)."""
RangeField = Annotated[Range, Field(strict=False)]
_DRAWS, _POINTS = 3, 64
"""Uniform numbers of a sample, and points of the quadrature over each of them."""


@dataclass(frozen=True)
class Delays:
    """How delays are drawn, in seconds."""

    spread: Range
    """Uniform in its logarithm."""
    offset: Range = (0.0, 0.0)
    """Uniform."""
    window: Range | None = None
    """Uniform; None cuts nothing off."""

    def __post_init__(self) -> None:
        for name, least in (("spread", 0.0), ("offset", -1.0), ("window", 0.0)):
            chosen: Range | None = getattr(self, name)
            if chosen is not None and not least <= chosen[0] <= chosen[1] <= 1.0:
                key = {"spread": "delay_spread", "offset": "timing_offset", "window": "delay_window"}[name]
                allowed = f"seconds, or (least, largest) with {least:g} <= least <= largest <= 1"
                raise ValueError(f"{key} must be {allowed}, got {chosen!r}")
        if self.spread[0] == 0.0 < self.spread[1]:
            raise ValueError(f"delay_spread must not begin at 0 where it is a range, got {self.spread!r}")

    @classmethod
    def of(cls, spread: float | Range, offset: Range, window: Range | None) -> Self:
        """With a spread that all samples have, or a range."""
        return cls(spread if isinstance(spread, tuple) else (spread, spread), offset, window)

    @property
    def vary(self) -> bool:
        """Whether the delays of samples differ."""
        return self.spread[0] < self.spread[1] or self.offset != (0.0, 0.0) or self.window is not None

    def drawn(self, generators: Sequence[torch.Generator], delays: Tensor, powers: Tensor) -> tuple[Tensor, Tensor]:
        """Delays in seconds and powers of samples, each from its own generator.

        delays: in units of the spread, powers: [batch, clusters] each. Where nothing varies nothing is drawn.
        """
        if not self.vary:
            return delays * self.spread[0], powers
        uniform = torch.stack([torch.rand(_DRAWS, generator=generator) for generator in generators])
        spread, offset, window = uniform.split(1, 1)
        delays = delays * self._spread(spread)
        return delays + _within(self.offset, offset), self._cut(delays, powers, window)

    def lag_means(self, delays: Tensor, powers: Tensor, frequencies: Tensor) -> Tensor:
        """E P_c exp(-j2πfτ_c) over the samples, by quadrature; at f = 0 that is the mean power of each cluster.

        delays: in units of the spread, powers: [clusters] each, frequencies: [lags] -> [clusters, lags], complex128.
        """
        points = (torch.arange(_POINTS, dtype=torch.float64) + 0.5) / _POINTS
        offset = -2 * math.pi * frequencies.double()
        width = self.offset[1] - self.offset[0]
        turned = torch.polar(torch.sinc(frequencies.double() * width), offset * (sum(self.offset) / 2))
        total = torch.zeros(len(delays), len(frequencies), dtype=torch.complex128)
        for spread in self._spread(points).expand(_POINTS):
            late = delays.double() * spread
            kept = self._cut(late.expand(_POINTS, -1), powers.double().expand(_POINTS, -1), points[:, None]).mean(0)
            phase = late[:, None] * offset
            total += torch.polar(kept[:, None].expand_as(phase).contiguous(), phase) / _POINTS
        return total * turned

    def _spread(self, uniform: Tensor) -> Tensor:
        least, largest = self.spread
        return least * (largest / least) ** uniform if least < largest else torch.full_like(uniform, least)

    def _cut(self, delays: Tensor, powers: Tensor, uniform: Tensor) -> Tensor:
        """Powers without what comes later than the window after the first cluster: [batch, clusters]; uniform: [batch, 1]."""
        if self.window is None:
            return powers
        kept = torch.where(delays - delays[:, :1] <= _within(self.window, uniform), powers, 0.0)
        return kept * (powers.sum(1, keepdim=True) / kept.sum(1, keepdim=True))


def _within(ends: Range, uniform: Tensor) -> Tensor:
    return ends[0] + (ends[1] - ends[0]) * uniform
