"""Files of a run, written whole or not at all into a folder that was checked first, and where files are kept between runs."""

import hashlib
import json
import os
import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeVar, cast

from platformdirs import user_cache_path
from pydantic import BaseModel, JsonValue, RootModel, ValidationError
from pydantic_core import from_json

from vlista_core.tensorfile import Json
from vlista_core.validation import sentence

Model = TypeVar("Model", bound=BaseModel)
_NONE = object()


class _Object(RootModel[dict[str, JsonValue]]):
    """Any JSON object."""


def check_folder(folder: Path) -> None:
    """Make `folder`, or a ValueError that says why it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise ValueError(f"the output folder cannot be made: {folder}: {fault.strerror}") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(f"the output folder cannot be written: {folder}")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name beside `path`, of the same ending, that becomes `path` if all goes well."""
    partial = path.with_name(f".{path.stem}.{os.getpid()}.{threading.get_ident()}.partial{path.suffix}")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` whole or not at all."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def digest(content: Json) -> str:
    """A hash of JSON, whatever the order of its keys: 16 hex digits."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def to_json(content: Json, *, indent: int | None = None) -> str:
    """An object as JSON with a digest of it, which tells a changed number from a good one; NaN and Inf are refused."""
    held = cast(dict[str, Json], content)
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


def write_json(path: Path, content: Json) -> None:
    """Write JSON, readable by people."""
    write_text(path, to_json(content, indent=1) + "\n")


def read_json(path: Path) -> dict[str, Json]:
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


def versions(*packages: str) -> dict[str, Json]:
    """Of Python, of the packages that all figures depend on and of `packages`; None for what is not installed."""
    found: dict[str, Json] = {"python": platform.python_version()}
    for name in ("vlista", "torch", "numpy", *packages):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found
