"""A user's own channels, from a file of another program; nobody knows their rays.

Which split a channel belongs to is decided by a hash of its number, so that it stays when channels are added. Test and
validation are read in order and begin again after the last; a training sample is one of the training channels at random.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Self, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor

from chanest.arrays import Array
from chanest.channels.rays import Rays
from chanest.channels.readers import Layout, StoredArray, open_array
from chanest.channels.section import ArraySection, ChannelSection, around_carrier, scenario_folder
from chanest.channels.source import Backend, ChannelSource, Direction, Normalisation
from vlista_core.draws import Split, sample_generators, split_number

if TYPE_CHECKING:
    from vlista_core.tensorfile import Json

Axis = Literal["sample", "subcarrier", "receive", "transmit", "parts"]
"""Of an array of channels; parts are the real and the imaginary one."""
Elements = Literal["columns", "rows"]
"""How antennas are counted. columns: from the top of a column down, then the next column, as here and in Sionna; rows: along
the lowest row, then the row above it, as in DeepMIMO. Of two polarisations the first comes first in both."""

_AXES: tuple[Axis, ...] = ("sample", "receive", "transmit")
_DEEPMIMO_AXES: tuple[Axis, ...] = ("sample", "receive", "transmit", "subcarrier")
_LOOKED_AT = 4096
"""Training channels that the constant of the ensemble is taken from, at most."""
_COMPARED = 64
"""Channels that tell one file from another."""


@dataclass(frozen=True)
class FileSource(ChannelSource):
    """Channels of a file, which has `axes` in this order."""

    has_rays: ClassVar[bool] = False
    from_rays: ClassVar[bool] = False

    path: str = ""
    key: str = ""
    layout: Layout = "plain"
    base_station: int = 0
    axes: tuple[Axis, ...] = _AXES
    elements: Elements = "columns"
    shares: tuple[float, float, float] = (0.8, 0.1, 0.1)
    """Of training, validation and test channels."""
    normalisation: Normalisation = "ensemble"

    def __post_init__(self) -> None:
        shape, wanted = self.stored.shape, self._sizes()
        if len(shape) != len(self.axes):
            raise ValueError(
                f"{self.path}: axes must name the {len(shape)} axes of the array, of sizes {list(shape)}, got {list(self.axes)}"
            )
        for name, size in zip(self.axes, shape, strict=True):
            if name in wanted and size != wanted[name][0]:
                raise ValueError(
                    f"{self.path}: axis {name} must have {wanted[name][0]} entries, {wanted[name][1]}, got {size}"
                )
        if ("parts" in self.axes) == (self.stored.dtype.kind == "c"):
            said = (
                "complex numbers and an axis parts" if "parts" in self.axes else f"real numbers ({self.stored.dtype})"
            )
            allowed = "complex numbers, or real ones with an axis of 2 named parts"
            raise ValueError(f"{self.path}: the array must hold {allowed}, got {said}")
        for split in get_args(Split):
            if self.available(split) == 0:
                raise ValueError(f"{self.path}: too few channels: of {self._count}, none is for {split}")

    def _sizes(self) -> dict[Axis, tuple[int, str]]:
        """What axes must have, and why."""
        return {
            "receive": (self.rx.ports, "the antennas of the receiver"),
            "transmit": (self.tx.ports, "the antennas of the transmitter"),
            "parts": (2, "a real and an imaginary one"),
        }

    @cached_property
    def stored(self) -> StoredArray:
        """The array in the file."""
        return open_array(Path(self.path), self.key, self.layout, self.base_station)

    @property
    def _count(self) -> int:
        return self.stored.shape[self.axes.index("sample")]

    @cached_property
    def _members(self) -> dict[Split, NDArray[np.int64]]:
        """The numbers of the channels of each split."""
        place = _hashed(self._count)
        edges = np.cumsum(self.shares) / sum(self.shares)
        which = np.searchsorted(edges[:2], place, side="right")
        return {split: np.flatnonzero(which == number) for number, split in enumerate(get_args(Split))}

    def available(self, split: Split) -> int:
        return len(self._members[split])

    @cached_property
    def mean_power(self) -> float:
        if self.normalisation == "sample":
            return 1.0
        members = self._members["train"]
        chosen = members[:: -(-len(members) // _LOOKED_AT)]
        power = float(np.mean([_power(self._read(int(number))) for number in chosen]))
        if not 0 < power < np.inf:
            said = "no power" if power == 0 else "more power than numbers can hold"
            raise ValueError(f"{self.path}: there is {said} in the {len(chosen)} training channels that were looked at")
        return power

    def channels(self, indices: Sequence[int], *, seed: int, split: Split = "test") -> tuple[Tensor, Rays | None]:
        split_number(seed, split)
        members = self._members[split]
        if split == "train":
            generators = sample_generators(seed, split, indices, "file")
            places = [int(torch.randint(len(members), (), generator=generator)) for generator in generators]
        else:
            places = [index % len(members) for index in indices]
        return torch.from_numpy(np.stack([self._normalised(int(members[place])) for place in places])), None

    def _normalised(self, number: int) -> NDArray[np.complex64]:
        h = self._read(number).astype(np.complex128)
        factor = self.scale
        if self.normalisation == "sample":
            power = _power(h)
            if not power > 0:
                remedy = 'leave it out of the file or take normalisation = "ensemble"'
                raise ValueError(f"{self.path}: channel {number} has no power to normalise by; {remedy}")
            factor = 1 / math.sqrt(power)
        with np.errstate(over="ignore"):
            single = (factor * h).astype(np.complex64)
        if not np.isfinite(single).all():
            raise ValueError(
                f"{self.path}: channel {number} is too strong beside the training channels to compute with"
            )
        return single

    def _read(self, number: int) -> NDArray[np.complexfloating]:
        """Channel `number` of the file as it is there, axes in our order: [N_r, N_t], or [subcarriers, N_r, N_t]."""
        axis = self.axes.index("sample")
        try:
            values = self.stored.pick(axis, number)
        except (OSError, RuntimeError, LookupError, TypeError, ValueError) as fault:
            raise ValueError(f"{self.path}: channel {number} cannot be read ({fault})") from None
        left = [name for name in self.axes if name != "sample"]
        if values.shape != tuple(
            size for name, size in zip(self.axes, self.stored.shape, strict=True) if name != "sample"
        ):
            raise ValueError(f"{self.path}: channel {number} has another shape than the first, {list(values.shape)}")
        if not np.isfinite(values).all():
            raise ValueError(f"{self.path}: channel {number} has entries that are not finite; repair or leave it out")
        order = [left.index(name) for name in ("subcarrier", "receive", "transmit", "parts") if name in left]
        values = np.transpose(values, order)
        if "parts" in left:
            values = values[..., 0] + 1j * values[..., 1]
        values = values.reshape(self.shape)
        if self.elements == "rows":
            values = values[..., _by_columns(self.rx)[:, None], _by_columns(self.tx)]
        return values

    def content(self) -> str:
        """A hash of some of the channels and of how many there are: 16 hex digits."""
        total = hashlib.sha256(f"{self.stored.shape} {self.stored.dtype}".encode())
        for number in np.unique(np.linspace(0, self._count - 1, _COMPARED).astype(int)):
            total.update(np.ascontiguousarray(self._read(int(number))).tobytes())
        return total.hexdigest()[:16]


class FileSection(ChannelSection):
    """Channels of your own. A relative path counts from the folder of the scenario file, or is that of a shipped one.

    key: which array of a file that holds several; axes: those of the array in its order. layout "deepmimo" knows its own.
    """

    kind: Literal["file"]
    """Which channels these are."""
    path: str = Field(min_length=1)
    """A .npy, .npz, .mat or HDF5 file; a relative path counts from the folder of the scenario file."""
    key: str = ""
    """Which array of a file that holds several."""
    layout: Layout = "plain"
    """plain: an array with the axes below; deepmimo: as DeepMIMO saves it, which brings its own axes."""
    base_station: int = Field(default=0, ge=0)
    """Which one of a DeepMIMO file."""
    axes: tuple[Axis, ...] = Field(default=(), strict=False)
    """Of the array in its order: sample, receive, transmit, and subcarrier and parts (real, imaginary) where it has
    them; none is [sample, receive, transmit]."""
    elements: Elements | None = None
    """How antennas are counted. columns: down a column, then the next, as in Sionna; rows: along the lowest row, then
    the next, as in DeepMIMO."""
    carrier: float = Field(default=28e9, ge=1e6, le=1e13)
    """Carrier frequency in hertz."""
    direction: Direction = "downlink"
    """Who sends: downlink, the base station; uplink, the user."""
    subcarrier_spacing: float = Field(default=120e3, ge=1, le=1e10)
    """In hertz."""
    shares: tuple[float, float, float] = Field(default=(0.8, 0.1, 0.1), strict=False)
    """[training, validation, test] shares of the samples."""
    normalisation: Normalisation = "ensemble"
    """What makes E|h|² = 1. ensemble: one constant, so that weak users stay weak; sample: path loss and shadowing are
    taken out of each."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        axes, needed = self.known_axes, _AXES
        if len(set(axes)) < len(axes) or not set(needed) <= set(axes):
            allowed = f"name {', '.join(needed)}, and may name subcarrier and parts, each once"
            raise ValueError(f"axes must {allowed}, got {list(axes)}")
        if not all(0 < share <= 1 for share in self.shares):
            allowed = "[training, validation, test], each above 0 and at most 1"
            raise ValueError(f"shares must be {allowed}, got {list(self.shares)}")
        return self

    @property
    def known_axes(self) -> tuple[Axis, ...]:
        """The axes as given, else those of the layout."""
        return self.axes or (_DEEPMIMO_AXES if self.layout == "deepmimo" else _AXES)

    def source(self, bs: ArraySection, ue: ArraySection, backend: Backend = "factored") -> FileSource:
        axes, subcarriers = self.known_axes, 1
        path = self.path if Path(self.path).is_absolute() or _is_file(self.path) else str(scenario_folder() / self.path)
        stored = open_array(Path(path), self.key, self.layout, self.base_station)
        if "subcarrier" in axes and len(stored.shape) == len(axes):
            subcarriers = stored.shape[axes.index("subcarrier")]
        elements: Elements = self.elements or ("rows" if self.layout == "deepmimo" else "columns")
        return FileSource(
            bs.array(), ue.array(), self.carrier, self.direction, around_carrier(subcarriers, self.subcarrier_spacing),
            path=path, key=self.key, layout=self.layout, base_station=self.base_station, axes=axes, elements=elements,
            shares=self.shares, normalisation=self.normalisation,
        )  # fmt: skip

    def identity(self, bs: ArraySection, ue: ArraySection) -> "dict[str, Json]":
        """By what the file holds, not by where it is."""
        return {**self.model_dump(mode="json", exclude={"path"}), "content": self.source(bs, ue).content()}


def _is_file(path: str) -> bool:
    try:
        return Path(path).is_file()
    except (OSError, ValueError):  # a name that the system cannot have
        return False


def _power(h: NDArray[np.complexfloating]) -> float:
    with np.errstate(over="ignore"):
        return float(np.mean(np.abs(h.astype(np.complex128)) ** 2))


def _hashed(count: int) -> NDArray[np.float64]:
    """A number in [0, 1) for each of 0 … count - 1, by the mixing function of SplitMix64."""
    word = (np.arange(count, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        word = (word ^ (word >> np.uint64(shift))) * np.uint64(factor)
    return (word ^ (word >> np.uint64(31))) / 2.0**64


def _by_columns(array: Array) -> NDArray[np.int64]:
    """Where each antenna, counted by columns from the top, stands in a list that goes by rows from the lowest: [ports]."""
    port = np.arange(array.ports)
    first, element = port - port % array.elements, port % array.elements
    column, row = element // array.rows, element % array.rows
    return np.asarray(first + (array.rows - 1 - row) * array.columns + column)
