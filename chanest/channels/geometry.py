"""Directions, rotations and element fields of TR 38.901 clauses 7.1 and 7.3, batched, in float64."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from chanest.arrays import Array

# Tables 7.3-1 and 7.3-2: vertical and horizontal 3 dB width (degrees), largest attenuation (dB), element gain (dBi).
_PATTERNS = {"38.901": (65.0, 65.0, 30.0, 8.0), "38.901-handheld": (125.0, 125.0, 22.5, 5.3)}


def direction(zenith: Tensor, azimuth: Tensor) -> Tensor:
    """Unit vectors. zenith, azimuth: [...] -> [..., 3]."""
    sine = torch.sin(zenith)
    return torch.stack([sine * torch.cos(azimuth), sine * torch.sin(azimuth), torch.cos(zenith)], dim=-1)


def rotation(orientation: Tensor) -> Tensor:
    """The matrix that takes local to global coordinates (7.1-4). orientation: yaw, tilt, roll [..., 3] -> [..., 3, 3]."""
    (ca, cb, cc), (sa, sb, sc) = torch.cos(orientation).unbind(-1), torch.sin(orientation).unbind(-1)
    rows = [
        torch.stack([ca * cb, ca * sb * sc - sa * cc, ca * sb * cc + sa * sc], dim=-1),
        torch.stack([sa * cb, sa * sb * sc + ca * cc, sa * sb * cc - ca * sc], dim=-1),
        torch.stack([-sb, cb * sc, cb * cc], dim=-1),
    ]
    return torch.stack(rows, dim=-2)


def fields(array: Array, orientation: Tensor, zenith: Tensor, azimuth: Tensor, local: Tensor) -> Tensor:
    """Global θ and φ field of an element of each polarisation.

    orientation: [batch, 3]; zenith, azimuth: [batch, rays] global; local: [batch, rays, 3] the same directions in the
    local frame -> [batch, polarisations, 2, rays].
    """
    cosine, sine = _polarisation_turn(orientation, zenith, azimuth)
    per_slant = []
    for slant in array.slants:
        along, across = math.cos(slant), math.sin(slant)
        per_slant.append(torch.stack([along * cosine - across * sine, along * sine + across * cosine], dim=1))
    field = torch.stack(per_slant, dim=1)
    if array.pattern == "omni":
        return field
    return field * _amplitude(array, local)[:, None, None, :]


def _polarisation_turn(orientation: Tensor, zenith: Tensor, azimuth: Tensor) -> tuple[Tensor, Tensor]:
    """cos ψ and sin ψ of the turn from local to global field components (7.1-15): each [batch, rays]."""
    yaw, tilt, roll = orientation[:, :, None].unbind(1)
    turn = azimuth - yaw
    cos_turn, sin_turn, cos_zenith = torch.cos(turn), torch.sin(turn), torch.cos(zenith)
    real = torch.sin(roll) * cos_zenith * sin_turn + torch.cos(roll) * (
        torch.cos(tilt) * torch.sin(zenith) - torch.sin(tilt) * cos_zenith * cos_turn
    )
    imaginary = torch.sin(roll) * cos_turn + torch.sin(tilt) * torch.cos(roll) * sin_turn
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
