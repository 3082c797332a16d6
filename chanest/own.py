"""Channels of your own as a problem, in one call."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import Tensor

from chanest.arrays import Array
from chanest.channels.file import Axis
from chanest.channels.source import Normalisation
from chanest.pilots import BeamKind
from chanest.problem import ChannelProblem
from chanest.scenario import Scenario
from vlista_core.files import cache_folder, check_folder, replacing
from vlista_core.validation import sentence


def own_channels(
    channels: str | Path | NDArray[Any] | Tensor,
    *,
    bs: Array,
    ue: Array,
    pilots: int,
    axes: Sequence[Axis] = (),
    key: str = "",
    normalisation: Normalisation = "ensemble",
    beams: BeamKind = "quantised",
    chains: int = 0,
    snr_db: tuple[float, float] = (-10.0, 30.0),
    name: str = "",
) -> ChannelProblem:
    """A problem with channels from a file (see `chanest.channels.readers`) or an array, by default [N, N_r, N_t], downlink.

    bs, ue: the arrays at the base station, which sends, and at the user; axes: those of the array in its order, such as
    ("sample", "subcarrier", "receive", "transmit"); key: which array of a file of several; chains: RF chains of the user,
    0 for a digital one. Four fifths are for training, a tenth each for validation and test. An array is kept as .npy in the
    cache, named after its content, so that other processes can read it. For anything else write a scenario file, kind "file".
    """
    path = Path(channels) if isinstance(channels, str | Path) else _kept(channels)
    content = {
        "name": name or (path.stem if isinstance(channels, str | Path) else "own"),
        "description": f"own channels, {bs.ports} to {ue.ports} antennas",
        "bs": _section("bs", bs),
        "ue": _section("ue", ue),
        "channel": {
            "kind": "file",
            "path": str(path),
            "key": key,
            "axes": tuple(axes),
            "normalisation": normalisation,
        },
        "frontend": {"pilots": pilots, "beams": beams, "chains": chains},
        "snr_db": snr_db,
    }
    try:
        return ChannelProblem(Scenario.model_validate(content))
    except ValidationError as fault:
        raise ValueError(sentence(fault)) from None


def _section(name: str, array: Array) -> dict[str, object]:
    if array.vertical_spacing != array.horizontal_spacing and array.rows > 1 and array.columns > 1:
        raise ValueError(f"{name} must have the same spacing in both directions, got {array}")
    spacing = array.horizontal_spacing if array.columns > 1 else array.vertical_spacing
    return {
        "rows": array.rows,
        "columns": array.columns,
        "spacing": spacing,
        "polarization": array.polarization,
        "pattern": array.pattern,
    }


def _kept(channels: NDArray[Any] | Tensor) -> Path:
    """The .npy of an array in the cache."""
    values = np.ascontiguousarray(channels.numpy(force=True) if isinstance(channels, Tensor) else channels)
    if values.dtype.kind not in "fciu":
        raise ValueError(f"channels must be the path of a file or an array of numbers, got an array of {values.dtype}")
    digest = hashlib.sha256(f"{values.shape} {values.dtype}".encode() + values.tobytes()).hexdigest()[:16]
    folder = cache_folder("chanest", "CHANEST_CACHE")
    check_folder(folder)
    path = folder / f"own-{digest}.npy"
    if not path.is_file():
        with replacing(path) as new, new.open("wb") as file:
            np.save(file, values, allow_pickle=False)
    return path
