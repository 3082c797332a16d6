"""Arrays in files of other programs: NumPy, MATLAB (v5 and v7.3), HDF5 and what DeepMIMO saves; read as late as possible.

What a file is, its first bytes say, not its name. `.npy` is mapped into memory and HDF5 read slice by slice; `.npz` and
MATLAB v5 hold their arrays compressed and are read whole. A pickled object is refused.
"""

import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vlista_core.validation import printable

Layout = Literal["plain", "deepmimo"]
Values = NDArray[Any]

_NPY, _ZIP, _HDF5, _MATLAB = b"\x93NUMPY", b"PK", b"\x89HDF\r\n\x1a\n", b"MATLAB "
_USER_BLOCK = 512
"""Bytes before the HDF5 of a MATLAB file of version 7.3."""
_DEEPMIMO, _CHANNEL = "DeepMIMO_dataset", "channel"
_FAULTS = (
    OSError, RuntimeError, LookupError, TypeError, ValueError, AttributeError, MemoryError, SyntaxError, ArithmeticError,
    EOFError, tokenize.TokenError, zlib.error, struct.error, zipfile.BadZipFile,
)  # fmt: skip
"""What readers of NumPy, SciPy and HDF5 raise for damaged files."""
_COMPRESSED, _MATRIX, _FLAGS = 15, 14, 6
"""Types of elements of MATLAB v5."""


