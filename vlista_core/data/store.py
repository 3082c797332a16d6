"""The files of a data set, verified: from the data folder, else from the first source that has them."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import time
from collections.abc import Callable
from pathlib import Path

from vlista_core.data.image_set import Files, ImageSet
from vlista_core.tensorfile import write_whole

Report = Callable[[str], None]
"""Called with one sentence for each thing that is tried or fails."""

_STALE_SECONDS = 3600.0


def obtain(images: ImageSet, folder: Path, *, replace_broken: bool, report: Report) -> dict[str, bytes]:
    """The content of each stored file of `images`, its SHA-256 verified.

    What `folder` lacks is fetched and stored there. A broken file in it is fetched anew with `replace_broken`, and is
    a ValueError without.
    """
    found: dict[str, bytes] = {}
    local = _folder_files(folder, images)
    for name in images.sha256:
        try:
            content = _verified(images, name, local, str(folder))
        except ValueError as fault:
            if not replace_broken:
                raise ValueError(f"{fault}; delete it to have it fetched, or name another folder") from fault
            report(f"{fault}; it is fetched anew")
            content = None
        if content is not None:
            found[name] = content
    if len(found) < len(images.sha256):
        _fetch_missing(images, folder / images.stored_in, found, report)
    return found


def _store(path: Path, content: bytes) -> None:
    """Write `content` to `path`, whole or not at all; ValueError where the disk does not take it."""
    _remove_stale_files(path.parent)
    try:
        write_whole(path, content)
    except OSError as fault:
        if fault.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ValueError(
                f"the disk of {path.parent} is full: {path.name} needs {len(content) / 1e6:.1f} MB; free some space or "
                "set VLISTA_DATA to a folder on another disk"
            ) from fault
        raise ValueError(f"{path} cannot be written ({fault.strerror}); set VLISTA_DATA to another folder") from fault


def _fetch_missing(images: ImageSet, folder: Path, found: dict[str, bytes], report: Report) -> None:
    """Store in `folder` and add to `found` what is missing; ValueError with every source's fault if none has it."""
    faults: list[str] = []
    dead_hosts: set[str] = set()
    for source in images.sources:
        report(f"fetching {images.name} from {source.name}")
        fault = None
        try:
            files = source.open(dead_hosts)
        except ValueError as refusal:
            fault = str(refusal)
        else:
            for name in [name for name in images.sha256 if name not in found]:
                try:
                    content = _verified(images, name, files, source.name)
                except ValueError as broken:
                    fault = str(broken)
                    break
                if content is None:
                    fault = f"{source.name} has no {name}"
                    break
                _store(folder / name, content)
                found[name] = content
        if fault is None:
            return
        report(fault)
        faults.append(fault)
    missing = ", ".join(name for name in images.sha256 if name not in found)
    raise ValueError(
        f"{images.name} lacks {missing} and no source gave it: {'; '.join(faults)}. Put the files into {folder} or set "
        "VLISTA_DATA to a folder that has them"
    )


def _verified(images: ImageSet, name: str, files: Files, origin: str) -> bytes | None:
    try:
        content = images.assemble(name, files)
    except ValueError as fault:
        raise ValueError(f"{name} from {origin} cannot be used: {fault}") from fault
    if content is not None and (digest := hashlib.sha256(content).hexdigest()) != images.sha256[name]:
        raise ValueError(f"{name} from {origin} has the SHA-256 {digest} instead of {images.sha256[name]}")
    return content


def _folder_files(folder: Path, images: ImageSet) -> Files:
    def read(name: str) -> bytes | None:
        for place in (images.stored_in, *images.also_in):
            path = folder / place / name
            try:
                return path.read_bytes()
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                continue
            except OSError as fault:
                raise ValueError(f"{path} cannot be read ({fault.strerror})") from fault
        return None

    return read


def _remove_stale_files(folder: Path) -> None:
    """Delete what processes killed while writing left behind, but not what another is writing now."""
    for partial in folder.glob(".*.partial"):
        with contextlib.suppress(OSError):
            if time.time() - partial.stat().st_mtime > _STALE_SECONDS:
                partial.unlink()
