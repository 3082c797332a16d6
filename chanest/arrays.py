"""Antenna arrays: element positions, steering vectors, polarisation, orientations; the element order is Sionna's.

Elements lie in the local y–z plane and face +x. The index runs down a column (z decreasing), then to the next column
(y increasing). A dual polarised array lists all elements of the first polarisation, then all of the second. Lengths are
in wavelengths, angles in radians, zenith 0 is up.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from vlista_core.configured import argument
from vlista_core.problems import check_count

Polarization = Literal["V", "H", "VH", "cross"]
Pattern = Literal["omni", "38.901", "38.901-handheld"]

_SLANTS: dict[str, tuple[float, ...]] = {
    "V": (0.0,),
    "H": (math.pi / 2,),
    "VH": (0.0, math.pi / 2),
    "cross": (-math.pi / 4, math.pi / 4),
}


@argument
@dataclass(frozen=True)
class Array:
    """A uniform planar array; one row or one column makes it a uniform linear one."""

    rows: int
    columns: int
    vertical_spacing: float = 0.5
    horizontal_spacing: float = 0.5
    polarization: Polarization = "V"
    pattern: Pattern = "omni"

    def __post_init__(self) -> None:
        check_count("rows", self.rows)
        check_count("columns", self.columns)
        for name in ("vertical_spacing", "horizontal_spacing"):
            spacing = getattr(self, name)
            if not (isinstance(spacing, (int, float)) and 0.0 < spacing < math.inf):
                raise ValueError(f"{name} must be a positive number of wavelengths, got {spacing!r}")
        for name, allowed in (("polarization", get_args(Polarization)), ("pattern", get_args(Pattern))):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")

    @property
    def elements(self) -> int:
        """How many places carry an antenna."""
        return self.rows * self.columns

    @property
    def slants(self) -> tuple[float, ...]:
        """The slant angle of each polarisation, one or two of them."""
        return _SLANTS[self.polarization]

    @property
    def ports(self) -> int:
        """How many antennas there are: elements times polarisations."""
        return self.elements * len(self.slants)

    def positions(self) -> Tensor:
        """Place of every port in wavelengths: [ports, 3], float64."""
        z = ((self.rows - 1) / 2 - torch.arange(self.rows, dtype=torch.float64)) * self.vertical_spacing
        y = (torch.arange(self.columns, dtype=torch.float64) - (self.columns - 1) / 2) * self.horizontal_spacing
        x = torch.zeros(1, dtype=torch.float64)
        return torch.cartesian_prod(x, y, z).repeat(len(self.slants), 1)

    def steering(self, zenith: Tensor, azimuth: Tensor) -> Tensor:
        """Phase of a plane wave at every element, exp(j2π r̂·d): angles [...] in the local frame -> [..., elements]."""
        return self.steering_of_cosines(torch.sin(zenith) * torch.sin(azimuth), torch.cos(zenith))

    def steering_of_cosines(self, across: Tensor, up: Tensor) -> Tensor:
        """The same from direction cosines along +y and +z: across, up [...] -> [..., elements]."""
        place = self.positions()[: self.elements].to(across)
        phase = 2 * math.pi * (across[..., None] * place[:, 1] + up[..., None] * place[:, 2])
        return torch.polar(torch.ones_like(phase), phase)


@dataclass(frozen=True)
class Sector:
    """The orientations an end may take: yaw and tilt uniform within ± their spread, in radians; roll is zero."""

    yaw: float = 0.0
    yaw_spread: float = 0.0
    tilt: float = 0.0
    tilt_spread: float = 0.0

    def orient(self, draws: Tensor) -> Tensor:
        """Orientations from uniform numbers. draws: [batch, 2] in [0, 1) -> [batch, 3]."""
        yaw = self.yaw + self.yaw_spread * (2 * draws[:, 0] - 1)
        tilt = self.tilt + self.tilt_spread * (2 * draws[:, 1] - 1)
        return torch.stack([yaw, tilt, torch.zeros_like(yaw)], dim=1)

    def quadrature(self, *, yaws: int = 60, tilts: int = 6) -> Tensor:
        """Midpoints of a grid over the sector: [points, 3], float64. An angle that does not vary gets one point."""
        counts = (yaws if self.yaw_spread else 1, tilts if self.tilt_spread else 1)
        midpoints = ((torch.arange(count, dtype=torch.float64) + 0.5) / count for count in counts)
        return self.orient(torch.cartesian_prod(*midpoints))


def ula(elements: int, *, spacing: float = 0.5, polarization: Polarization = "V", pattern: Pattern = "omni") -> Array:
    """A horizontal uniform linear array."""
    return Array(1, elements, horizontal_spacing=spacing, polarization=polarization, pattern=pattern)


def upa(
    rows: int, columns: int, *, spacing: float = 0.5, polarization: Polarization = "V", pattern: Pattern = "omni"
) -> Array:
    """A uniform planar array with the same spacing in both directions."""
    return Array(rows, columns, spacing, spacing, polarization, pattern)
