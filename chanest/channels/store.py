"""Channels in one HDF5 file: written in a stream, finished by a rename, continued after a kill, read memory-mapped.

The file under construction has its final size from the start. Chunks are written through a memory map and flagged when
done, so a process that dies at any moment leaves a file that HDF5 can open and that says what is still missing.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chanest.channels.rays import FIELD_NAMES, Rays
from chanest.scenario import Scenario
from vlista_core.draws import Split
from vlista_core.problems import check_count

FORMAT = "chanest-channels-1"
SNR_DEFINITION = "E|h_ij|^2 = 1 over the ensemble; SNR = 1 / noise_var, noise_var = E|n|^2 per antenna before combining"
CHUNK = 256


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

    def check_scenario(self, scenario: Scenario) -> None:
        """ValueError unless the file holds channels of `scenario`."""
        if self.channel_hash != scenario.channel_hash():
            raise ValueError(
                f"{self.path}: holds channels of another scenario (channel hash {self.channel_hash}, "
                f"that of {scenario.name} is {scenario.channel_hash()})"
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
    path: str | Path,
    scenario: Scenario,
    *,
    count: int,
    seed: int,
    split: Split,
    on_progress: Callable[[int], None] = lambda done: None,
) -> ChannelFile:
    """Generate samples 0 … count - 1 of the stream (seed, split) into `path`, continuing where an earlier run stopped.

    on_progress is told how many samples are done. A finished file of the same data set is left as it is.
    """
    check_count("count", count)
    path = Path(path)
    wanted = _attributes(scenario, count, seed, split)
    if path.exists():
        _check_same(path, wanted)
        on_progress(count)
        return _opened(path)
    partial = path.with_name(path.name + ".partial")
    if not path.parent.is_dir():
        raise ValueError(f"{path}: the folder {path.parent} does not exist")
    with _locked(path.parent, wait=True):
        if not partial.exists():
            _create(partial, scenario, wanted)
    with _locked(partial):
        _check_same(partial, wanted, also=("versions",))
        _fill(partial, scenario, count, seed, split, on_progress)
        _synchronise(partial)
        os.replace(partial, path)
    return _opened(path)


def cached_channels(
    scenario: Scenario,
    *,
    split: Split,
    count: int | None = None,
    seed: int | None = None,
    on_progress: Callable[[int], None] = lambda done: None,
) -> ChannelFile:
    """The scenario's data set of a split from the cache directory, generated there the first time.

    The directory is $CHANEST_CACHE, else $XDG_CACHE_HOME/chanest, else ~/.cache/chanest; the file is named after the
    hash of everything that decides the channels.
    """
    count = getattr(scenario.data, split) if count is None else count
    seed = scenario.data.seed if seed is None else seed
    folder = cache_directory()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{scenario.channel_hash()}-{split}-{seed}-{count}.h5"
    return write_channels(path, scenario, count=count, seed=seed, split=split, on_progress=on_progress)


def cache_directory() -> Path:
    """Where data sets are kept between runs."""
    if chosen := os.environ.get("CHANEST_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "chanest"


def _attributes(scenario: Scenario, count: int, seed: int, split: Split) -> dict[str, str | int]:
    return {
        "format": FORMAT,
        "scenario": json.dumps(scenario.model_dump(mode="json"), sort_keys=True),
        "channel_hash": scenario.channel_hash(),
        "seed": seed,
        "split": split,
        "count": count,
        "snr_definition": SNR_DEFINITION,
        "power_scale": json.dumps(scenario.source().scale),
        "versions": json.dumps({name: _version(name) for name in ("vlista", "torch", "sionna-no-rt")}, sort_keys=True),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _create(partial: Path, scenario: Scenario, attributes: dict[str, str | int]) -> None:
    """An empty file of the final size, under its name only when complete in structure."""
    import h5py

    source = scenario.source()
    rays = source.rays(range(1), seed=0)
    shapes = {"h": (source.shape, np.dtype(np.complex64))}
    for name, tensor in zip(FIELD_NAMES, rays.tensors(), strict=True):
        shapes[f"rays/{name}"] = (tuple(tensor.shape[1:]), tensor.numpy().dtype)
    count = int(attributes["count"])
    new = partial.with_name(partial.name + ".new")
    with h5py.File(new, "w", libver="latest") as file:
        file.attrs.update(attributes)
        for name, (shape, dtype) in shapes.items():
            file.create_dataset(name, (count, *shape), dtype)[0] = 0
        file.create_dataset("written", (-(-count // CHUNK),), np.uint8)[0] = 0
    os.replace(new, partial)


def _fill(
    partial: Path, scenario: Scenario, count: int, seed: int, split: Split, on_progress: Callable[[int], None]
) -> None:
    source = scenario.source()
    maps = _memory_maps(partial, _layout(partial), mode="r+")
    written = maps.pop("written")
    done = 0
    for chunk in range(len(written)):
        start, stop = chunk * CHUNK, min((chunk + 1) * CHUNK, count)
        if not written[chunk]:
            h, rays = source.sample(stop - start, seed=seed, split=split, start=start)
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
    with path.open("rb") as file:
        os.fsync(file.fileno())


@contextmanager
def _locked(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold a lock on a file or folder; it goes with the process, however that ends."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    except BlockingIOError:
        raise ValueError(f"{path}: another process is writing this file; wait for it to finish") from None
    finally:
        os.close(descriptor)
