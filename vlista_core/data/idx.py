"""IDX, the format of MNIST: two zero bytes, the type, the number of dimensions, each as a big-endian int32, the entries."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from io import BytesIO

import torch
from torch import Tensor

from vlista_core.data.download import LARGEST
from vlista_core.data.image_set import Files

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
    """The uint8 tensor in an IDX file of so many dimensions; ValueError if it is anything else."""
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


def _unzip(content: bytes) -> bytes:
    try:
        with gzip.open(BytesIO(content)) as file:
            plain = file.read(LARGEST + 1)
    except (OSError, EOFError, zlib.error) as fault:
        raise ValueError(f"it is no whole gzip file ({fault})") from fault
    if len(plain) > LARGEST:
        raise ValueError(f"it unzips to more than {LARGEST >> 20} MB")
    return plain
