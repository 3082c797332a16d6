"""The report of an evaluation shows the runs of other commands that lie in its folder."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from chanest.evaluation.results import Results
from chanest.report import write_report
from chanest.sections import further_sections

RECORDED = Path(__file__).parents[2] / "docs" / "results"


def test_a_report_with_everything(tmp_path: Path) -> None:
    shutil.copytree(RECORDED / "cdl_c_upa64x4", tmp_path / "run")
    shutil.copytree(RECORDED / "link", tmp_path / "run" / "link")
    shutil.copytree(RECORDED / "novelty" / "frames", tmp_path / "run" / "novelty")
    shutil.copytree(RECORDED / "tracking", tmp_path / "run" / "tracking")
    for file in (RECORDED / "calibration").iterdir():
        shutil.copy(file, tmp_path / "run" / file.name)
    page = write_report(Results.read(tmp_path / "run"), tmp_path / "run").read_text()
    titles = ["Block errors of a link", "Channels that are new", "Frames over time", "Configuration"]
    assert [page.index(f"<h2>{title}</h2>") for title in titles] == sorted(page.index(f"<h2>{t}</h2>") for t in titles)
    assert len(re.findall("data:image/png", page)) == 6
    assert "one BS antenna blocked" in page
    assert "a-dlista+, tracked" in page


def test_nothing_where_nothing_is(tmp_path: Path) -> None:
    assert further_sections(tmp_path) == []


@pytest.mark.parametrize("kind", ["link", "novelty", "tracking"])
def test_an_empty_folder_is_told(tmp_path: Path, kind: str) -> None:
    (tmp_path / kind).mkdir()
    with pytest.raises((ValueError, OSError), match=kind):
        further_sections(tmp_path)