@dataclass(frozen=True, eq=False)
class StoredArray:
    """An array in a file, of which one entry of an axis is read at a time."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    pick: Callable[[int, int], Values]
    """(axis, index) -> the entries at `index` of `axis`, the other axes in their order."""


def open_array(path: Path, key: str, layout: Layout = "plain", base_station: int = 0) -> StoredArray:
    """The array `key` of a file (empty: its only one); ValueError of one sentence where there is none.

    deepmimo: `channel` as DeepMIMO 4 saves it, or the users of one base station in the cells of DeepMIMO's MATLAB version.
    """
    try:
        found = path.stat() if path.is_file() else None
    except (OSError, ValueError) as fault:
        raise ValueError(f"{printable(path)}: no such file of channels ({printable(fault, 60)})") from None
    if found is None:
        raise ValueError(f"{path}: no such file of channels")
    return _array_of(path, found.st_mtime_ns, found.st_size, key, layout, base_station)


@lru_cache(maxsize=2)
def _array_of(path: Path, modified: int, size: int, key: str, layout: Layout, base_station: int) -> StoredArray:
    """What `open_array` gives, kept until the file changes: a scenario asks more than once."""
    wanted = key or (_CHANNEL if layout == "deepmimo" else "")
    try:
        found = _opened(path, wanted, layout == "deepmimo", base_station)
    except _Unfit as fault:
        raise ValueError(f"{path}: {fault}") from None
    except _FAULTS as fault:
        raise ValueError(f"{path}: truncated, damaged or of another kind ({printable(fault, 120)})") from None
    if found.dtype.kind not in "fciu":
        raise ValueError(f"{path}: {wanted or 'the array'} must hold numbers, got {printable(found.dtype, 60)}")
    return found


class _Unfit(Exception):
    """What the file lacks, in words."""


def _opened(path: Path, key: str, deepmimo: bool, base_station: int) -> StoredArray:
    with path.open("rb") as file:
        start = file.read(_USER_BLOCK + len(_HDF5))
    if start.startswith(_NPY):
        return _of_array(np.load(path, mmap_mode="r", allow_pickle=False))
    if start.startswith(_ZIP):
        with np.load(path, allow_pickle=False) as arrays:
            return _of_array(arrays[_choose(key, arrays.files)])
    if start.startswith(_HDF5) or start[_USER_BLOCK:] == _HDF5:
        return _of_hdf5(path, key, start.startswith(_MATLAB), deepmimo, base_station)
    if start.startswith(_MATLAB):
        return _of_matlab(path, key, deepmimo, base_station)
    raise _Unfit("not a file of channels: it must be .npy, .npz, .mat or HDF5")


def _choose(key: str, names: Iterable[str]) -> str:
    """`key`, or the only name where no key is given."""
    known = sorted(names)
    if key in known:
        return key
    listed = printable(", ".join(known) or "nothing", 120)
    if key:
        raise _Unfit(f"there is no array {key!r}; the file holds {listed}")
    if len(known) != 1:
        raise _Unfit(f"key must say which array to take; the file holds {listed}")
    return known[0]


def _of_array(values: Values) -> StoredArray:
    return StoredArray(values.shape, values.dtype, lambda axis, index: np.asarray(values[_at(axis, index)]))


def _at(axis: int, index: int) -> tuple[slice | int, ...]:
    return (*(slice(None),) * axis, index)


def _of_matlab(path: Path, key: str, deepmimo: bool, base_station: int) -> StoredArray:
    """Of version 5. Cells and structures of DeepMIMO come as arrays of objects."""
    from scipy.io import loadmat, whosmat

    _check_elements(path)
    names = [name for name, *_ in whosmat(path)]
    if deepmimo and key not in names and _DEEPMIMO in names:
        stations = loadmat(path, variable_names=[_DEEPMIMO])[_DEEPMIMO].ravel()
        users = _station(stations, base_station)[0, 0]["user"].ravel()
        return _of_users(len(users), lambda index: np.asarray(users[index][0, 0]["channel"]))
    chosen = _choose(key, names)
    return _of_array(np.asarray(loadmat(path, variable_names=[chosen])[chosen]))


def _check_elements(path: Path) -> None:
    """_Unfit where elements of a MATLAB v5 file are cut off or do not match their checksums: SciPy crashes on some of them."""
    with path.open("rb") as file:
        if file.read(128)[126:] != b"IM":
            raise _Unfit("not a MATLAB file of version 5 in the usual order of bytes")
        while tag := file.read(8):
            kind, size = struct.unpack("<II", tag)
            content = file.read(size)
            if len(content) < size:
                raise _Unfit("truncated or damaged: an element ends after the file")
            if kind == _COMPRESSED:
                content = zlib.decompress(content)
                kind, size = struct.unpack("<II", content[:8])
                content = content[8:]
            if kind != _MATRIX or len(content) != size or struct.unpack("<II", content[:8]) != (_FLAGS, 8):
                raise _Unfit("damaged: an element is no array")


def _of_hdf5(path: Path, key: str, matlab: bool, deepmimo: bool, base_station: int) -> StoredArray:
    """MATLAB counts axes from the other side than HDF5; its complex numbers are pairs with names of their own."""
    import h5py

    file = h5py.File(path, "r", locking=False)
    if deepmimo and key not in file and _DEEPMIMO in file:
        station = file[_station(file[_DEEPMIMO][()].ravel(), base_station)]
        users = station["user"][()].ravel()
        return _of_users(len(users), lambda index: _complex(file[users[index]]["channel"][()]).T)
    names: list[str] = []
    file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    data = file[_choose(key.strip("/"), [name for name in names if not name.startswith("#")])]
    shape, last = tuple(data.shape), len(data.shape) - 1

    def pick(axis: int, index: int) -> Values:
        found = _complex(data[_at(last - axis if matlab else axis, index)])
        return found.T if matlab else found

    return StoredArray(shape[::-1] if matlab else shape, _complex(np.empty(0, data.dtype)).dtype, pick)


def _complex(values: Values) -> Values:
    """Pairs of named parts, as MATLAB writes them, as complex numbers."""
    if values.dtype.names == ("real", "imag"):
        return np.asarray(values["real"] + 1j * values["imag"])
    return values


def _station(stations: Values, number: int) -> Any:
    if not 0 <= number < len(stations):
        raise _Unfit(f"base_station must be one of 0 to {len(stations) - 1}, got {number}")
    return stations[number]


def _of_users(count: int, user: Callable[[int], Values]) -> StoredArray:
    """One array for each user, all of one shape."""
    if not count:
        raise _Unfit("there is no user")
    first = user(0)

    def pick(axis: int, index: int) -> Values:
        if axis:
            raise ValueError("axes must begin with sample where every user has an array, got another order")
        return user(index)

    return StoredArray((count, *first.shape), first.dtype, pick)
