"""The rays of a batch of channels: what a genie knows and, for most sources, what the coefficients are computed from."""

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rays:
    """Clusters of plane waves with their phases, the attitude of both ends, and the moment of the snapshot.

    Angles are in radians in the global frame and already coupled at random: entry [b, p, m] of the four angle tensors
    belongs to one ray. Everything is float32, `model` is int64.
    """

    model: Tensor
    """Which of the source's models the sample comes from: [batch]."""
    delays: Tensor
    """Seconds, ascending: [batch, clusters]."""
    powers: Tensor
    """Of the diffuse clusters, one in all (in the mean, for plain paths): [batch, clusters]. Padding has power zero."""
    aoa: Tensor
    """Azimuth of arrival: [batch, clusters, rays]."""
    aod: Tensor
    """Azimuth of departure: [batch, clusters, rays]."""
    zoa: Tensor
    """Zenith of arrival: [batch, clusters, rays]."""
    zod: Tensor
    """Zenith of departure: [batch, clusters, rays]."""
    phases: Tensor
    """θθ, θφ, φθ, φφ (receive, transmit): [batch, clusters, rays, 4]."""
    strength: Tensor
    """Amplitudes to those phases: [batch, 1 or clusters, 1 or rays, 4]. `strengths` gives those of a power ratio."""
    k_factor: Tensor
    """Power of the line of sight over that of all diffuse clusters, linear, zero without one: [batch]."""
    los_angles: Tensor
    """aoa, aod, zoa, zod of the line of sight: [batch, 4]."""
    los_phase: Tensor
    """Added phase of the line of sight: [batch]."""
    rx_orientation: Tensor
    """Yaw, tilt, roll: [batch, 3]."""
    tx_orientation: Tensor
    """Yaw, tilt, roll: [batch, 3]."""
    velocity: Tensor
    """Of the user end in m/s: [batch, 3]."""
    time: Tensor
    """Seconds since the phases were those of `phases`: [batch]."""

    def __len__(self) -> int:
        return self.model.shape[0]

    def tensors(self) -> tuple[Tensor, ...]:
        """The fields in their order; Rays(*rays.tensors()) is the same rays."""
        return tuple(getattr(self, field.name) for field in fields(self))

    def select(self, index: Tensor) -> "Rays":
        """The rays of the chosen samples. index: [k] integer or [batch] bool."""
        return Rays(*(tensor[index] for tensor in self.tensors()))

    def without_padding(self) -> "Rays":
        """The same samples without the last clusters, as far as none of them has power there; one cluster stays."""
        used = (self.powers > 0).any(0).nonzero()
        count = int(used[-1]) + 1 if len(used) else 1
        per_cluster = ("delays", "powers", "aoa", "aod", "zoa", "zod", "phases", "strength")
        return replace(self, **{name: getattr(self, name)[:, :count] for name in per_cluster})

    def to(self, device: torch.device | str) -> "Rays":
        """The same rays on `device`."""
        return Rays(*(tensor.to(device) for tensor in self.tensors()))


def strengths(xpr: Tensor) -> Tensor:
    """θθ, θφ, φθ, φφ of a cross-polarisation power ratio, (1, XPR^-½, XPR^-½, 1).

    xpr: linear, [batch], [batch, clusters] or [batch, clusters, rays] -> [batch, 1 or clusters, 1 or rays, 4].
    """
    cross = torch.rsqrt(xpr)
    one = torch.ones_like(cross)
    return torch.stack([one, cross, cross, one], -1).reshape(*(*xpr.shape, 1, 1)[:3], 4)


FIELD_NAMES = tuple(field.name for field in fields(Rays))
