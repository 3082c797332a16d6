"""Commands that are killed, meet another writer, a full disk, a folder that cannot be written, or files that vanish.

`benchmarks/kills.py` does it for every command that writes, and more often.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import chanest
from chanest.channels.store import cached_channels
from chanest.fit import Fit
from chanest.weights.training import train_estimator
from vlista_core.files import UnwritableError

ROOT = Path(__file__).parents[2]
linux = pytest.mark.skipif(sys.platform != "linux", reason="needs fork, audit events of files and mounts")
TINY = "[bs]\nrows = 4\ncolumns = 2\n[ue]\nrows = 1\ncolumns = 1\n[frontend]\npilots = 6\n[data]\ntrain = 100\n"
ON_SMALL_DISK = """
import json, subprocess, sys
from pathlib import Path
from typer.testing import CliRunner
from chanest.cli import app

tiny, disk = sys.argv[1], Path(sys.argv[2])
commands = [
    ["generate", tiny, "-n", "20", "-o", f"{disk}/NEW.h5"],
    ["train", tiny, "-e", "lmmse", "--steps", "2", "-o", f"{disk}/weights"],
    ["calibrate", tiny, "-e", "ls", "--channels", "64", "-o", f"{disk}/weights"],
    ["evaluate", tiny, "-e", "ls", "--snr", "0", "--channels", "4", "--no-bounds", "-o", f"{disk}/run"],
    ["report", f"{disk}/run"],
]

def run_all(name):
    results = [CliRunner().invoke(app, [word.replace("NEW", name) for word in words]) for words in commands]
    return [[result.exit_code, result.stderr] for result in results]

def held():
    return {str(path): path.read_bytes().hex() for path in disk.rglob("*") if path.is_file()}

subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", disk], check=True)
found = {"with room": run_all("first")}
before = held()
filler = disk / "filler"
try:
    with filler.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
except OSError:
    pass
found["full"] = run_all("second")
filler.unlink()
found["whole when full"] = held() == before
subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
found["read-only"] = run_all("third")
found["whole when read-only"] = held() == before
print(json.dumps(found))
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


@linux
def test_commands_that_are_killed_doubled_or_find_a_full_disk_end_with_the_files_of_an_undisturbed_run() -> None:
    options = ["--times", "2", "--disks", "1", "--kinds", "train", "plot-channel"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "kills.py"), *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    train, plot = done.stdout.splitlines()
    assert "2 kills" in train
    assert "all equal; second writer: one sentence; full disk:" in train
    assert "2 kills" in plot
    assert "all equal; second writer: both whole; full disk:" in plot


@linux
def test_a_full_and_a_read_only_disk_are_one_sentence_and_the_old_files_stay(tiny: Path, tmp_path: Path) -> None:
    alone = ["unshare", "--map-root-user", "--mount"]
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run([*alone, "mount", "-t", "tmpfs", "none", str(disk)], check=False, capture_output=True).returncode:
        pytest.skip("this system does not let us mount a small disk")
    command = [*alone, sys.executable, "-c", ON_SMALL_DISK, str(tiny), str(disk)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["with room"] == [[0, ""]] * 5
    for code, said in found["full"]:
        assert code == 2
        assert said.startswith(f"error: cannot write {disk}/")
        assert said.endswith(": no space left on device; free some space or choose a folder on another disk\n")
        assert said.count("\n") == 1
    for code, said in found["read-only"]:
        assert code == 2
        assert said.startswith(("error: the output folder cannot be written: ", f"error: cannot write {disk}/"))
        assert said.endswith("; choose a folder that you may write to\n")
        assert said.count("\n") == 1
    assert found["whole when full"]
    assert found["whole when read-only"]


def test_a_folder_of_weights_that_vanishes_during_a_training_is_made_again(tiny: Path, tmp_path: Path) -> None:
    problem = chanest.ChannelProblem(chanest.load_scenario(str(tiny)))
    folder, told = tmp_path / "vanished", list[float]()

    def vanish(share: float, words: str) -> None:
        told.append(share)
        if len(told) == 1:
            shutil.rmtree(folder)

    path = train_estimator("lmmse", problem, Fit(steps=2, report=vanish), folder=folder)
    whole = train_estimator("lmmse", problem, Fit(steps=2), folder=tmp_path / "whole")
    assert path.read_bytes() == whole.read_bytes()
    assert [each.name for each in sorted(folder.iterdir())] == ["tiny.lmmse.calibration.json", path.name]


def test_a_cache_of_channels_that_vanishes_is_made_again_and_during_the_writing_is_one_sentence(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("CHANEST_CACHE", str(cache))
    data = chanest.load_scenario(str(tiny)).data_set("test", count=20, seed=1)
    first = cached_channels(data).path.read_bytes()
    shutil.rmtree(cache)
    assert cached_channels(data).path.read_bytes() == first
    shutil.rmtree(cache)
    sample = type(data.source).sample

    def vanish(*given: object, **named: object) -> object:
        shutil.rmtree(cache)
        return sample(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(type(data.source), "sample", vanish)
    with pytest.raises(UnwritableError, match=r"cannot write .*: no such file or directory; check that it is still"):
        cached_channels(data)
