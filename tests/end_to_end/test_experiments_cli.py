"""The experiments on the command line, with a small one: run, kill and resume, processes, tables, the page, mistakes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TINY = """
import time
from vlista_core.experiments import EXPERIMENTS
from vlista_core.experiments.grid import TableExperiment

class Tiny(TableExperiment):
    name, summary, title = "mnist-fixed", "A table of next to nothing.", "Tiny <b>"
    models, measurements, first, repeats = ("lista", "a-dlista"), (10, 100), (100, 10), {100: 2}

    def run(self, cell, context):
        if context.data is not None and cell["model"] == "lista":
            raise ValueError("the data are wrong")
        time.sleep(0.4)
        return {"ssim": 0.4 + cell["measurements"] / 1000 + cell["seed"] / 100, "ssim_error": 0.002, "test_samples": 50}

EXPERIMENTS.clear()
EXPERIMENTS["mnist-fixed"] = "tiny_experiment:Tiny"
if __name__ == "__main__":
    from vlista_core.experiments.cli import app
    app()
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A script with the command line and one experiment of six cells; runs go into `run` beside it."""
    script = tmp_path / "tiny_experiment.py"
    script.write_text(TINY)
    return script


def _command(script: Path, *arguments: str) -> list[str]:
    return [sys.executable, str(script), *arguments]


def _call(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        _command(script, *arguments), capture_output=True, text=True, timeout=120, check=False, cwd=script.parent,
        env=_environment(),
    )  # fmt: skip


def _environment() -> dict[str, str]:
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def _files(script: Path) -> list[Path]:
    return sorted((script.parent / "run" / "cells").glob("[!.]*.json"))


def test_killed_in_the_middle_it_goes_on_in_processes_and_reports(tiny: Path) -> None:
    process = subprocess.Popen(
        _command(tiny, "run", "all", "-o", "run"), stdout=subprocess.DEVNULL, cwd=tiny.parent, env=_environment()
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not _files(tiny):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    before = {path: path.stat().st_mtime_ns for path in _files(tiny)}
    assert 1 <= len(before) < 6, "the process was not killed in the middle"

    resumed = _call(tiny, "run", "mnist-fixed", "--workers", "2", "-o", "run")
    assert resumed.returncode == 0
    assert f"{len(before)} of 6 cells are done already" in resumed.stderr
    assert len(resumed.stdout.splitlines()) == 6 - len(before)
    assert re.search(r"mnist-fixed\.a-dlista\.m10\.s0: ssim 0\.410 \(paper 0\.358\), \d+ s in all", resumed.stdout)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert len(_files(tiny)) == 6
    assert set(json.loads(_files(tiny)[0].read_text())) == {"cell", "result"}

    table = _call(tiny, "table", "mnist-fixed", "-o", "run")
    assert "| a-dlista | 0.505 ± 0.002 | 0.566 ± 0.001 | −0.061 | 2 of 2 | 0.500 … 0.510 | 50 | – |" in table.stdout
    assert re.search(r"mnist-fixed\s+6\s+6\s+A table of next to nothing", _call(tiny, "list", "-o", "run").stdout)

    assert _call(tiny, "report", "-o", "run").returncode == 0
    page = (tiny.parent / "run" / "report.html").read_text(encoding="utf-8")
    assert "Tiny &lt;b&gt;" in page
    assert "6 of 6 cells are done" in page
    assert re.findall(r'(?:src|href)="(.{0,22})', page) == ["data:image/png;base64,"]
    assert not re.search(r"https?:|@import|url\(|<script", page)
    assert (tiny.parent / "run" / "tables" / "mnist-fixed.md").is_file()
    assert (tiny.parent / "run" / "figures" / "mnist-fixed.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert str(tiny.parent) not in page


def test_a_cell_that_fails_leaves_the_others_and_ends_in_code_1(tiny: Path) -> None:
    result = _call(tiny, "run", "mnist-fixed", "--measurements", "10", "--data", "somewhere", "-o", "run")
    assert result.returncode == 1
    assert result.stdout.startswith("mnist-fixed.a-dlista.m10.s0: ssim 0.410")
    assert result.stderr.splitlines() == [
        "mnist-fixed.lista.m10.s0 failed: the data are wrong", "1 of 2 cells failed",
    ]  # fmt: skip
    again = _call(tiny, "run", "mnist-fixed", "--measurements", "10", "--seeds", "0", "--restart", "-o", "run")
    assert again.returncode == 0
    assert len(again.stdout.splitlines()) == 2


def test_mistakes_are_one_line_and_code_2(tiny: Path) -> None:
    for arguments, message in (
        (["run", "mnits"], "unknown experiment 'mnits'; known are mnist-fixed"),
        (["run", "mnist-fixed", "--models", "x"], "mnist-fixed has no cells with model x; allowed are lista, a-dlista"),
        (["table", "mnits"], "unknown experiment 'mnits'"),
        (["report", "-o", "nowhere"], "nowhere holds no finished cells"),
        (["run", "all", "--workers", "0"], "workers must be an integer of at least 1, got 0"),
    ):
        result = _call(tiny, *arguments)
        assert result.returncode == 2, arguments
        assert result.stderr.startswith(f"error: {message}")
        assert result.stderr.count("\n") == 1
    assert not (tiny.parent / "out").exists()


def test_the_module_is_the_command_line() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "vlista_core.experiments", "run", "nonsense"], capture_output=True, text=True,
        timeout=120, check=False, cwd=ROOT,
    )  # fmt: skip
    assert result.returncode == 2
    assert result.stderr.startswith("error: unknown experiment 'nonsense'; known are ")
