"""Profiles of delay: what the clusters of a channel have on the subcarriers, given few numbers of the sample.

The clusters of a kind of channel come at offset + spread·u_c, with powers P_c, and those later than a window are missing. The
shape u, the powers and the ranges are learned from the rays of training channels. What a sample has is told from y.
"""

import math
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

SPREADS, WINDOWS = 32, 4
"""Spreads and windows among which the first look chooses."""
_OFFSET_STEP = 0.08
"""Of the offsets among which it chooses, in units of the resolution, one over the bandwidth."""
_ALIKE = 1e-3
"""Delays that differ less than that from sample to sample, in units of the resolution, are constants."""
_MISFIT = 0.02
"""Share of the mean square of delays that the shape may leave over."""


class Timing(NamedTuple):
    """What tells the delays of samples, in units of the resolution: float64, of one shape each."""

    spread: Tensor
    offset: Tensor
    window: Tensor
    """After the first cluster."""

    def at(self, place: Tensor) -> "Timing":
        """One of several for each sample. place: [batch], of fields [batch, several] -> [batch]."""
        return Timing(*(field.gather(1, place[:, None])[:, 0] for field in self))

    def among(self, count: int) -> "Timing":
        """The same `count` times for each sample: [batch] -> [batch, count]."""
        return Timing(*(field[:, None].expand(-1, count) for field in self))


class DelayProfiles(nn.Module):
    """The shape of delays, their powers, and the ranges of spread, offset and window, in units of the resolution."""

    def __init__(self, frequencies: tuple[float, ...], parts: int) -> None:
        super().__init__()
        self.bandwidth = len(frequencies) * abs(frequencies[1] - frequencies[0])
        self.phases = 2 * math.pi / self.bandwidth * torch.tensor(frequencies, dtype=torch.float64)
        """What a delay of one resolution turns each subcarrier by: [S]."""
        self.shape: Tensor = nn.Buffer(torch.zeros(parts, dtype=torch.float64))
        self.powers: Tensor = nn.Buffer(torch.ones(parts, dtype=torch.float64))
        self.ranges: Tensor = nn.Buffer(torch.zeros(3, 2, dtype=torch.float64))
        """Of spread, offset and window."""

    @classmethod
    def learned(cls, frequencies: tuple[float, ...], delays: Tensor, powers: Tensor) -> Self | None:
        """From the rays of training samples, [samples, parts] each; powers that are zero were cut off.

        None where samples have the same delays, or delays that are not of one shape: their mean has to do then.
        """
        profiles = cls(frequencies, delays.shape[1])
        late = profiles.bandwidth * (delays - delays[:, :1]).double()
        if profiles.bandwidth * float((delays - delays[:1]).abs().max()) < _ALIKE:
            return None
        shape = torch.linalg.eigh(late.mT @ late).eigenvectors[:, -1]
        shape = shape * shape.sum().sign()
        spread = late @ shape
        left = (late - spread[:, None] * shape).square().sum() / late.square().sum().clamp_min(1e-30)
        if float(left) > _MISFIT:
            return None
        kept = powers > 0
        last, cut = torch.where(kept, late, 0.0).amax(1), (~kept).any(1)
        windows = last.max().expand(2)
        if bool(cut.any()):
            windows = torch.stack([last[cut].min(), last.max()])
        offset, whole = profiles.bandwidth * delays[:, 0].double(), kept.sum(1) == kept.sum(1).max()
        ends = [torch.stack([each.min(), each.max()]) for each in (spread, offset)]
        profiles.shape, profiles.powers = shape, powers[whole].double().mean(0)
        profiles.ranges = torch.stack([*ends, windows + _ALIKE])
        return profiles

    def powers_at(self, timing: Timing) -> Tensor:
        """Of each part, whose sum does not depend on what is cut off: [..., parts]."""
        late = timing.spread[..., None] * self.shape
        kept = torch.where(late <= timing.window[..., None], self.powers, 0.0)
        share: Tensor = kept * (self.powers.sum() / kept.sum(-1, keepdim=True).clamp_min(1e-30))
        return share

    def responses(self, timing: Timing) -> Tensor:
        """exp(-j2πfτ_c): [..., S, parts], complex128."""
        delays = timing.offset[..., None] + timing.spread[..., None] * self.shape
        turn = -self.phases[:, None] * delays[..., None, :]
        return torch.polar(torch.ones_like(turn), turn)

    def columns(self, timing: Timing, doubt: Tensor | None = None) -> Tensor:
        """d_p on the subcarriers times the root of its power: [batch, parts, 1, S], complex128.

        doubt: the covariance of (spread, offset), [batch, 2, 2]; then there is a second column, by how much d_p may differ.
        """
        main = (self.responses(timing) * self.powers_at(timing).sqrt()[:, None]).mT[:, :, None]
        if doubt is None:
            return main
        along = torch.stack([self.shape, torch.ones(len(self.shape), dtype=torch.float64)], 1)
        deviation = (along @ doubt * along).sum(2).clamp_min(0.0).sqrt()
        return torch.cat([main, main * self.phases * deviation[:, :, None, None]], 2)

    def windows(self) -> Tensor:
        """Those among which a sample may have one: [windows], float64."""
        found: Tensor = self.grid()[0].window.unique()
        return found

    def grid(self) -> tuple[Timing, Tensor]:
        """Spreads and windows of the first look with offset zero, and the offsets: [pairs] each, and [offsets]."""
        (least, most), (early, late), (short, long) = self.ranges.tolist()
        count = SPREADS if most > least * (1 + _ALIKE) else 1
        spreads = torch.linspace(
            math.log(max(least, 1e-6)), math.log(max(most, 1e-6)), count, dtype=torch.float64
        ).exp()
        share = (torch.arange(WINDOWS, dtype=torch.float64) + 0.5) / WINDOWS
        windows = short + (long - short) * share if long > short else torch.tensor([long], dtype=torch.float64)
        pairs = torch.cartesian_prod(spreads, windows)
        offsets = torch.linspace(early, late, max(1, math.ceil((late - early) / _OFFSET_STEP)) + 1, dtype=torch.float64)
        return Timing(pairs[:, 0], torch.zeros(len(pairs), dtype=torch.float64), pairs[:, 1]), offsets
