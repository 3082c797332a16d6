"""What a scenario file says of the channel: the base of the sections, one of which stands beside every source."""

import math
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from chanest.arrays import Array, Pattern, Polarization, Sector
from chanest.channels.source import Backend, ChannelSource

if TYPE_CHECKING:
    from vlista_core.tensorfile import Json


DELAY_KEYS = ("subcarriers", "subcarrier_spacing", "delay_spread", "timing_offset", "delay_window")
"""Of channel sections: what decides delays and where they are looked at, and no direction."""


class Section(BaseModel):
    """A table of a scenario file: frozen, without unknown keys, with the types as written.

    The docstring of a key is its description, for `chanest show` and the site.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class ArraySection(Section):
    """An array and the orientations it may take, in wavelengths and degrees."""

    rows: int = Field(ge=1, le=1024)
    """Elements one above the other."""
    columns: int = Field(ge=1, le=1024)
    """Elements side by side."""
    spacing: float = Field(default=0.5, ge=1e-3, le=1e3)
    """From element to element, in wavelengths."""
    polarization: Polarization = "V"
    """V, H, both (VH), or cross: both slanted by 45°. Two polarisations double the antennas."""
    pattern: Pattern = "omni"
    """Of an element: omni, or the patterns of TR 38.901."""
    yaw: float = Field(default=0.0, ge=-360, le=360)
    """Degrees that the array is turned, from looking along +x towards +y."""
    yaw_spread: float = Field(default=0.0, ge=0, le=180)
    """Every sample turns it by up to as many degrees more, either way."""
    tilt: float = Field(default=0.0, ge=-90, le=90)
    """Degrees that the array looks down."""
    tilt_spread: float = Field(default=0.0, ge=0, le=90)
    """Every sample tilts it by up to as many degrees more, either way."""

    def array(self) -> Array:
        """The geometry."""
        return Array(self.rows, self.columns, self.spacing, self.spacing, self.polarization, self.pattern)

    def sector(self) -> Sector:
        """The orientations, in radians."""
        return Sector(*(math.radians(value) for value in (self.yaw, self.yaw_spread, self.tilt, self.tilt_spread)))


class ChannelSection(Section, ABC):
    """A kind of channel. A subclass has `kind: Literal["…"]`, the keys of its source, and one line in `chanest.scenario`.

    Where a source can take path loss and shadowing out, its section has the key `normalisation` (see `Normalisation`).
    """

    @abstractmethod
    def source(self, bs: ArraySection, ue: ArraySection, backend: Backend = "factored") -> ChannelSource:
        """The distribution of channels between these ends."""

    def identity(self, bs: ArraySection, ue: ArraySection) -> "dict[str, Json]":
        """What decides the channels besides the ends."""
        content: dict[str, Json] = self.model_dump(mode="json")
        return content


def scenario_folder() -> Path:
    """Of the shipped scenarios: inside the package when installed from a wheel, beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "scenarios", package.parent / "scenarios"):
        if folder.is_dir():
            return folder
    raise ValueError("the shipped scenarios were not found; reinstall the package")


def around_carrier(subcarriers: int, spacing: float) -> tuple[float, ...] | None:
    """Baseband frequencies of subcarriers around the carrier, or None for a single one: a narrowband channel."""
    if subcarriers == 1:
        return None
    return tuple(spacing * (k - subcarriers // 2) for k in range(subcarriers))
