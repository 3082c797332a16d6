"""`chanest link` and the link example as a user runs them: the real link, short blocks."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from chanest.cli import app
from chanest.studies import STUDIES
from vlista_core.study import read_study

ROOT = Path(__file__).parents[2]
TINY = "[bs]\nrows = 4\ncolumns = 2\nyaw_spread = 60.0\n[ue]\nrows = 2\ncolumns = 1\n[frontend]\npilots = 6\n"
SHORT = ["--blocks", "10", "--validation", "8", "--data-symbols", "6"]


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    (tmp_path / "tiny.toml").write_text(TINY)
    return str(tmp_path / "tiny.toml")


def test_a_link_leaves_tables_a_figure_and_a_page(tiny: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ["link", tiny, "-e", "ls,omp,sionna-ls,genie-angles,perfect", "--snr", "0,12", "--err-var", "both"]
    done = CliRunner().invoke(app, [*command, *SHORT, "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert "| Sionna LS |" in done.output
    assert "| perfect CSI (bound) |" in done.output
    assert "What err_var is worth" in done.output
    found = read_study(out, STUDIES).frame
    assert len(found) == 2 * 5
    for mode in ("estimated", "zero"):
        low, rate, high = (found[f"{mode}.{column}"] for column in ("bler_low", "bler", "bler_high"))
        assert ((low >= 0) & (low <= rate) & (rate <= high) & (high <= 1)).all()
    assert found["provenance.finished"].notna().all()
    assert (out / "bler_vs_snr.png").stat().st_size > 10_000
    assert "data:image/png" in (out / "report.html").read_text(encoding="utf-8")
    assert "SNR for 10%" in (out / "table.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: no such scenario"),
        (["wideband_64x4"], "the link is for narrowband scenarios"),
        (["cdl_c_upa64x4", "--modulation", "32qam"], "modulation must be one of"),
        (["cdl_c_upa64x4", "--streams", "5"], "streams must be at most 4"),
        (["cdl_c_upa64x4", "--err-var", "none"], "err-var must be one of estimated, zero, both"),
        (["cdl_c_upa64x4", "-e", "ls,magic"], "unknown receiver 'magic'"),
        (["cdl_c_upa64x4", "-e", "lista"], "lista has no weights for cdl_c_upa64x4"),
        (["cdl_c_upa64x4", "--snr", "high"], "snr must be start:step:stop"),
    ],
)
def test_a_wrong_argument_is_one_line(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["link", *arguments, "-o", str(tmp_path / "out")])
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.output


def test_the_example_sends_blocks_and_is_short_enough_to_read(tiny: str, tmp_path: Path) -> None:
    example = ROOT / "examples" / "link_level.py"
    assert len(example.read_text(encoding="utf-8").splitlines()) < 120
    command = [
        sys.executable,
        str(example),
        "--scenario",
        tiny,
        "--estimators",
        "ls",
        "--blocks",
        "8",
        "--snr",
        "0,10",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--output", str(tmp_path)], cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "| ls |" in done.stdout
    assert (tmp_path / "bler_vs_snr.png").stat().st_size > 10_000


def test_a_wrong_scenario_in_the_example_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["link_level.py", "--scenario", "nowhere"])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(ROOT / "examples" / "link_level.py"), run_name="__main__")
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith("error: nowhere: no such scenario")
