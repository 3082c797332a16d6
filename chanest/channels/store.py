"""Channels in one HDF5 file: written in a stream, finished by a rename, continued after a kill, read memory-mapped.

The file under construction has its final size from the start. Chunks are written in place and flagged when done,
so a process that dies at any moment leaves a file that HDF5 can open and that says what is still missing.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

from chanest.channels.rays import FIELD_NAMES, Rays
from chanest.channels.source import ChannelSource
from vlista_core.draws import Split
from vlista_core.files import cache_folder, check_folder, only_writer, replacing, versions, writing
from vlista_core.problems import check_count

FORMAT = "chanest-channels-1"
SNR_DEFINITION = "E|h_ij|^2 = 1 over the ensemble; SNR = 1 / noise_var, noise_var = E|n|^2 per antenna before combining"
CHUNK = 256
_STRUCTURE = 1 << 16
"""Bytes of a file besides its data, and more."""
_DATA = ("h", *(f"rays/{name}" for name in FIELD_NAMES))


@dataclass(frozen=True)
class DataSet:
    """Samples 0 … count - 1 of the stream (seed, split) of a source, as `Scenario.data_set` describes them."""

    source: ChannelSource
    channel_hash: str
    """A name for everything that decides the channels."""
    scenario: str
    """The scenario in JSON, for the reader of the file."""
    split: Split
    seed: int
    count: int

    def attributes(self) -> dict[str, str | int]:
        """What the file says of itself."""
        return {
            "format": FORMAT,
            "scenario": self.scenario,
            "channel_hash": self.channel_hash,
            "seed": self.seed,
            "split": self.split,
            "count": self.count,
            "snr_definition": SNR_DEFINITION,
            "power_scale": json.dumps(self.source.scale),
            "versions": json.dumps(versions("sionna-no-rt")),
        }


@dataclass(frozen=True)
class ChannelFile:
    """A finished file of channels, opened for reading."""

    path: Path
    channel_hash: str
    seed: int
    split: Split
    count: int

    @classmethod
    def open(cls, path: str | Path) -> "ChannelFile":
        """Open a finished file; ValueError where it is missing, truncated or no file of channels."""
        path = Path(path)
        found = _read_attributes(path)
        written = _memory_maps(path)["written"]
        if not written.all():
            missing = f"{int((written == 0).sum())} of {len(written)} chunks are missing"
            raise ValueError(f"{path}: incomplete: {missing}; generate it again")
        split = cast(Split, found["split"])
        return cls(path, str(found["channel_hash"]), int(found["seed"]), split, int(found["count"]))

    def check_holds(self, channel_hash: str, scenario: str) -> None:
        """ValueError unless the file holds channels of the scenario of this hash and name."""
        if self.channel_hash != channel_hash:
            raise ValueError(
                f"{self.path}: holds channels of another scenario (channel hash {self.channel_hash}, "
                f"that of {scenario} is {channel_hash})"
            )

    def holds(self, indices: range, seed: int, split: Split) -> bool:
        """Whether all these samples of the stream (seed, split) are in the file."""
        return (seed, split) == (self.seed, self.split) and indices[-1] < self.count

    def read(self, indices: range) -> tuple[Tensor, Rays]:
        """h and rays of consecutive samples."""
        part = slice(indices.start, indices.stop)
        h, *rays = (torch.from_numpy(np.array(self._maps[name][part])) for name in _DATA)
        return h, Rays(*rays)

    @cached_property
    def _maps(self) -> "dict[str, np.memmap[tuple[int, ...], np.dtype[np.generic]]]":
        return _memory_maps(self.path)


def write_channels(
    path: str | Path, data: DataSet, *, on_progress: Callable[[int], None] = lambda done: None
) -> ChannelFile:
    """Generate `data` into `path`, continuing where an earlier run stopped.

    on_progress is told how many samples are done. A finished file of the same data set is left as it is.
    """
    check_count("count", data.count)
    path = Path(path)
    if not path.parent.is_dir():
        raise ValueError(f"{path}: the folder {path.parent} does not exist")
    if not path.exists():
        with only_writer(path.with_name(path.name + ".lock"), str(path)):
            if not path.exists():
                _generate(path, data, on_progress)
    _check_same(path, data)
    on_progress(data.count)
    return ChannelFile.open(path)


def cached_channels(data: DataSet) -> ChannelFile:
    """`data` from the cache directory, generated there the first time.

    The directory is $CHANEST_CACHE, else `chanest` in the user's cache; the file is named after the hash of everything
    that decides the channels.
    """
    folder = cache_folder("chanest", "CHANEST_CACHE")
    check_folder(folder)
    return write_channels(folder / f"{data.channel_hash}-{data.split}-{data.seed}-{data.count}.h5", data)


def _generate(path: Path, data: DataSet, on_progress: Callable[[int], None]) -> None:
    """Write and fill `path` under another name, and have the disk hold it before the rename says that it does."""
    partial = path.with_name(path.name + ".partial")
    if not partial.exists():
        _create(partial, data)
    _check_same(partial, data, also=("versions",))
    with writing(path):
        _fill(partial, data, on_progress)
        os.replace(partial, path)


def _create(partial: Path, data: DataSet) -> None:
    """An empty file of the final size, under its name only when complete in structure.

    Where the system can reserve room, a disk without enough of it is found here: HDF5 itself crashes on a full one.
    """
    import h5py

    h, rays = data.source.sample(1, seed=0)
    room = _STRUCTURE + data.count * (1 + sum(tensor.nbytes for tensor in (h, *rays.tensors())))
    with replacing(partial) as new:
        if hasattr(os, "posix_fallocate"):
            with new.open("wb") as reserved:
                os.posix_fallocate(reserved.fileno(), 0, room)
        with h5py.File(new, "w", libver="latest") as file:
            file.attrs.update(data.attributes())
            for name, tensor in zip(_DATA, (h, *rays.tensors()), strict=True):
                file.create_dataset(name, (data.count, *tensor.shape[1:]), tensor.numpy().dtype)[0] = 0
            file.create_dataset("written", (-(-data.count // CHUNK),), np.uint8)[0] = 0


def _fill(partial: Path, data: DataSet, on_progress: Callable[[int], None]) -> None:
    """Write the chunks that are missing, not through the maps: a full disk would end the process with a bus error."""
    maps = _memory_maps(partial)
    done = maps["written"].tolist()
    places = {name: (values.offset, values.strides[0]) for name, values in maps.items()}
    del maps  # Windows renames no file that is mapped.
    with partial.open("r+b") as file:

        def put(name: str, index: int, content: bytes) -> None:
            first, step = places[name]
            file.seek(first + index * step)
            file.write(content)
            file.flush()

        for chunk, start in enumerate(range(0, data.count, CHUNK)):
            stop = min(start + CHUNK, data.count)
            if not done[chunk]:
                h, rays = data.source.sample(stop - start, seed=data.seed, split=data.split, start=start)
                for name, tensor in zip(_DATA, (h, *rays.tensors()), strict=True):
                    put(name, start, tensor.numpy().tobytes())
                put("written", chunk, b"\1")
            on_progress(stop)
        os.fsync(file.fileno())


def _check_same(path: Path, data: DataSet, *, also: tuple[str, ...] = ()) -> None:
    found, wanted = _read_attributes(path), data.attributes()
    for name in ("channel_hash", "seed", "split", "count", *also):
        if found[name] != wanted[name]:
            raise ValueError(
                f"{path}: already holds another data set ({name} = {found[name]}, wanted {wanted[name]}); "
                "delete it or choose another name"
            )


def _read_attributes(path: Path) -> dict[str, str | int]:
    import h5py

    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    try:
        with h5py.File(path, "r", locking=False) as file:
            attributes = {name: file.attrs[name] for name in file.attrs}
    except OSError as error:
        raise ValueError(f"{path}: truncated, or not an HDF5 file ({error})") from None
    if attributes.get("format") != FORMAT:
        raise ValueError(f"{path}: not a file of channels: format must be {FORMAT}, got {attributes.get('format')!r}")
    return {name: value if isinstance(value, str) else int(value) for name, value in attributes.items()}


def _memory_maps(path: Path) -> "dict[str, np.memmap[tuple[int, ...], np.dtype[np.generic]]]":
    """h, the rays and the flags of the chunks that are written, by name."""
    import h5py

    names = (*_DATA, "written")
    with h5py.File(path, "r", locking=False) as file:
        missing = [name for name in names if name not in file or file[name].id.get_offset() is None]
        if missing:
            raise ValueError(f"{path}: not a file of channels: data set {missing[0]} is missing or has no data")
        layout = {name: (file[name].dtype, file[name].id.get_offset(), file[name].shape) for name in names}
    return {name: np.memmap(path, dtype, "r", *place) for name, (dtype, *place) in layout.items()}
