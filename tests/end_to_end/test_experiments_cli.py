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
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from vlista_core.experiments import EXPERIMENTS
from vlista_core.experiments.cli import app

ROOT = Path(__file__).parents[2]
TINY = """
import time
from typing import ClassVar
import torch
from vlista_core.experiments import EXPERIMENTS
from vlista_core.experiments.images import MnistFixed

class Tiny(MnistFixed):
    summary: ClassVar[str] = "A table of next to nothing."
    heading: ClassVar[str] = "Tiny <b>"
    models: tuple[str, ...] = ("lista", "a-dlista")
    measurements: tuple[int, ...] = (100, 10)
    recipes: tuple[str, ...] = ("ours",)
    seeds: int = 2

    def run(self, cell, context):
        if self.data is not None and cell["model"] == "lista":
            raise ValueError("the data are wrong")
        time.sleep(0.4)
        return {"ssim": 0.4 + cell["measurements"] / 1000 + cell["seed"] / 100, "ssim_error": 0.002, "test_samples": 50,
                "threads": torch.get_num_threads()}

if __name__ == "__main__":
    from vlista_core.experiments.cli import app
    EXPERIMENTS.clear()
    EXPERIMENTS["mnist-fixed"] = "tiny_experiment:Tiny"
    app()
"""
ROWS = Path("run/mnist-fixed/rows.jsonl")


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script with the command line and one experiment of six cells, alone in the registry here too."""
    script = tmp_path / "tiny_experiment.py"
    script.write_text(TINY)
    for name in [*EXPERIMENTS]:
        monkeypatch.delitem(EXPERIMENTS, name)
    monkeypatch.setitem(EXPERIMENTS, "mnist-fixed", "tiny_experiment:Tiny")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return script


def _start(script: Path, *arguments: str) -> subprocess.Popen[str]:
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    command = [sys.executable, str(script), *arguments]
    # A shell that starts the tests in the background has them ignore interrupts, and what they start inherits that.
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def _call(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


def _records() -> list[dict[str, Any]]:
    """The rows that are whole."""
    lines = ROWS.read_bytes().split(b"\n")[:-1] if ROWS.is_file() else []
    return [json.loads(line) for line in lines]


def test_killed_in_the_middle_it_goes_on_in_processes_and_reports(tiny: Path) -> None:
    process = _start(tiny, "run", "mnist-fixed", "-o", "run")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not _records():
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    before = _records()
    assert 1 <= len(before) < 6, "the process was not killed in the middle"

    resumed = _start(tiny, "run", "mnist-fixed", "--workers", "2", "-o", "run")
    said, notes = resumed.communicate(timeout=120)
    assert (resumed.returncode, notes) == (0, "")
    assert len(said.splitlines()) == 6 - len(before) + 2
    assert said.splitlines()[-2:] == [
        "6 of 6 cells of mnist-fixed are done",
        "next: python -m vlista_core.experiments table mnist-fixed -o run, or python -m vlista_core.experiments report run",
    ]
    assert re.search(r"mnist-fixed\.a-dlista\.m10\.s0\.recipe-ours: ssim 0\.410 \(paper 0\.358\), \d+ s in all", said)
    records = _records()
    assert records[: len(before)] == before
    assert len(records) == 6
    assert {record["row"]["threads"] for record in records} == {1}
    assert all(record["provenance"]["peak_gigabytes"] > 0 for record in records)

    table = _call("table", "mnist-fixed", "-o", "run")
    assert (
        "| a-dlista | ours | 0.505 ± 0.002 | 0.566 ± 0.001 | −0.061 | 2 of 2 | 0.500 … 0.510 | 50 | – |" in table.stdout
    )
    assert re.search(r"mnist-fixed\s+6\s+6\s+A table of next to nothing", _call("list", "-o", "run").stdout)

    assert _call("report", "run").exit_code == 0
    page = Path("run/report.html").read_text(encoding="utf-8")
    assert "Tiny &lt;b&gt;" in page
    assert "6 of 6 cells are done" in page
    assert re.findall(r'(?:src|href)="(.{0,22})', page) == ["data:image/png;base64,"]
    assert not re.search(r"https?:|@import|url\((?!#)|<script[^>]* src", page)
    assert Path("run/mnist-fixed/table.md").is_file()
    assert Path("run/mnist-fixed/mnist-fixed.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert str(tiny.parent) not in page


def test_an_interrupt_ends_in_one_line_and_the_same_command_goes_on(tiny: Path) -> None:
    process = _start(tiny, "run", "mnist-fixed", "--workers", "2", "-o", "run")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not _records():
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, notes = process.communicate(timeout=60)
    assert process.returncode == 130
    assert notes == "stopped; what is done is in run, and the same command goes on from there\n"
    assert 1 <= len(_records()) < 6


def test_a_cell_that_fails_leaves_the_others_and_ends_in_code_1(tiny: Path) -> None:
    result = _call("run", "mnist-fixed", "--measurements", "10", "--data", "somewhere", "-o", "run")
    assert result.exit_code == 1
    assert result.stdout.startswith("mnist-fixed.a-dlista.m10.s0.recipe-ours: ssim 0.410")
    assert result.stderr.splitlines() == [
        "mnist-fixed.lista.m10.s0.recipe-ours failed: the data are wrong",
        "cells that failed: 1; the same command tries them again",
    ]
    again = _call("run", "mnist-fixed", "--measurements", "10", "--seeds", "0", "--restart", "-o", "run")
    assert again.exit_code == 0
    assert len(again.stdout.splitlines()) == 2 + 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "mnits"], "unknown study 'mnits'; known are mnist-fixed"),
        (["run", "mnist-fixed", "--models", "x"], "mnist-fixed has no cells with model x; allowed are lista, a-dlista"),
        (["run", "all", "--measurements", "7"], "no experiment has cells with measurements 7; allowed are 100, 10"),
        (["run", "all", "--seeds", "a"], "seeds must be integers with commas between, such as 1,10, got 'a'"),
        (["run", "all", "--workers", "0"], "workers must be an integer of at least 1, got 0"),
        (["run", "all", "--device", "gpu"], "device must be auto, cpu, cuda or cuda:N, got 'gpu'"),
        (["run", "all", "--device", "cuda:99"], "device is cuda:99, but this machine has "),
        (["run", "all", "--hours", "-1"], "hours must be positive, got -1"),
        (["run", "all", "--scheduler", "nonsense://1"], "no dask scheduler answers at nonsense://1"),
        (["run", "all", "-o", "tiny_experiment.py"], "the output folder cannot be made"),
        (["table", "mnist-fixed"], "out/experiments/mnist-fixed holds no study: there is no study.json"),
        (["table", "mnits"], "unknown study 'mnits'"),
        (["report", "nowhere"], "nowhere holds no finished cells of a study"),
    ],
)
def test_mistakes_are_one_line_and_code_2(tiny: Path, arguments: list[str], message: str) -> None:
    result = _call(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {message}")
    assert result.stderr.count("\n") == 1
    assert not Path("out").exists()


@pytest.mark.parametrize(
    "arguments", [["-h"], ["--help"], ["run", "-h"], ["table", "-h"], ["report", "-h"], ["--version"]]
)
def test_help_and_version_are_spelled_as_in_chanest(arguments: list[str]) -> None:
    assert _call(*arguments).exit_code == 0


def test_the_module_is_the_command_line() -> None:
    command = [sys.executable, "-m", "vlista_core.experiments", "run", "nonsense"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)
    assert result.returncode == 2
    assert result.stderr.startswith("error: unknown study 'nonsense'; known are ")
