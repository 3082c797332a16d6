"""Channels in one HDF5 file: written in a stream, finished by a rename, continued after a kill, read memory-mapped.

The file under construction has its final size from the start. Chunks are written through a memory map and flagged when
done, so a process that dies at any moment leaves a file that HDF5 can open and that says what is still missing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from torch import Tensor

from chanest.channels.rays import FIELD_NAMES, Rays
from chanest.channels.source import ChannelSource
from vlista_core.draws import Split
from vlista_core.files import cache_folder
from vlista_core.problems import check_count

FORMAT = "chanest-channels-1"
SNR_DEFINITION = "E|h_ij|^2 = 1 over the ensemble; SNR = 1 / noise_var, noise_var = E|n|^2 per antenna before combining"
CHUNK = 256


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


@dataclass(frozen=True)
class ChannelFile:
    """A finished file of channels, opened for reading."""

    path: Path
    channel_hash: str
    seed: int
    split: Split
    count: int
    layout: tuple[tuple[str, str, tuple[int, ...], int], ...]
    """Name, dtype, shape and byte offset of each data set."""

    @classmethod
    def open(cls, path: str | Path) -> ChannelFile:
        """Open a finished file; ValueError where it is missing, truncated or no file of channels."""
        return _opened(Path(path))

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
        tensors = {name: torch.from_numpy(np.array(values[part])) for name, values in self._maps.items()}
        return tensors["h"], Rays(*(tensors[f"rays/{name}"] for name in FIELD_NAMES))

    @cached_property
    def _maps(self) -> dict[str, NDArray[np.generic]]:
        return _memory_maps(self.path, self.layout, mode="r")


def write_channels(
    path: str | Path, data: DataSet, *, on_progress: Callable[[int], None] = lambda done: None
) -> ChannelFile:
    """Generate `data` into `path`, continuing where an earlier run stopped.

    on_progress is told how many samples are done. A finished file of the same data set is left as it is.
    """
    check_count("count", data.count)
    path = Path(path)
    wanted = _attributes(data)
    if not path.parent.is_dir():
        raise ValueError(f"{path}: the folder {path.parent} does not exist")
    lock = path.with_name(path.name + ".lock")
    if not path.exists():
        try:
            with FileLock(lock, blocking=False):
                if not path.exists():
                    _generate(path, data, wanted, on_progress)
                with suppress(OSError):
                    lock.unlink()
        except Timeout:
            raise ValueError(f"{path}: another process is writing this file; wait for it to finish") from None
    _check_same(path, wanted)
    on_progress(data.count)
    return _opened(path)


def cached_channels(data: DataSet, *, on_progress: Callable[[int], None] = lambda done: None) -> ChannelFile:
    """`data` from the cache directory, generated there the first time.

    The directory is $CHANEST_CACHE, else `chanest` in the user's cache; the file is named after the hash of everything
    that decides the channels.
    """
    folder = cache_folder("chanest", "CHANEST_CACHE")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{data.channel_hash}-{data.split}-{data.seed}-{data.count}.h5"
    return write_channels(path, data, on_progress=on_progress)


def _generate(path: Path, data: DataSet, attributes: dict[str, str | int], on_progress: Callable[[int], None]) -> None:
    partial = path.with_name(path.name + ".partial")
    if not partial.exists():
        _create(partial, data, attributes)
    _check_same(partial, attributes, also=("versions",))
    _fill(partial, data, on_progress)
    _synchronise(partial)
    os.replace(partial, path)


def _attributes(data: DataSet) -> dict[str, str | int]:
    return {
        "format": FORMAT,
        "scenario": data.scenario,
        "channel_hash": data.channel_hash,
        "seed": data.seed,
        "split": data.split,
        "count": data.count,
        "snr_definition": SNR_DEFINITION,
        "power_scale": json.dumps(data.source.scale),
        "versions": json.dumps({name: _version(name) for name in ("vlista", "torch", "sionna-no-rt")}, sort_keys=True),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _create(partial: Path, data: DataSet, attributes: dict[str, str | int]) -> None:
    """An empty file of the final size, under its name only when complete in structure."""
    import h5py

    rays = data.source.rays(range(1), seed=0)
    shapes = {"h": (data.source.shape, np.dtype(np.complex64))}
    for name, tensor in zip(FIELD_NAMES, rays.tensors(), strict=True):
        shapes[f"rays/{name}"] = (tuple(tensor.shape[1:]), tensor.numpy().dtype)
    count = data.count
    new = partial.with_name(partial.name + ".new")
    with h5py.File(new, "w", libver="latest") as file:
        file.attrs.update(attributes)
        for name, (shape, dtype) in shapes.items():
            file.create_dataset(name, (count, *shape), dtype)[0] = 0
        file.create_dataset("written", (-(-count // CHUNK),), np.uint8)[0] = 0
    os.replace(new, partial)


def _fill(partial: Path, data: DataSet, on_progress: Callable[[int], None]) -> None:
    maps = _memory_maps(partial, _layout(partial), mode="r+")
    written = maps.pop("written")
    done = 0
    for chunk in range(len(written)):
        start, stop = chunk * CHUNK, min((chunk + 1) * CHUNK, data.count)
        if not written[chunk]:
            h, rays = data.source.sample(stop - start, seed=data.seed, split=data.split, start=start)
            for values, tensor in zip(maps.values(), (h, *rays.tensors()), strict=True):
                values[start:stop] = tensor.numpy()
            written[chunk] = 1
        done += stop - start
        on_progress(done)


def _opened(path: Path) -> ChannelFile:
    attributes = _read_attributes(path)
    layout = _layout(path)
    size = path.stat().st_size
    if any(offset + np.dtype(kind).itemsize * int(np.prod(shape)) > size for _, kind, shape, offset in layout):
        raise ValueError(
            f"{path}: truncated: the file has {size} bytes, fewer than its data sets need; generate it again"
        )
    flags = _memory_maps(path, tuple(entry for entry in layout if entry[0] == "written"), mode="r")["written"]
    if not flags.all():
        raise ValueError(
            f"{path}: incomplete: {int((flags == 0).sum())} of {len(flags)} chunks are missing; generate it again"
        )
    split = str(attributes["split"])
    if split not in ("train", "validation", "test"):
        raise ValueError(f"{path}: split must be train, validation or test, got {split!r}")
    return ChannelFile(
        path=path,
        channel_hash=str(attributes["channel_hash"]),
        seed=int(attributes["seed"]),
        split=split,  # type: ignore[arg-type]
        count=int(attributes["count"]),
        layout=tuple(entry for entry in layout if entry[0] != "written"),
    )


def _check_same(path: Path, wanted: dict[str, str | int], *, also: tuple[str, ...] = ()) -> None:
    found = _read_attributes(path)
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


def _layout(path: Path) -> tuple[tuple[str, str, tuple[int, ...], int], ...]:
    import h5py

    names = ("h", *(f"rays/{name}" for name in FIELD_NAMES), "written")
    with h5py.File(path, "r", locking=False) as file:
        missing = [name for name in names if name not in file or file[name].id.get_offset() is None]
        if missing:
            raise ValueError(f"{path}: not a file of channels: data set {missing[0]} is missing or has no data")
        return tuple((name, file[name].dtype.str, file[name].shape, file[name].id.get_offset()) for name in names)


def _memory_maps(
    path: Path, layout: tuple[tuple[str, str, tuple[int, ...], int], ...], *, mode: str
) -> dict[str, NDArray[np.generic]]:
    maps: dict[str, NDArray[np.generic]] = {}
    for name, kind, shape, offset in layout:
        kind = "<c8" if name == "h" else kind
        maps[name] = np.memmap(
            path, dtype=np.dtype(kind), mode="r+" if mode == "r+" else "r", offset=offset, shape=shape
        )
    return maps


def _synchronise(path: Path) -> None:
    """Have the disk hold what was written, before the rename says that it does."""
    with path.open("r+b") as file:
        os.fsync(file.fileno())
