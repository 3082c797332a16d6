"""Image data sets of a few pictures in the true formats, and a web server on this machine for them."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from vlista_core.data.image_set import ImageData

TRAIN_IMAGES = "train-images-idx3-ubyte"
BATCHES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
RECORDS = 2
RANDOM = np.random.default_rng(6)
PLANES = {batch: RANDOM.integers(0, 256, (RECORDS, 3072), dtype=np.uint8) for batch in BATCHES}
LABELS = {batch: RANDOM.integers(0, 10, RECORDS).tolist() for batch in BATCHES}
DIGITS = {"train": RANDOM.integers(0, 256, (5, 4, 3), dtype=np.uint8), "t10k": RANDOM.integers(0, 256, (3, 4, 3), "u1")}


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


MNIST_FILES = {
    **{f"{split}-images-idx3-ubyte": idx(images) for split, images in DIGITS.items()},
    **{f"{split}-labels-idx1-ubyte": idx(np.arange(len(images), dtype=np.uint8)) for split, images in DIGITS.items()},
}
CIFAR_FILES = {
    f"{batch}.bin": b"".join(
        bytes([label]) + row.tobytes() for label, row in zip(LABELS[batch], PLANES[batch], strict=True)
    )
    for batch in BATCHES
}


def python_batch(batch: str) -> bytes:
    """As Python 2 wrote the published files: protocol 2, byte strings, an array by numpy's _reconstruct."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    entries = PLANES[batch].tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x01cnumpy\nndarray\nq\x02K\x00\x85" + text(b"b") + b"\x87R(K\x01"
        b"K" + bytes([RECORDS]) + b"M\x00\x0c\x86cnumpy\ndtype\nq\x03" + text(b"u1") + b"K\x00K\x01\x87Rq\x04(K\x03"
        b""
        + text(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
        + struct.pack("<I", len(entries))
        + entries
        + b"tb"
    )
    labels = b"](" + b"".join(b"K" + bytes([label]) for label in LABELS[batch]) + b"e"
    names = b"](" + b"".join(text(b"a.png") + b"r\x00\x01\x00\x00" for _ in LABELS[batch]) + b"j\x00\x01\x00\x00e"
    items = (
        text(b"batch_label") + text(b"batch 1") + text(b"labels") + labels + text(b"data") + array + text(b"filenames")
    )
    return b"\x80\x02}q\x00(" + items + names + b"u."


def sheets() -> dict[str, bytes]:
    """The npm package: a picture a row, the labels of all training sheets in one list."""
    files = {
        "train_lables.json": json.dumps([label for batch in BATCHES[:5] for label in LABELS[batch]]).encode(),
        "test_lables.json": json.dumps(LABELS["test_batch"]).encode(),
    }
    for batch, planes in PLANES.items():
        stream = io.BytesIO()
        Image.fromarray(planes.reshape(RECORDS, 3, 1024).transpose(0, 2, 1).copy()).save(stream, "PNG")
        files[f"{batch}.png"] = stream.getvalue()
    return files


def tar(files: dict[str, bytes], folder: str = "package/", links: dict[str, str] | None = None) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{folder}{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    return stream.getvalue()


def zipped(files: dict[str, bytes], folder: str = "") -> dict[str, bytes]:
    return {f"/{folder}{name}.gz": gzip.compress(content) for name, content in files.items()}


class Server:
    """Files on 127.0.0.1, and the paths that were asked for."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.promised = 0
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.asked.append(self.path)
                content = owner.files.get(self.path)
                if content is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(content) + owner.promised))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()


def write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def everything(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if not path.is_dir()}


def is_mnist(data: ImageData) -> bool:
    return (
        np.array_equal(data.train.numpy(), DIGITS["train"])
        and np.array_equal(data.test.numpy(), DIGITS["t10k"])
        and data.train_labels.tolist() == [0, 1, 2, 3, 4]
        and data.test_labels.tolist() == [0, 1, 2]
    )


def is_cifar10(data: ImageData) -> bool:
    planes = np.concatenate([PLANES[batch] for batch in BATCHES]).reshape(-1, 3, 32, 32).astype(float)
    luma = np.floor(0.299 * planes[:, 0] + 0.587 * planes[:, 1] + 0.114 * planes[:, 2] + 0.5 + 1e-9)
    return (
        np.array_equal(torch.cat((data.train, data.test)).numpy(), luma)
        and data.train_labels.tolist() == [label for batch in BATCHES[:5] for label in LABELS[batch]]
        and data.test_labels.tolist() == LABELS["test_batch"]
    )
