"""Files are written whole or not at all, leftovers of killed processes go, and a disk that takes no file is one sentence."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from vlista_core.files import UnwritableError, check_folder, in_words, only_writer, replacing, write_text

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has neither SIGKILL nor limits of file sizes")
HOLD = """
import sys, time
from pathlib import Path
from vlista_core.files import only_writer, replacing
folder = Path(sys.argv[1])
with only_writer(folder / ".lock", f"into {folder}"), replacing(folder / "other.json") as partial:
    partial.write_text("half")
    print("writing", flush=True)
    time.sleep(60)
"""
FULL = """
import resource, sys
from pathlib import Path
from vlista_core.files import write_text
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_text(Path(sys.argv[1]), "x" * 1001)
except ValueError as fault:
    print(fault)
"""


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_a_living_process_writes_stays_and_what_a_killed_one_left_goes(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    write_text(tmp_path / "mine.txt", "a")
    alive = _names(tmp_path)
    refused = pytest.raises(
        ValueError, match=r"another run is writing into .*; wait for its end or give another folder"
    )
    with refused, only_writer(tmp_path / ".lock", f"into {tmp_path}"):
        pass
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert len(alive) == 3
    assert alive[0] == ".lock"
    assert alive[1].startswith(".other.")
    assert alive[1].endswith(".partial.json")
    assert _names(tmp_path) == alive
    with only_writer(tmp_path / ".lock", f"into {tmp_path}"):
        write_text(tmp_path / "mine.txt", "b")
    assert _names(tmp_path) == ["mine.txt"]


def test_what_an_earlier_process_of_the_same_number_left_goes_and_what_looks_alike_stays(tmp_path: Path) -> None:
    """In a container every run has the same process number."""
    with replacing(tmp_path / "a.txt") as mine:
        mine.write_text("a")
        earlier = mine.with_name(mine.name.replace(f"-{os.getpid()}-", f"-{os.getpid()}-1"))
        earlier.write_text("half")
        strange = tmp_path / ".of.a.user.partial"
        strange.write_text("kept")
        write_text(tmp_path / "b.txt", "b")
        assert not earlier.exists()
    assert _names(tmp_path) == [strange.name, "a.txt", "b.txt"]


def test_a_file_that_the_disk_does_not_take_is_one_sentence_and_the_old_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")
    done = subprocess.run([sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout == f"cannot write {path}: file too large; free some space or choose a folder on another disk\n"
    assert path.read_text() == "old"
    assert _names(tmp_path) == ["a.txt"]


def test_a_folder_that_has_vanished_is_made_again(tmp_path: Path) -> None:
    write_text(tmp_path / "gone" / "a.txt", "a")
    assert (tmp_path / "gone" / "a.txt").read_text() == "a"


def test_a_path_that_cannot_be_is_named_with_the_reason(tmp_path: Path) -> None:
    write_text(tmp_path / "file", "")
    with pytest.raises(UnwritableError, match=r"cannot write .*/file/a\.txt: .*; a part of the path is a file"):
        write_text(tmp_path / "file" / "a.txt", "a")
    with pytest.raises(UnwritableError, match=r"the output folder cannot be made: .*; a part of the path is a file"):
        check_folder(tmp_path / "file")
    with pytest.raises(UnwritableError, match=r"cannot write .*: is a directory"):
        write_text(tmp_path, "a")
    with pytest.raises(OSError, match="No such file") as fault:
        (tmp_path / "nothing").read_text()
    nothing = tmp_path / "nothing"
    assert in_words(fault.value) == f"{nothing}: no such file or directory; check that it is still there"
