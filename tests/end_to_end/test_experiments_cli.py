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
from typer.testing import CliRunner, Result

from vlista_core import experiments
from vlista_core.experiments.cli import app

ROOT = Path(__file__).parents[2]
TINY = """
import time
import torch
from vlista_core.experiments import EXPERIMENTS
from vlista_core.experiments.grid import TableExperiment

class Tiny(TableExperiment):
    name, summary, title = "mnist-fixed", "A table of next to nothing.", "Tiny <b>"
    models, measurements, first, repeats = ("lista", "a-dlista"), (10, 100), (100, 10), {100: 2}

    def run(self, cell, context):
        if context.data is not None and cell["model"] == "lista":
            raise ValueError("the data are wrong")
        time.sleep(0.4)
        return {"ssim": 0.4 + cell["measurements"] / 1000 + cell["seed"] / 100, "ssim_error": 0.002, "test_samples": 50,
                "threads": torch.get_num_threads()}

if __name__ == "__main__":
    from vlista_core.experiments.cli import app
    EXPERIMENTS["mnist-fixed"] = "tiny_experiment:Tiny"
    app()
"""


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script with the command line and one experiment of six cells, alone in the registry here too."""
    script = tmp_path / "tiny_experiment.py"
    script.write_text(TINY)
    monkeypatch.setattr(experiments, "EXPERIMENTS", {"mnist-fixed": "tiny_experiment:Tiny"})
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return script


def _start(script: Path, *arguments: str) -> subprocess.Popen[str]:
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    command = [sys.executable, str(script), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def _call(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


def _files() -> list[Path]:
    return sorted(Path("run/cells").glob("[!.]*.json"))


def test_killed_in_the_middle_it_goes_on_in_processes_and_reports(tiny: Path) -> None:
    process = _start(tiny, "run", "mnist-fixed", "-o", "run")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not _files():
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    before = {path: path.stat().st_mtime_ns for path in _files()}
    assert 1 <= len(before) < 6, "the process was not killed in the middle"

    resumed = _start(tiny, "run", "mnist-fixed", "--workers", "2", "-o", "run")
    said, notes = resumed.communicate(timeout=120)
    assert resumed.returncode == 0
    assert notes == f"{len(before)} of 6 cells are done already\n"
    assert len(said.splitlines()) == 6 - len(before)
    assert re.search(r"mnist-fixed\.a-dlista\.m10\.s0: ssim 0\.410 \(paper 0\.358\), \d+ s in all", said)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    contents = [json.loads(path.read_text()) for path in _files()]
    assert len(contents) == 6
    asked = ("experiment", "model", "measurements", "seed", "ssim", "test_samples", "seconds", "peak_gigabytes")
    assert all(key in content for content in contents for key in asked)
    assert {content["threads"] for content in contents} == {1}

    table = _call("table", "mnist-fixed", "-o", "run")
    assert "| a-dlista | 0.505 ± 0.002 | 0.566 ± 0.001 | −0.061 | 2 of 2 | 0.500 … 0.510 | 50 | – |" in table.stdout
    assert re.search(r"mnist-fixed\s+6\s+6\s+A table of next to nothing", _call("list", "-o", "run").stdout)

    assert _call("report", "-o", "run").exit_code == 0
    page = Path("run/report.html").read_text(encoding="utf-8")
    assert "Tiny &lt;b&gt;" in page
    assert "6 of 6 cells are done" in page
    assert re.findall(r'(?:src|href)="(.{0,22})', page) == ["data:image/png;base64,"]
    assert not re.search(r"https?:|@import|url\(|<script", page)
    assert Path("run/tables/mnist-fixed.md").is_file()
    assert Path("run/figures/mnist-fixed.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert str(tiny.parent) not in page


def test_a_cell_that_fails_leaves_the_others_and_ends_in_code_1(tiny: Path) -> None:
    result = _call("run", "mnist-fixed", "--measurements", "10", "--data", "somewhere", "-o", "run")
    assert result.exit_code == 1
    assert result.stdout.startswith("mnist-fixed.a-dlista.m10.s0: ssim 0.410")
    assert result.stderr.splitlines() == [
        "mnist-fixed.lista.m10.s0 failed: the data are wrong", "1 of 2 cells failed",
    ]  # fmt: skip
    again = _call("run", "mnist-fixed", "--measurements", "10", "--seeds", "0", "--restart", "-o", "run")
    assert again.exit_code == 0
    assert len(again.stdout.splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "mnits"], "unknown experiment 'mnits'; known are mnist-fixed"),
        (["run", "mnist-fixed", "--models", "x"], "mnist-fixed has no cells with model x; allowed are lista, a-dlista"),
        (["run", "all", "--measurements", "7"], "no experiment has cells with measurements 7; allowed are 100, 10"),
        (["run", "all", "--seeds", "a"], "seeds must be integers with commas between, such as 1,10, got 'a'"),
        (["run", "all", "--workers", "0"], "workers must be an integer of at least 1, got 0"),
        (["run", "all", "--hours", "-1"], "hours must be positive, got -1"),
        (["run", "all", "--scheduler", "nonsense://1"], "no dask scheduler answers at nonsense://1"),
        (["run", "all", "-o", "tiny_experiment.py"], "the output folder cannot be made"),
        (["table", "mnits"], "unknown experiment 'mnits'"),
        (["report", "-o", "nowhere"], "nowhere holds no finished cells"),
    ],
)
def test_mistakes_are_one_line_and_code_2(tiny: Path, arguments: list[str], message: str) -> None:
    result = _call(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {message}")
    assert result.stderr.count("\n") == 1
    assert not Path("out").exists()


def test_the_module_is_the_command_line() -> None:
    command = [sys.executable, "-m", "vlista_core.experiments", "run", "nonsense"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)
    assert result.returncode == 2
    assert result.stderr.startswith("error: unknown experiment 'nonsense'; known are ")
