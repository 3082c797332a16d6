"""The examples run as a reader would run them, on a small scenario, and leave what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TINY = "[bs]\nrows = 4\ncolumns = 2\nyaw_spread = 60.0\n[ue]\nrows = 1\ncolumns = 1\n[frontend]\npilots = 6\n"


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    (tmp_path / "tiny.toml").write_text(TINY)
    return str(tmp_path / "tiny.toml")


def _example(name: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CHANEST_WEIGHTS": str(folder / "weights"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "examples" / name), *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300)


def test_the_main_example_compares_everything_and_saves_figure_and_report(tiny: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = _example(
        "cdl_channel_estimation.py", tmp_path, "--scenario", tiny, "--snr", "5", "--channels", "4", "--output", str(out)
    )
    assert done.returncode == 0, done.stderr
    assert "6 measurements of 8 unknowns" in done.stdout
    (note,) = [line for line in done.stdout.splitlines() if line.startswith("note: ")]
    assert note.startswith("note: left out: lmmse, gmm, ")
    assert f"(made by: chanest train {tiny} -e lmmse,gmm," in note
    assert "| ls |" in done.stdout
    assert "(bound)" in done.stdout
    assert (out / "nmse_vs_snr.png").stat().st_size > 10_000
    assert "data:image/png" in (out / "report.html").read_text(encoding="utf-8")


def test_the_main_example_is_short_enough_to_read() -> None:
    text = (ROOT / "examples" / "cdl_channel_estimation.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 120


def test_an_estimator_of_ones_own_appears_in_the_table(tiny: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = _example(
        "own_estimator.py", tmp_path, "--scenario", tiny, "--channels", "8", "--against", "ls", "--output", str(out)
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.index("| power-weighted |") < done.stdout.index("| ls |")
    assert (out / "report.html").is_file()


def test_new_beams_break_lista_and_not_a_dlista(tmp_path: Path) -> None:
    done = _example("varying_beams.py", tmp_path, "--seconds", "2", "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr
    rows = [line.split("│")[1:4] for line in done.stdout.splitlines() if "beams" in line and "│" in line]
    lista, adlista = ([float(row[column]) for row in rows] for column in (1, 2))
    assert lista[1] > lista[0] + 3
    assert adlista[1] < -2
    assert (tmp_path / "varying_beams.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cdl_channel_estimation.py", "--scenario", "nowhere"], "error: nowhere: no such scenario"),
        (["cdl_channel_estimation.py", "--train", "0"], "--train must be a positive number"),
        (["varying_beams.py", "--seconds", "-1"], "--seconds must be positive"),
    ],
)
def test_a_wrong_argument_is_one_line(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = _example(arguments[0], tmp_path, *arguments[1:])
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
