"""Channels in one HDF5 file: written in a stream, finished by a rename, continued after a kill, read memory-mapped.

The file under construction has its final size from the start. Chunks are written in place, each with a checksum when it is
done, so a process that dies at any moment leaves a file that HDF5 can open and that says what is still missing. HDF5 guards
its own structures, except the heap of strings of variable length: there are none.
"""

import json
import math
import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chanest.channels.rays import FIELD_NAMES, Rays
from chanest.channels.source import ChannelSource
from vlista_core.draws import Split
from vlista_core.files import cache_folder, check_folder, only_writer, replacing, versions, writing
from vlista_core.problems import check_count
from vlista_core.validation import printable

FORMAT = "chanest-channels-2"
_EARLIER = ("chanest-channels-1",)
"""Formats of before, whose rays had one cross-polarisation ratio per sample."""
SNR_DEFINITION = "E|h_ij|^2 = 1 over the ensemble; SNR = 1 / noise_var, noise_var = E|n|^2 per antenna before combining"
CHUNK = 256
_STRUCTURE = 1 << 16
"""Bytes of a file besides its data, and more."""
_RAYS = tuple(map("rays/{}".format, FIELD_NAMES))
"""In a file of channels whose rays are known: all of them or none."""
_TYPES = dict.fromkeys(_RAYS, "float32") | {"h": "complex64", "rays/model": "int64", "written": "uint32"}
"""`written` has a checksum for each chunk, 0 before it is written."""
_Maps = dict[str, "np.memmap[tuple[int, ...], np.dtype[np.generic]]"]


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
        found, maps = _opened(path)
        written = maps["written"]
        if not written.all():
            missing = f"{int((written == 0).sum())} of {len(written)} chunks are missing"
            raise ValueError(f"{path}: incomplete: {missing}; generate it again")
        split = cast(Split, found["split"])
        return cls(path, str(found["channel_hash"]), int(found["seed"]), split, int(found["count"]))

    def check_holds(self, channel_hash: str, scenario: str) -> None:
        """ValueError unless the file holds channels of the scenario of this hash and name."""
        if self.channel_hash != channel_hash:
            raise ValueError(
                f"{self.path}: holds channels of another scenario (channel hash {printable(self.channel_hash, 40)}, "
                f"that of {scenario} is {channel_hash})"
            )

    def holds(self, indices: range, seed: int, split: Split) -> bool:
        """Whether all these samples of the stream (seed, split) are in the file."""
        return (seed, split) == (self.seed, self.split) and indices[-1] < self.count

    def read(self, indices: range) -> tuple[Tensor, Rays | None]:
        """h and rays of consecutive samples; None for rays that nobody knows."""
        for chunk in range(indices.start // CHUNK, -(-indices.stop // CHUNK)):
            if chunk not in self._sound:
                if not _is_written(self._maps, chunk, f"{self.channel_hash} {self.seed} {self.split}"):
                    place = f"samples {chunk * CHUNK} to {(chunk + 1) * CHUNK - 1}"
                    raise ValueError(f"{self.path}: damaged: the checksum of {place} does not match; generate it again")
                self._sound.add(chunk)
        part = slice(indices.start, indices.stop)
        h, *rays = (torch.from_numpy(np.array(self._maps[name][part])) for name in _names(self._maps))
        return h, Rays(*rays) if rays else None

    @cached_property
    def _sound(self) -> set[int]:
        """Chunks whose checksum has been found to match."""
        return set()

    @cached_property
    def _maps(self) -> _Maps:
        return _opened(self.path)[1]


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
    that decides the channels, and after the format, so that nobody has to delete files of an earlier one.
    """
    folder = cache_folder("chanest", "CHANEST_CACHE")
    check_folder(folder)
    edition = FORMAT.rpartition("-")[2]
    return write_channels(folder / f"{data.channel_hash}-{data.split}-{data.seed}-{data.count}-{edition}.h5", data)


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

    sample = _parts(*data.source.sample(1, seed=0))
    room = _STRUCTURE + data.count * (1 + sum(part.nbytes for part in sample.values()))
    with replacing(partial) as new:
        if hasattr(os, "posix_fallocate"):
            with new.open("wb") as reserved:
                os.posix_fallocate(reserved.fileno(), 0, room)
        with h5py.File(new, "w", libver="latest") as file:
            for name, value in data.attributes().items():
                file.attrs[name] = np.bytes_(value.encode()) if isinstance(value, str) else value
            for name, part in sample.items():
                file.create_dataset(name, (data.count, *part.shape[1:]), part.dtype)[0] = 0
            file.create_dataset("written", (-(-data.count // CHUNK),), np.uint32)[0] = 0


def _fill(partial: Path, data: DataSet, on_progress: Callable[[int], None]) -> None:
    """Write the chunks that are missing, not through the maps: a full disk would end the process with a bus error."""
    maps, identity = _opened(partial)[1], f"{data.channel_hash} {data.seed} {data.split}"
    done = [_is_written(maps, chunk, identity) for chunk in range(len(maps["written"]))]
    places = {name: (values.offset, values.strides[0]) for name, values in maps.items()}
    del maps  # Windows renames no file that is mapped.
    with partial.open("r+b") as file:

        def put(name: str, index: int, content: NDArray[np.generic]) -> None:
            first, step = places[name]
            file.seek(first + index * step)
            file.write(content.tobytes())
            file.flush()

        for chunk, start in enumerate(range(0, data.count, CHUNK)):
            stop = min(start + CHUNK, data.count)
            if not done[chunk]:
                parts = _parts(*data.source.sample(stop - start, seed=data.seed, split=data.split, start=start))
                for name, part in parts.items():
                    put(name, start, part)
                put("written", chunk, np.array(_checksum(parts, chunk, identity), np.uint32))
            on_progress(stop)
        os.fsync(file.fileno())


def _check_same(path: Path, data: DataSet, *, also: tuple[str, ...] = ()) -> None:
    found, wanted = _opened(path)[0], data.attributes()
    for name in ("channel_hash", "seed", "split", "count", *also):
        if found.get(name) != wanted[name]:
            raise ValueError(
                f"{path}: already holds another data set ({name} = {printable(found.get(name))}, wanted {wanted[name]}); "
                "delete it or choose another name"
            )


def _is_written(maps: _Maps, chunk: int, identity: str) -> bool:
    """Whether a chunk is whole. identity: of the stream of samples it is of."""
    parts = {name: maps[name][chunk * CHUNK : (chunk + 1) * CHUNK] for name in _names(maps)}
    return int(maps["written"][chunk]) == _checksum(parts, chunk, identity)


def _parts(h: Tensor, rays: Rays | None) -> dict[str, NDArray[np.generic]]:
    """What a file has of some samples, by name."""
    known = zip(_RAYS, rays.tensors(), strict=True) if rays is not None else ()
    return {"h": h.numpy(), **{name: tensor.numpy() for name, tensor in known}}


def _names(found: Mapping[str, object]) -> tuple[str, ...]:
    """Of the data sets that a file with these must have: rays are all there or none of them."""
    return ("h", *(_RAYS if any(name in found for name in _RAYS) else ()))


def _checksum(parts: Mapping[str, NDArray[np.generic]], chunk: int, identity: str) -> int:
    """Of what a chunk holds by name, of its place and of the stream; never 0."""
    checksum = zlib.crc32(f"{identity} {chunk}".encode())
    for name, part in parts.items():
        checksum = zlib.crc32(part.tobytes(), zlib.crc32(f"{name} {part.shape}".encode(), checksum))
    return checksum or 1


def _opened(path: Path) -> tuple[dict[str, str | int], _Maps]:
    """What a file says of itself; h, the rays and the checksums of chunks by name, mapped into memory."""
    import h5py

    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    try:
        with h5py.File(path, "r", locking=False) as file:
            attributes = {name: _plain(file.attrs[name]) for name in file.attrs}
            if attributes.get("format") == FORMAT:
                found = {name: file[name] for name in _TYPES if name in file}
                layout = {name: (each.dtype, each.id.get_offset(), each.shape) for name, each in found.items()}
    except (OSError, RuntimeError, LookupError, TypeError, ValueError, AttributeError, MemoryError) as error:
        raise ValueError(f"{path}: truncated, damaged or not an HDF5 file ({printable(error)})") from None
    if attributes.get("format") in _EARLIER:
        raise ValueError(
            f"{path}: a file of channels of an earlier version ({attributes['format']}); generate it again"
        )
    if attributes.get("format") != FORMAT:
        said = printable(repr(attributes.get("format")))
        raise ValueError(f"{path}: not a file of channels: format must be {FORMAT}, got {said}")
    if fault := _misfit(attributes, layout, path.stat().st_size):
        raise ValueError(f"{path}: not a file of channels: {fault}")
    return attributes, {name: np.memmap(path, dtype, "r", *place) for name, (dtype, *place) in layout.items()}


def _plain(value: object) -> str | int:
    """An attribute as it was written: strings are of fixed length, and were of variable length in an earlier format."""
    if isinstance(value, str | bytes):
        return value if isinstance(value, str) else value.decode()
    return int(cast(int, value))


def _misfit(
    attributes: dict[str, str | int], layout: Mapping[str, tuple[np.dtype[np.generic], int | None, tuple[int, ...]]],
    size: int,
) -> str:  # fmt: skip
    """Why a file of `size` bytes cannot be what `_create` made; empty where it can."""
    count = attributes.get("count")
    if not isinstance(count, int) or count < 1 or attributes.get("split") not in get_args(Split):
        return "count and split are missing or wrong"
    if not isinstance(attributes.get("channel_hash"), str) or not isinstance(attributes.get("seed"), int):
        return "channel_hash and seed are missing or wrong"
    for name in (*_names(layout), "written"):
        if name not in layout:
            return f"data set {name} is missing"
        dtype, offset, shape = layout[name]
        entries = -(-count // CHUNK) if name == "written" else count
        if dtype.name != _TYPES[name] or shape[:1] != (entries,) or 0 in shape or offset is None:
            return f"data set {name} has no data, another type or not {entries} entries"
        if offset + dtype.itemsize * math.prod(shape) > size:
            return f"data set {name} reaches beyond the end of the file"
    return ""
