"""chanest calibrate and chanest calibration: fit, measure, store, report; mistakes are one line, code 2."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from chanest.cli import app
from chanest.studies import STUDIES
from chanest.studies.coverage import LEVELS, CoverageStudy
from vlista_core.study import read_study

TINY = """
description = "small enough for a test"
[bs]
rows = 2
columns = 4
yaw_spread = 60.0
[ue]
rows = 1
columns = 2
yaw = 180.0
yaw_spread = 180.0
[channel]
models = ["C"]
[frontend]
pilots = 6
[data]
train = 64
validation = 64
test = 64
"""


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("CHANEST_WEIGHTS", str(tmp_path / "weights"))
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return str(path)


def test_fit_measure_and_report(scenario: str, tmp_path: Path) -> None:
    fitted = _run("calibrate", scenario, "-e", "ls,vamp", "--channels", "32")
    assert fitted.exit_code == 0
    files = sorted(path.name for path in (tmp_path / "weights").iterdir())
    assert files == ["tiny.ls.calibration.json", "tiny.vamp.calibration.json"]
    folder = tmp_path / "run" / "calibration"
    command = ("calibration", scenario, "-e", "ls,vamp", "--snr", "0,20", "--channels", "60", "-o", str(folder))
    measured = _run(*command)
    assert measured.exit_code == 0
    assert "Coverage of intervals at 20 dB, 60 test channels" in measured.stdout
    read = read_study(folder, STUDIES)
    assert isinstance(read.study, CoverageStudy)
    rows = read.study.variances(read.frame).to_dict("records")
    assert [(row["name"], row["snr_db"]) for row in rows if row["kind"] == "calibrated"] == [
        ("ls", 0.0), ("ls", 20.0), ("vamp", 0.0), ("vamp", 20.0),
    ]  # fmt: skip
    assert {row["name"] for row in rows if row["kind"] == "own"} == {"vamp"}
    for row in rows:
        covered = row["covered"]
        assert covered == sorted(covered)
        assert row["calibration_error"] == pytest.approx(
            sum(abs(share - level) for share, level in zip(covered, LEVELS, strict=True)) / len(LEVELS)
        )
        if row["kind"] == "calibrated":
            assert covered[LEVELS.index(0.9)] == pytest.approx(0.9, abs=0.05)
            assert row["interval_90"] > 0.87
        if row["name"] == "ls":
            assert row["sharpness_db"] == pytest.approx(row["nmse_db"], abs=1.5)
    assert (folder / "reliability.png").read_bytes().startswith(b"\x89PNG")
    assert "| ls | calibrated |" in (folder / "table.md").read_text()
    options = ("--snr", "10", "--channels", "8", "--no-bounds", "-o", str(folder.parent))
    assert _run("evaluate", scenario, "-e", "ls", *options).exit_code == 0
    page = (folder.parent / "report.html").read_text()
    assert "what intervals cover</h2>" in page
    assert "Coverage of intervals at 0 dB" in page


def test_pilots_and_what_lies_between_are_told_apart(scenario: str, tmp_path: Path) -> None:
    """A comb on every second of eight subcarriers: least squares has nothing between them, and a calibration knows it."""
    comb = TINY.replace('models = ["C"]', 'models = ["C"]\nsubcarriers = 8\nsubcarrier_spacing = 120e3')
    Path(scenario).write_text(comb + '[frontend.pattern]\nkind = "comb"\nspacing = 2\n')
    assert _run("calibrate", scenario, "-e", "ls", "--channels", "32").exit_code == 0
    folder = tmp_path / "grid"
    measured = _run("calibration", scenario, "-e", "ls", "--snr", "0,10", "--channels", "60", "-o", str(folder))
    assert measured.exit_code == 0
    assert "What conformal 90 % intervals cover over the resource grid" in measured.stdout
    assert (folder / "grid.png").read_bytes().startswith(b"\x89PNG")
    read = read_study(folder, STUDIES)
    assert isinstance(read.study, CoverageStudy)
    for row in read.study.variances(read.frame).to_dict("records"):
        shares = row["by_subcarrier"]
        assert len(shares) == 8
        assert row["at_pilots"] == pytest.approx(sum(shares[::2]) / 4)
        assert row["between"] == pytest.approx(sum(shares[1::2]) / 4)
        assert row["interval_90"] == pytest.approx(sum(shares) / 8)
        assert row["by_symbol"] == pytest.approx([row["interval_90"]])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("calibrate", "-e", "ls,omq"), "unknown estimator 'omq'"),
        (("calibrate", "-e", "ls", "--channels", "8"), "channels must be an integer of at least 32"),
        (("calibrate", "-e", "gated-lmmse"), "gated-lmmse has no weights for tiny"),
        (
            ("calibration", "-e", "ls", "--channels", "4"),
            "ls has no variance for tiny; fit one: chanest calibrate SCENARIO -e ls",
        ),
        (("calibration", "-e", "ls", "--channels", "0"), "channels must be an integer of at least 1"),
        (("calibration", "-e", "ls", "--snr", "ten"), "snr must be start:step:stop"),
        (("calibration", "-e", "vamp", "-o", "/dev/null/run"), "the output folder cannot be made"),
    ],
)
def test_mistakes_are_one_line(arguments: tuple[str, ...], message: str, scenario: str) -> None:
    command, *options = arguments
    output = [] if "-o" in options or command == "calibrate" else ["-o", str(Path(scenario).parent / "run")]
    failed = _run(command, scenario, *options, *output)
    assert failed.exit_code == 2
    assert message.replace("SCENARIO", scenario) in " ".join(failed.stderr.split())
    assert failed.stderr.count("\n") == 1


def test_a_damaged_calibration_is_named_and_can_be_fitted_again(scenario: str, tmp_path: Path) -> None:
    path = tmp_path / "weights" / "tiny.ls.calibration.json"
    path.parent.mkdir()
    path.write_text("{")
    arguments = (scenario, "-e", "ls", "--channels", "32")
    failed = _run("calibration", *arguments, "-o", str(tmp_path / "run"))
    assert failed.exit_code == 2
    assert "is no calibration of this version" in " ".join(failed.stderr.split())
    assert _run("calibrate", *arguments).exit_code == 0
    assert _run("calibration", *arguments, "--snr", "10", "-o", str(tmp_path / "run")).exit_code == 0
