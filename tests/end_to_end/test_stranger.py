"""The first hour of somebody else: the wheel in a fresh environment, outside the checkout, by what README tells.

The environment sees the packages that these tests run with, so that nothing is downloaded; of this repository it has the wheel
alone.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
BLOCKS = re.compile(r"```python\n(.*?)```", flags=re.DOTALL)
RUN_BLOCKS = """
import json, sys
for number, block in enumerate(json.load(sys.stdin)):
    print(f"block {number}", flush=True)
    exec(compile(block, f"README block {number}", "exec"), {"__name__": "__main__"})
import chanest, vlista_core
print(chanest.__file__, vlista_core.__file__)
"""
MINE = """
[bs]
rows = 4
columns = 4
[ue]
rows = 1
columns = 2
[channel]
kind = "file"
path = "mine.npy"
[frontend]
pilots = 8
"""
ELSEWHERE = """
import sys, torch
assert not any(name in sys.modules for name in ("chanest", "vlista_core"))
core = torch.export.load("ls.pt2").module()
h = core(torch.randn(3, 16, dtype=torch.complex64), torch.randn(3, 16, 8, dtype=torch.complex64), torch.full((3,), 0.1))
assert h.shape == (3, 32)
"""


class Stranger:
    """A folder, an environment with the wheel, and nothing of ours."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home, environment = folder / "work", folder / "home", folder / "environment"
        self.folder.mkdir()
        self.home.mkdir()
        venv.create(environment, symlinks=os.name != "nt")
        paths = sysconfig.get_paths("venv", vars={"base": str(environment), "platbase": str(environment)})
        self.scripts, self.packages = Path(paths["scripts"]), Path(paths["purelib"])
        own = [entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]
        (self.packages / "of_the_tests.pth").write_text(
            "\n".join(own)
        )  # .pth files there are not read: no editable install

    def install(self, wheel: Path) -> None:
        pip = [sys.executable, "-m", "pip", "--python", str(self.scripts / "python"), "install", "--quiet"]
        subprocess.run([*pip, "--no-deps", "--no-index", "--no-compile", str(wheel)], check=True, capture_output=True)

    def run(self, *command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """A command of the environment, from the folder, with a home that is empty."""
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("PYTHON", "CHANEST", "VLISTA", "XDG"))
        }
        environment = {
            **kept,
            "HOME": str(self.home),
            "COLUMNS": "80",
            "PATH": f"{self.scripts}{os.pathsep}{kept['PATH']}",
        }
        program = str(self.scripts / command[0])
        done = subprocess.run(
            [program, *command[1:]],
            cwd=self.folder,
            env=environment,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}"
        assert "Traceback" not in done.stderr
        return done


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Stranger:
    pytest.importorskip("hatchling", reason="hatchling, which builds the wheel, is not installed")
    folder = tmp_path_factory.mktemp("stranger")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder / "dist")]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    found = Stranger(folder)
    (wheel,) = (folder / "dist").glob("*.whl")
    found.install(wheel)
    return found


def test_readme_block_by_block(stranger: Stranger) -> None:
    """Own array, own .npy and own estimator among them. Each block has names of its own."""
    blocks = BLOCKS.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(blocks) >= 5
    for wanted in ("own_channels(", "mine.toml", "class MatchedFilter(Estimator)", "NoveltyDetector"):
        assert any(wanted in block for block in blocks), f"no block of README has {wanted}"
    done = stranger.run("python", "-c", RUN_BLOCKS, stdin=json.dumps(blocks))
    where = done.stdout.splitlines()[-1].split()
    assert all(Path(path).is_relative_to(stranger.packages.resolve()) for path in where), where


def test_own_channels_from_the_file_to_the_report_and_an_export(stranger: Stranger) -> None:
    draws = np.random.default_rng(0)
    np.save(stranger.folder / "mine.npy", draws.normal(size=(300, 2, 16)) + 1j * draws.normal(size=(300, 2, 16)))
    (stranger.folder / "mine.toml").write_text(MINE)
    options = ["--snr", "0,10", "--channels", "10", "-o", "runs/mine"]
    told = stranger.run("chanest", "evaluate", "mine.toml", "-e", "ls,omp,universal", *options).stdout
    assert all(name in told for name in ("ls", "omp", "universal"))
    assert told.rstrip().splitlines()[-1].startswith("next: open the report in a browser")
    page = stranger.folder / "runs" / "mine" / "report.html"
    page.unlink()
    stranger.run("chanest", "report", "runs/mine")
    text = page.read_text(encoding="utf-8")
    assert "universal" in text
    assert not re.search(r'(?:src|href)="https?://', text), "the report is one file without remote parts"
    stranger.run("chanest", "export", "ls", "mine.toml", "-o", "ls.pt2")
    stranger.run("python", "-c", ELSEWHERE)
