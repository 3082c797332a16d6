"""`chanest track`: a table and a page; mistakes are one line, code 2."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from chanest.cli import app


def test_track_prints_snapshots_with_and_without_memory(tmp_path: Path) -> None:
    arguments = [
        "track",
        "mobile_64x4",
        "-e",
        "gated-lmmse",
        "--trained-on",
        "cdl_c_upa64x4",
        "--snr",
        "0",
        "--tracks",
        "2",
    ]
    done = CliRunner().invoke(app, [*arguments, "-o", str(tmp_path)], catch_exceptions=False)
    assert done.exit_code == 0
    assert "gated-lmmse, tracked" in done.stdout
    assert "genie (b): angles known" in done.stdout
    written = sorted(path.name for path in tmp_path.iterdir())
    stored = ["rows.csv", "rows.jsonl", "study.json", "table.md"]
    assert written == ["nmse_by_snapshot.png", "report.html", *stored, "weights"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mobile_64x4", "-e", "lmmse", "--trained-on", "cdl_c_upa64x4"], "lmmse has no family of covariances"),
        (["mobile_64x4"], "gated-lmmse has no weights for mobile_64x4"),
        (["cdl_c_upa64x4"], "cdl_c_upa64x4 has no tracks"),
        (["mobile_64x4", "--tracks", "0"], "tracks must be"),
        (["mobile_64x4", "--memory", "2", "--trained-on", "cdl_c_upa64x4"], "memory must lie between 0 and 1"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["track", *arguments, "-o", str(tmp_path / "run")])
    assert done.exit_code == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()
