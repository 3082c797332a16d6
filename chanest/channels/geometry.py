"""Directions, rotations and element fields of TR 38.901 clauses 7.1 and 7.3, batched, in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from chanest.arrays import Array

# Tables 7.3-1 and 7.3-2: vertical and horizontal 3 dB width (degrees), largest attenuation (dB), element gain (dBi).
_PATTERNS = {"38.901": (65.0, 65.0, 30.0, 8.0), "38.901-handheld": (125.0, 125.0, 22.5, 5.3)}


@dataclass(frozen=True)
class Directions:
    """Directions in the global frame by the sines and cosines of their angles, each [..., rays], taken once."""

    sin_zenith: Tensor
    cos_zenith: Tensor
    sin_azimuth: Tensor
    cos_azimuth: Tensor

    @classmethod
    def of(cls, zenith: Tensor, azimuth: Tensor) -> Directions:
        """From angles, zenith and azimuth alike [..., rays]."""
        return cls(torch.sin(zenith), torch.cos(zenith), torch.sin(azimuth), torch.cos(azimuth))

    def vectors(self) -> Tensor:
        """Unit vectors: [..., rays, 3]."""
        return torch.stack(
            [self.sin_zenith * self.cos_azimuth, self.sin_zenith * self.sin_azimuth, self.cos_zenith], dim=-1
        )


def rotation(orientation: Tensor) -> Tensor:
    """The matrix from local to global coordinates (7.1-4). orientation: yaw, tilt, roll [..., 3] -> [..., 3, 3]."""
    (ca, cb, cc), (sa, sb, sc) = torch.cos(orientation).unbind(-1), torch.sin(orientation).unbind(-1)
    rows = [
        torch.stack([ca * cb, ca * sb * sc - sa * cc, ca * sb * cc + sa * sc], dim=-1),
        torch.stack([sa * cb, sa * sb * sc + ca * cc, sa * sb * cc - ca * sc], dim=-1),
        torch.stack([-sb, cb * sc, cb * cc], dim=-1),
    ]
    return torch.stack(rows, dim=-2)


def fields(array: Array, orientation: Tensor, toward: Directions, local: Tensor) -> Tensor:
    """Global θ and φ field of an element of each polarisation.

    orientation: [batch, 3]; toward: directions [batch, rays]; local: [batch, rays, 3] the same in the local frame
    -> [batch, polarisations, 2, rays].
    """
    cosine, sine = _polarisation_turn(orientation, toward)
    per_slant = []
    for slant in array.slants:
        along, across = math.cos(slant), math.sin(slant)
        per_slant.append(torch.stack([along * cosine - across * sine, along * sine + across * cosine], dim=1))
    field = torch.stack(per_slant, dim=1)
    if array.pattern == "omni":
        return field
    return field * _amplitude(array, local)[:, None, None, :]


def _polarisation_turn(orientation: Tensor, toward: Directions) -> tuple[Tensor, Tensor]:
    """cos ψ and sin ψ of the turn from local to global field components (7.1-15): each [batch, rays]."""
    (cos_yaw, cos_tilt, cos_roll), (sin_yaw, sin_tilt, sin_roll) = (
        trigonometry(orientation)[:, :, None].unbind(1) for trigonometry in (torch.cos, torch.sin)
    )
    cos_turn = toward.cos_azimuth * cos_yaw + toward.sin_azimuth * sin_yaw
    sin_turn = toward.sin_azimuth * cos_yaw - toward.cos_azimuth * sin_yaw
    real = sin_roll * toward.cos_zenith * sin_turn + cos_roll * (
        cos_tilt * toward.sin_zenith - sin_tilt * toward.cos_zenith * cos_turn
    )
    imaginary = sin_roll * cos_turn + sin_tilt * cos_roll * sin_turn
    length = torch.hypot(real, imaginary).clamp_min(torch.finfo(real.dtype).tiny)
    return real / length, imaginary / length


def _amplitude(array: Array, local: Tensor) -> Tensor:
    """√(power pattern) in local directions (7.3-1): [batch, rays, 3] -> [batch, rays]."""
    vertical_width, horizontal_width, floor, gain = _PATTERNS[array.pattern]
    zenith = torch.rad2deg(torch.acos(local[..., 2].clamp(-1.0, 1.0)))
    azimuth = torch.rad2deg(torch.atan2(local[..., 1], local[..., 0]))
    vertical = (12 * ((zenith - 90.0) / vertical_width) ** 2).clamp_max(floor)
    horizontal = (12 * (azimuth / horizontal_width) ** 2).clamp_max(floor)
    return 10 ** ((gain - (vertical + horizontal).clamp_max(floor)) / 20)
