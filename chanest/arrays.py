"""Antenna arrays: element positions, steering vectors, polarisation; the element order is Sionna's.

Elements lie in the local y–z plane and face +x. The index runs down a column (z decreasing), then to the next column
(y increasing). A dual polarised array lists all elements of the first polarisation, then all of the second. Lengths are
in wavelengths, angles in radians, zenith 0 is up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from vlista_core.configured import argument

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
        for name, count in (("rows", self.rows), ("columns", self.columns)):
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {count!r}")
        for name, spacing in (
            ("vertical_spacing", self.vertical_spacing),
            ("horizontal_spacing", self.horizontal_spacing),
        ):
            if not (isinstance(spacing, (int, float)) and 0.0 < spacing < math.inf):
                raise ValueError(f"{name} must be a positive number of wavelengths, got {spacing!r}")
        if self.polarization not in get_args(Polarization):
            raise ValueError(
                f"polarization must be one of {', '.join(get_args(Polarization))}, got {self.polarization!r}"
            )
        if self.pattern not in get_args(Pattern):
            raise ValueError(f"pattern must be one of {', '.join(get_args(Pattern))}, got {self.pattern!r}")

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
        row = torch.arange(self.rows, dtype=torch.float64)
        column = torch.arange(self.columns, dtype=torch.float64)
        z = ((self.rows - 1) / 2 - row) * self.vertical_spacing
        y = (column - (self.columns - 1) / 2) * self.horizontal_spacing
        place = torch.stack(
            [torch.zeros(self.elements, dtype=torch.float64), y.repeat_interleave(self.rows), z.repeat(self.columns)], 1
        )
        return place.repeat(len(self.slants), 1)

    def steering(self, zenith: Tensor, azimuth: Tensor) -> Tensor:
        """Phase of a plane wave at every element, exp(j2π r̂·d).

        zenith, azimuth: [...] in the local frame -> [..., elements], of modulus one. The angles may
        have any shapes that broadcast.
        """
        across = torch.sin(zenith) * torch.sin(azimuth)
        up = torch.cos(zenith).expand_as(across)
        return self.steering_of_cosines(across, up)

    def steering_of_cosines(self, across: Tensor, up: Tensor) -> Tensor:
        """The same from direction cosines along +y and +z: across, up [...] -> [..., elements]."""
        place = self.positions()[: self.elements].to(across)
        phase = 2 * math.pi * (across[..., None] * place[:, 1] + up[..., None] * place[:, 2])
        return torch.polar(torch.ones_like(phase), phase)


def ula(elements: int, *, spacing: float = 0.5, polarization: Polarization = "V", pattern: Pattern = "omni") -> Array:
    """A horizontal uniform linear array."""
    return Array(1, elements, horizontal_spacing=spacing, polarization=polarization, pattern=pattern)


def upa(
    rows: int, columns: int, *, spacing: float = 0.5, polarization: Polarization = "V", pattern: Pattern = "omni"
) -> Array:
    """A uniform planar array with the same spacing in both directions."""
    return Array(rows, columns, spacing, spacing, polarization, pattern)
