"""An image data set: its images in memory, and how its files are found, fetched, verified by SHA-256 and read."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from vlista_core.data.download import Files, Source
from vlista_core.files import UnwritableError, write_bytes
from vlista_core.validation import printable

Report = Callable[[str], None]
"""Called with one sentence for each thing that is tried or fails."""


@dataclass(frozen=True, eq=False)
class ImageData:
    """Grey images and their labels, as bytes: a whole set fits in 60 MB."""

    name: str
    train: Tensor
    """uint8 [samples, height, width]."""
    train_labels: Tensor
    """int64 [samples]."""
    test: Tensor
    """uint8 [samples, height, width]."""
    test_labels: Tensor
    """int64 [samples]."""

    def __post_init__(self) -> None:
        splits = {"training": (self.train, self.train_labels), "test": (self.test, self.test_labels)}
        for split, (images, labels) in splits.items():
            if len(images) != len(labels):
                raise ValueError(f"{self.name} has {len(images)} {split} images but {len(labels)} labels")

    def halved(self) -> "ImageData":
        """The same images with half the height and width: means of 2×2 pixels, rounded."""
        return replace(self, train=_halved(self.train), test=_halved(self.test))


def _halved(images: Tensor) -> Tensor:
    """uint8 [samples, height, width] -> [samples, height / 2, width / 2]."""
    parts = (nn.functional.avg_pool2d(part.float(), 2).round().to(torch.uint8) for part in torch.split(images, 4096))
    return torch.cat([*parts])


@dataclass(frozen=True)
class ImageSet:
    """How a data set is stored, checked, read, and where it is found."""

    name: str
    stored_in: str
    """The folder, under the data folder, that holds our files."""
    also_in: tuple[str, ...]
    """Folders, under the data folder, where others keep theirs."""
    sha256: Mapping[str, str]
    """The digest of each file as it is stored."""
    assemble: Callable[[str, Files], bytes | None]
    """The content of a stored file from whatever layout `Files` has; None where it has none, ValueError if broken."""
    decode: Callable[[str, Mapping[str, bytes]], ImageData]
    """(name, content of each stored file) -> images; ValueError if they are not what they should be."""
    sources: tuple[Source, ...]
    """In the order in which they are tried."""

    def obtain(self, folder: Path, *, replace_broken: bool, report: Report) -> dict[str, bytes]:
        """The content of each stored file, verified.

        What `folder` lacks is fetched and stored there. A broken file in it is fetched anew with `replace_broken`, and is
        a ValueError without.
        """
        found: dict[str, bytes] = {}
        for name in self.sha256:
            try:
                content = self._verified(name, lambda file: self._read(folder, file), str(folder))
            except ValueError as fault:
                if not replace_broken:
                    raise ValueError(f"{fault}; delete it to have it fetched, or name another folder") from fault
                report(f"{fault}; it is fetched anew")
            else:
                found |= {} if content is None else {name: content}
        if len(found) < len(self.sha256):
            self._fetch_missing(folder / self.stored_in, found, report)
        return found

    def _fetch_missing(self, folder: Path, found: dict[str, bytes], report: Report) -> None:
        """Store in `folder` and add to `found` what is missing; ValueError with every source's fault if none has it."""
        faults: list[str] = []
        dead_hosts: set[str] = set()
        for source in self.sources:
            report(f"fetching {self.name} from {source.name}")
            try:
                files = source.open(dead_hosts)
                for name in [name for name in self.sha256 if name not in found]:
                    content = self._verified(name, files, source.name)
                    if content is None:
                        raise ValueError(f"{source.name} has no {name}")
                    write_bytes(folder / name, content)
                    found[name] = content
                return
            except UnwritableError as fault:
                raise UnwritableError(f"{fault}; VLISTA_DATA names another folder") from fault
            except ValueError as fault:
                report(str(fault))
                faults.append(str(fault))
        missing = ", ".join(name for name in self.sha256 if name not in found)
        raise ValueError(
            f"{self.name} lacks {missing} and no source gave it: {'; '.join(faults)}. Put the files into {folder} or set "
            "VLISTA_DATA to a folder that has them"
        )

    def _verified(self, name: str, files: Files, origin: str) -> bytes | None:
        try:
            content = self.assemble(name, files)
        except ValueError as fault:
            raise ValueError(f"{name} from {origin} cannot be used: {printable(fault)}") from fault
        if content is not None and (digest := hashlib.sha256(content).hexdigest()) != self.sha256[name]:
            raise ValueError(f"{name} from {origin} has the SHA-256 {digest} instead of {self.sha256[name]}")
        return content

    def _read(self, folder: Path, name: str) -> bytes | None:
        for place in (self.stored_in, *self.also_in):
            path = folder / place / name
            try:
                return path.read_bytes()
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                continue
            except OSError as fault:
                raise ValueError(f"{path} cannot be read ({fault.strerror})") from fault
        return None
