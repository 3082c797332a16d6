"""`chanest novelty` and its example, run as a reader would; mistakes are one line, code 2."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from chanest.cli import app
from chanest.studies import STUDIES
from chanest.studies.novelty import NoveltyStudy
from vlista_core.study import read_study

ROOT = Path(__file__).parents[2]


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["novelty", *arguments], catch_exceptions=False)


def test_tables_figure_and_rows_of_a_run(tmp_path: Path) -> None:
    done = _run(
        "cdl_c_upa64x4", "-e", "atom-lmmse", "--changes", "cdl-a,tilt", "--lengths", "20,5", "--frames", "100",
        "--home", "200", "--reference", "700", "--level", "0.1", "-o", str(tmp_path),
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    read = read_study(tmp_path, STUDIES)
    assert isinstance(read.study, NoveltyStudy)
    assert read.study.level == 0.1
    assert {record.cell["name"] for record in read.records} == {"atom-lmmse"}
    rows = {(row["change"], row["frames"]): row for row in read.study.streams(read.frame).to_dict("records")}
    assert set(rows) == {(change, frames) for change in ("home", "cdl-a", "tilt") for frames in (5, 20)}
    assert rows["cdl-a", 20]["auroc"] > 0.95
    assert rows["home", 20]["alarms"] <= 0.4
    table = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert "| change | 5 frames | 20 frames |" in table
    assert "10.0% asked for" in done.stdout
    assert (tmp_path / "novelty.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: no such scenario"),
        (["cdl_c_upa64x4", "--score", "colour"], "unknown score 'colour'; known are antennas"),
        (["cdl_c_upa64x4", "--level", "1"], "level must be at least 0.001 and less than 1"),
        (["cdl_c_upa64x4", "--lengths", "0"], "lengths must be numbers of frames"),
        (["cdl_c_upa64x4", "--frames", "0"], "frames must be"),
        (["cdl_c_upa64x4", "--changes", "weather"], "no change 'weather'"),
        (["cdl_c_upa64x4", "--score", "likelihood", "-e", "atom-lmmse"], "needs a gmm"),
        (["cdl_a_upa64x4"], "gated-lmmse has no weights for cdl_a_upa64x4; train them"),
        (["cdl_c_upa64x4", "--snr", "loud"], "snr must be"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = _run(*arguments, "-o", str(tmp_path / "out"))
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_example_notices_changes_and_is_short(tmp_path: Path) -> None:
    path = ROOT / "examples" / "novelty_detection.py"
    assert len(path.read_text(encoding="utf-8").splitlines()) < 120
    command = [sys.executable, str(path), "--estimator", "atom-lmmse", "--reference", "560", "--streams", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--output", str(tmp_path)], cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "| CDL-A | 1 of 1 |" in done.stdout
    assert (tmp_path / "novelty_detection.png").stat().st_size > 10_000
