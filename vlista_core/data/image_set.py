"""What an image data set is: the images in memory, and the description from which they are found, fetched and read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

Files = Callable[[str], bytes | None]
"""The content of a file by its name, None where there is no such file: a folder, an archive or a web site."""


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

    def pixels(self, index: Tensor | slice, *, split: Literal["train", "test"]) -> Tensor:
        """The chosen images of a split in [0, 1]: float32 [k, height, width]. index: [k] integer, bool or a slice."""
        return (self.train if split == "train" else self.test)[index].to(torch.float32) / 255.0


class Source(Protocol):
    """A web site or registry that has the files of a data set."""

    @property
    def name(self) -> str: ...

    def open(self, dead_hosts: set[str]) -> Files:
        """Its files; a ValueError says why they cannot be had. Hosts that do not answer are added to `dead_hosts`."""


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
