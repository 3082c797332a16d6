"""The formats of image data sets: what is read is what was written, and a bad file is told what is wrong with it."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from image_toys import CIFAR_FILES, DIGITS, MNIST_FILES, TRAIN_IMAGES, idx, python_batch, sheets, tar
from PIL import Image

from vlista_core.data import download
from vlista_core.data.cifar10 import CIFAR10, grey, read_python_batch
from vlista_core.data.download import unpack
from vlista_core.data.mnist import MNIST, read_idx


def test_grey_is_the_luma_of_bt_601_whatever_the_number_of_pictures() -> None:
    colours = torch.tensor(
        [[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255], [0, 0, 0], [250, 0, 0]], dtype=torch.uint8
    )
    assert grey(colours[..., None])[:, 0].tolist() == [76, 150, 29, 255, 0, 75]
    assert grey(colours[:1, :, None].repeat(600, 1, 1)).tolist() == [[76]] * 600


def test_an_archive_that_unpacks_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "LARGEST", 1 << 20)
    with pytest.raises(ValueError, match="more than 1 MB"):
        unpack(tar({"a": bytes(600_000), "b": bytes(600_000)}), "bomb")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "begins with nothing"),
        (b"\x00\x00\x0d" + idx(DIGITS["train"])[3:], "begins with 00000d03"),
        (idx(np.arange(4, dtype=np.uint8)), "begins with 00000801, but .* 3 dimensions begins with 00000803"),
        (idx(DIGITS["train"])[:10], "ends within its header, after 10 of 16"),
        (idx(DIGITS["train"])[:-1], "has 75 bytes, but its header tells of 5 × 4 × 3 entries, 76 bytes"),
        (idx(DIGITS["train"]) + b"?", "has 77 bytes"),
    ],
)
def test_a_bad_idx_file_is_told_apart(content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_idx(TRAIN_IMAGES, content, 3)


def test_files_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(ValueError, match="mnist has 5 training images but 2 labels"):
        MNIST.decode("mnist", {**MNIST_FILES, "train-labels-idx1-ubyte": idx(np.zeros(2, dtype=np.uint8))})
    with pytest.raises(ValueError, match=r"data_batch_2\.bin has 6145 bytes, not a whole number of records of 3073"):
        CIFAR10.decode("cifar10", {**CIFAR_FILES, "data_batch_2.bin": CIFAR_FILES["data_batch_2.bin"][:-1]})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_lables.json": b"[1]"}, "no label from 0 to 9 for each of its 2"),
        ({"train_lables.json": b"{}"}, "must hold a list of labels, got dict"),
        ({"train_lables.json": b"[1, 2"}, "missing or no JSON"),
        ({"test_lables.json": b"[1, 10]"}, "no label from 0 to 9"),
        ({"data_batch_4.png": sheets()["data_batch_4.png"][:-500]}, "no whole PNG"),
        ({"data_batch_4.png": b"GIF89a"}, "no whole PNG"),
    ],
)
def test_bad_sheets_are_told_apart(changes: dict[str, bytes], message: str) -> None:
    files = {**sheets(), **changes}
    with pytest.raises(ValueError, match=message):
        [CIFAR10.assemble(name, files.get) for name in CIFAR10.sha256]


def test_a_sheet_of_another_shape_is_refused() -> None:
    stream = io.BytesIO()
    Image.fromarray(np.zeros((2, 1000, 3), dtype=np.uint8)).save(stream, "PNG")
    with pytest.raises(ValueError, match=r"must be \[pictures, 1024, 3\] bytes, got \[2, 1000, 3\]"):
        CIFAR10.assemble("data_batch_1.bin", {**sheets(), "data_batch_1.png": stream.getvalue()}.get)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x80\x02cos\nsystem\nU\x04true\x85R.", "refused: GLOBAL 'os system'"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "refused: (FRAME|SHORT_BINUNICODE)"),
        (python_batch("test_batch").replace(b"numpy\ndtype", b"numpy\nsave"), "refused: GLOBAL 'numpy save'"),
        (python_batch("test_batch")[:-1], "pickle exhausted"),
        (python_batch("test_batch")[:300], "expected|exhausted|left"),
        (b"\x80\x02}.", "no batch of CIFAR-10"),
        (b"\x80\x02].", "no batch of CIFAR-10"),
        (b"\x80\x02R.", "no batch of CIFAR-10"),
        (b"", "exhausted"),
    ],
)
def test_the_python_layout_runs_nothing(content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_python_batch(content)
