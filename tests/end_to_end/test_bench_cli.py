"""`chanest bench`: tables, a heat map and a page; a folder grows; what cannot run is a line, a mistake is code 2."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from chanest.cli import app
from chanest.studies import STUDIES
from chanest.studies.bench import BenchStudy
from vlista_core.study import read_study

COLUMNS = "| scenario | ls | gmm | nomp | lead of ours | bound |"


@pytest.fixture(autouse=True)
def _own_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHANEST_WEIGHTS", str(tmp_path / "weights"))


def _bench(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["bench", *arguments], catch_exceptions=False)


def test_two_scenarios_and_three_estimators_give_tables_a_heat_map_and_a_page(tmp_path: Path) -> None:
    out, scenarios = str(tmp_path / "run"), "cdl_c_upa64x4,rt_munich_upa64x4"
    options = ["--scenarios", scenarios, "--snr", "10,20", "--channels", "8", "-o", out]
    first = _bench("-e", "ls,gmm,nomp", *options)
    assert first.exit_code == 0, first.stderr
    assert first.stderr.startswith("note: left out: gmm on rt_munich_upa64x4 (why: chanest estimators SCENARIO)")
    assert first.stdout.count(COLUMNS) == 3
    assert "**NMSE (dB) at 20 dB SNR**" in first.stdout
    assert (tmp_path / "run" / "gap_to_bound.png").read_bytes()[:4] == b"\x89PNG"
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "left out: gmm on rt_munich_upa64x4" in page
    read = read_study(tmp_path / "run", STUDIES)
    assert len(read.records) == 2 * (4 + 3)  # SNRs; three estimators or two, and a bound
    bounds = {record.cell["scenario"]: record.cell["name"] for record in read.records if record.cell["kind"] == "bound"}
    assert bounds == {"cdl_c_upa64x4": "genie-angles", "rt_munich_upa64x4": "genie-cells"}
    grown = _bench("-e", "gated-lmmse", *options)
    assert grown.exit_code == 0, grown.stderr
    assert "gated-lmmse leads on 2 of 2 scenarios" in grown.stdout
    study = read_study(tmp_path / "run", STUDIES).study
    assert isinstance(study, BenchStudy)
    assert study.estimators == ("ls", "gmm", "nomp", "gated-lmmse")
    assert _bench("-e", "ls", "--scenarios", scenarios, "--channels", "9", "-o", out).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-e", "lsd"], "unknown estimator 'lsd'; known are ls, lmmse"),
        (["--scenarios", "nowhere"], "nowhere: no such scenario; give one of cdl_a_upa64x4, "),
        (["--scenarios", "scm_64x1,scm_64x1"], "scenarios must be one or more, each once, got scm_64x1, scm_64x1"),
        (["--scenarios", ","], "scenarios must be one or more, each once, got none"),
        (
            ["--scenarios", "rma_upa64x4", "-e", "lmmse"],
            "nothing can run: lmmse has no weights for rma_upa64x4; train them with: chanest train rma_upa64x4 -e lmmse",
        ),
        (["--trained-on", "nowhere"], "nowhere: no such scenario"),
        (["--channels", "0"], "channels must be an integer of at least 1"),
        (["--snr", "high"], "snr must be start:step:stop"),
        (["--sweep", "speed=3"], "sweep must be one of pilots=8,16"),
    ],
)
def test_mistakes_are_one_sentence_and_code_2(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = _bench(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {message}")
    assert result.stderr.count("\n") == 1
    assert not list(tmp_path.rglob("*.json"))
