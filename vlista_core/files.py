"""Files of a run, written whole or not at all, by one writer at a time where that matters, and where they are kept."""

import contextlib
import errno
import hashlib
import json
import os
import platform
import re
import shutil
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from filelock import FileLock, Timeout
from platformdirs import user_cache_path
from pydantic import BaseModel, JsonValue, RootModel, ValidationError
from pydantic_core import from_json

from vlista_core.validation import sentence

if TYPE_CHECKING:
    from vlista_core.tensorfile import Json

Model = TypeVar("Model", bound=BaseModel)
_NONE = object()
_MACHINE = f"{zlib.crc32(platform.node().encode()):08x}"
_LEFTOVER = re.compile(r"\..+\.([0-9a-f]{8})-(\d+)-(\d+)\.partial(?:\.[^.]*)?")
_STALE_SECONDS = 3600.0
"""What another machine has not touched for so long was left by a process that was killed."""
_NO_ROOM = "free some space or choose a folder on another disk"
_NOT_ALLOWED = "choose a folder that you may write to"
_REMEDIES = {
    errno.ENOSPC: _NO_ROOM, errno.EDQUOT: _NO_ROOM, errno.EFBIG: _NO_ROOM,
    errno.EACCES: _NOT_ALLOWED, errno.EPERM: _NOT_ALLOWED, errno.EROFS: _NOT_ALLOWED,
    errno.ENOTDIR: "a part of the path is a file", errno.EEXIST: "a part of the path is a file",
    errno.ENOENT: "check that it is still there",
}  # fmt: skip


class UnwritableError(ValueError):
    """The disk does not take a file. Whoever tries several ways need not try the next one."""


def in_words(fault: OSError, path: Path | None = None) -> str:
    """An OSError as a sentence: the path (`path` where the fault names none), what is wrong with it and the remedy."""
    where = path or fault.filename
    what = fault.strerror.lower() if fault.strerror else str(fault)
    said = what if where is None else f"{where}: {what}"
    return f"{said}; {_REMEDIES[fault.errno]}" if fault.errno in _REMEDIES else said


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """An OSError inside becomes an UnwritableError about `path`."""
    try:
        yield
    except OSError as fault:
        raise UnwritableError(f"cannot write {in_words(fault, path)}") from fault


class _Object(RootModel[dict[str, JsonValue]]):
    """Any JSON object."""


def check_folder(folder: Path) -> None:
    """Make `folder`, or an UnwritableError that says why it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise UnwritableError(f"the output folder cannot be made: {in_words(fault, folder)}") from fault
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UnwritableError(f"the output folder cannot be written: {folder}; {_NOT_ALLOWED}")


@contextmanager
def only_writer(lock: Path, what: str) -> Iterator[None]:
    """Keep other writers out, or a ValueError of one sentence. The system frees the lock of a process that is killed."""
    with writing(lock):
        try:
            held = FileLock(lock).acquire(timeout=0)
        except Timeout:
            raise ValueError(f"another run is writing {what}; wait for its end or give another folder") from None
    with held:
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                lock.unlink()  # FileLock takes no lock whose file is gone.


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name beside `path`, of the same ending, that becomes `path` if all goes well.

    The disk holds the content before the name does. Leftovers of killed processes in the folder are removed first.
    """
    remove_leftovers(path.parent)
    partial = path.with_name(f".{path.stem}.{leftover_mark()}{path.suffix}")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield partial
            with partial.open("r+b") as file:
                os.fsync(file.fileno())
            os.replace(partial, path)
        finally:
            with contextlib.suppress(OSError):
                partial.unlink()


def leftover_mark() -> str:
    """The part of a temporary name, after a first part that begins with a dot, by which `remove_leftovers` knows it."""
    return f"{_MACHINE}-{os.getpid()}-{threading.get_ident()}.partial"


def remove_leftovers(folder: Path) -> None:
    """Delete what killed processes left in `folder` of the files that they were writing."""
    for path in folder.glob(".*.partial*"):
        named = _LEFTOVER.fullmatch(path.name)
        with contextlib.suppress(OSError):
            if named and (_is_gone(*named.groups()) or time.time() - path.stat().st_mtime > _STALE_SECONDS):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _is_gone(machine: str, process: str, thread: str) -> bool:
    """Whether a thread, of this machine as far as we can tell, writes no more."""
    if machine != _MACHINE:
        return False
    if int(process) == os.getpid():
        return int(thread) not in {each.ident for each in threading.enumerate()}
    if os.name != "posix":  # Where signal 0 would not ask but interrupt.
        return False
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        pass
    return False


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` whole or not at all."""
    with replacing(path) as partial:
        partial.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Write `text` whole or not at all."""
    write_bytes(path, text.encode())


def digest(content: "Json") -> str:
    """A hash of JSON, whatever the order of its keys: 16 hex digits."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def to_json(content: "Json", *, indent: int | None = None) -> str:
    """An object as JSON with a digest of it, which tells a changed number from a good one; NaN and Inf are refused."""
    held = cast("dict[str, Json]", content)
    return json.dumps({**held, "digest": digest(held)}, indent=indent, ensure_ascii=False, allow_nan=False)


def of_json(text: bytes, kind: type[Model]) -> Model:
    """The object of `to_json` as a `kind`, or a ValueError that says what is wrong with it. What has no digest is read too."""
    content = from_json(text, allow_inf_nan=False)
    if not isinstance(content, dict):
        raise ValueError("it holds no JSON object")
    given = content.pop("digest", _NONE)
    try:
        found = kind.model_validate_json(json.dumps(content, allow_nan=False))  # from_json takes 1e999 for Inf
    except ValidationError as fault:
        raise ValueError(sentence(fault)) from None
    if given not in (_NONE, digest(content)):
        raise ValueError("its digest does not match, so it is damaged or was changed by hand")
    return found


def json_text(content: "Json") -> str:
    """`to_json`, readable by people."""
    return to_json(content, indent=1) + "\n"


def write_json(path: Path, content: "Json") -> None:
    """Write `json_text` whole or not at all."""
    write_text(path, json_text(content))


def read_json(path: Path) -> "dict[str, Json]":
    """A file of `write_json`, or a ValueError that names it."""
    try:
        return of_json(path.read_bytes(), _Object).root
    except (ValueError, OSError) as fault:
        raise ValueError(f"{path} is not a whole JSON file: {fault}") from None


def file_digest(path: Path) -> str:
    """A hash of a file: 16 hex digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def cache_folder(kind: str, variable: str) -> Path:
    """The folder named by the environment variable `variable`, else the user's cache for `kind`, such as "vlista/data".

    On Linux the cache is $XDG_CACHE_HOME/kind, else ~/.cache/kind.
    """
    chosen = os.environ.get(variable)
    return Path(chosen).expanduser() if chosen else user_cache_path(kind, appauthor=False)


def versions(*packages: str) -> "dict[str, Json]":
    """Of Python, of the packages that all figures depend on and of `packages`; None for what is not installed."""
    found: dict[str, Json] = {"python": platform.python_version()}
    for name in ("vlista", "torch", "numpy", *packages):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found
