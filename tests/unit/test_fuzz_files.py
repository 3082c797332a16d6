"""Damaged files of every kind are refused in one sentence that names them, or read right; see `fuzz_files.py`."""

from __future__ import annotations

import os
import signal
import time
from itertools import islice
from pathlib import Path

import pytest
from fuzz_files import Bench, changes, fuzz, good_files
from fuzz_kinds import KINDS, FileKind

SEED, COUNT = 0, 150
REGRESSIONS = sorted((Path(__file__).parents[1] / "regressions").iterdir())


@pytest.mark.parametrize("name", KINDS)
def test_a_damaged_file_is_refused_in_a_sentence_or_read_right(name: str, tmp_path: Path) -> None:
    report = fuzz(name, islice(changes(name, SEED), COUNT), tmp_path)
    assert [(finding.case, finding.fault) for finding in report.findings] == []
    assert report.counts.total() == COUNT
    assert report.counts["refused"] >= COUNT // 2


@pytest.mark.parametrize("path", REGRESSIONS, ids=lambda path: path.name)
def test_what_was_once_found_stays_mended(path: Path, tmp_path: Path) -> None:
    kind = path.name.rpartition(".")[0]
    report = fuzz(kind, [(path.name, path.read_bytes())], tmp_path)
    assert [finding.fault for finding in report.findings] == []


def _make(folder: Path) -> None:
    (folder / "file").write_bytes(b"good")


def _read(path: Path) -> str:
    """A reader with every fault that there is to find."""
    match path.read_bytes():
        case b"key":
            raise KeyError("gone")
        case b"nameless":
            raise ValueError("this is a message that names nothing")
        case b"two lines":
            raise ValueError(f"{path} is bad\nin two ways")
        case b"crash":
            os.kill(os.getpid(), signal.SIGKILL)
        case b"hang":
            time.sleep(60)
        case b"memory":
            return str(len(bytearray(b"x") * (1 << 29)))
        case b"refused":
            raise ValueError(f"{path} is refused")
        case content:
            return content.decode()
    return ""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the reading process is given functions of this test")
def test_every_fault_of_a_reader_is_found(tmp_path: Path) -> None:
    kind = FileKind("file", _make, _read)
    contents = ("good", "key", "nameless", "two lines", "crash", "hang", "memory", "refused", "other", "good")
    cases = [(str(place), content.encode()) for place, content in enumerate(contents)]
    report = fuzz("toy", cases, tmp_path, kind=kind, hang_seconds=2.0)
    assert report.counts == {"same": 2, "refused": 1, "wrong": 7}
    assert [finding.content.decode() for finding in report.findings if finding.content] == [*contents[1:7], "other"]
    faults = [finding.fault for finding in report.findings]
    for fault, words in zip(
        faults,
        (
            "KeyError",
            "does not name file",
            "line ends",
            "died with code -9",
            "no answer",
            "MB of memory",
            "another content",
        ),
        strict=True,
    ):
        assert words in fault


def test_the_changes_of_a_seed_are_always_the_same() -> None:
    first, second = (list(islice(changes("scenario", 5), 40)) for _ in range(2))
    assert first == second
    assert first != list(islice(changes("scenario", 6), 40))


def test_a_good_file_is_read_the_same_every_time(tmp_path: Path) -> None:
    for name, kind in KINDS.items():
        assert Bench(kind, tmp_path / name).outcome(good_files(kind)[kind.file]) == ("same", ""), name
