"""Tables, figures and pages of the studies: order, gaps, message, labels apart, nothing fetched from elsewhere."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

import chanest
from chanest.bounds import BOUNDS as REGISTERED
from chanest.plotting.studies import LOOKS
from chanest.studies import STUDIES
from chanest.studies.accuracy import AccuracyStudy
from chanest.studies.ranking import Ranking
from vlista_core.plotting import apart
from vlista_core.study import Provenance, Record, Row, Table, frame, read_study
from vlista_core.study.page import markdown, write_page
from vlista_core.study.tables import milliseconds

RECORDED = Path(__file__).parents[2] / "docs" / "results"
LEVELS = {"lmmse": (-4.7, -9.7, -14.8), "omp": (-5.0, -6.0, -8.0), "gated-lmmse": (-6.6, -12.2, -18.1)}
BOUNDS = {"genie-angles": (-7.1, -12.6, -18.5), "genie-rays": (-8.0, -14.0, -20.0)}
NOTE = "gmm is left out: no <weights>"


def _record(kind: str, name: str, value: float | None, snr: float, row: Row) -> Record:
    cell = {"kind": kind, "name": name, "value": value, "snr_db": snr}
    return Record.model_validate({"cell": cell, "row": row, "provenance": Provenance(commit="0123")})


def _errors(level: float | None) -> Row:
    low, high = (None, None) if level is None else (level - 0.2, level + 0.2)
    ends: Row = {"nmse_low_db": low, "nmse_high_db": high, "nmse_mean_db": level, "nmse_median_db": level}
    return {"nmse_db": level, **ends, "diverged": 3 if level is None else 0}


def _cost(name: str) -> Record:
    return _record("cost", name, None, 10.0, {"ms_batch_1": 2.0, "ms_batch": 0.5, "parameters": 1000, "threads": 1})


def _ranking(*, bounds: bool = True, diverged: str = "") -> tuple[AccuracyStudy, list[Record]]:
    scenario = chanest.load_scenario("cdl_c_upa64x4")
    shown = BOUNDS if bounds else {}
    study = AccuracyStudy(scenario=scenario, estimators=tuple(LEVELS), bounds=tuple(shown), channels=100)
    records = []
    for index, snr in enumerate(study.snr_db):
        for name, levels in LEVELS.items():
            level = None if name == diverged else levels[index]
            records.append(_record("estimator", name, snr, snr, _errors(level)))
        for name, levels in shown.items():
            records.append(_record("bound", name, snr, snr, {"label": f"bound {name}", **_errors(levels[index])}))
    return study, records + [_cost(name) for name in LEVELS]


def _sweep() -> tuple[AccuracyStudy, list[Record]]:
    study = AccuracyStudy(
        scenario=chanest.load_scenario("cdl_c_upa64x4"), estimators=("ls", "lmmse"), snr_db=(0.0, 20.0),
        sweep="pilots", values=(8, 24),
    )  # fmt: skip
    records = [
        _record("estimator", name, value, snr, _errors(-snr / 2 - value / 4 - (name == "lmmse")))
        for value, snr in study.points()
        for name in study.estimators
    ]
    return study, records + [_cost(name) for name in study.estimators]


def _tables(made: tuple[AccuracyStudy, list[Record]], title: str) -> list[Table]:
    """Those whose title has these words."""
    study, records = made
    return [table for table in study.tables(frame(records)) if title in table.title]


def _headline(made: tuple[AccuracyStudy, list[Record]]) -> str:
    return made[0].headline(frame(made[1]))


def _stored(made: tuple[AccuracyStudy, list[Record]], folder: Path) -> Path:
    """The folder as a run would leave it."""
    study, records = made
    about = {
        "study": study.name, "configuration": study.configuration(), "started": "2026-01-01", "notes": [NOTE],
        "cells": [study.cell_id(record.cell) for record in records],
    }  # fmt: skip
    folder.mkdir(exist_ok=True)
    (folder / "study.json").write_text(json.dumps(about))
    (folder / "rows.jsonl").write_text("".join(f"{record.model_dump_json()}\n" for record in records))
    return folder


def test_estimators_come_best_first_at_the_middle_snr_then_the_bounds() -> None:
    (table,) = _tables(_ranking(), "NMSE (dB) by SNR")
    assert [line[0] for line in table.lines] == [
        "gated-lmmse", "lmmse", "omp", "bound genie-rays (bound)", "bound genie-angles (bound)",
    ]  # fmt: skip
    assert table.bounds == 2
    assert table.heading[:4] == ("estimator", "0 dB", "10 dB", "20 dB")
    assert table.lines[0] == ("gated-lmmse", "−6.6", "−12.2", "−18.1", "+0.43", "2.0", "0.500", "1,000")
    assert table.lines[-1][1:] == ("−7.1", "−12.6", "−18.5", "+0.00", "–", "–", "–")


def test_gaps_are_counted_from_the_genie_that_knows_the_angles() -> None:
    (table,) = _tables(_ranking(), "Gap to")
    assert table.lines[0] == ("gated-lmmse", "+0.50", "+0.40", "+0.40", "+0.43")
    assert _tables(_ranking(bounds=False), "Gap to") == []
    (without,) = _tables(_ranking(bounds=False), "NMSE (dB) by SNR")
    assert without.lines[0][4] == "–"


def test_the_headline_names_the_best_its_gap_and_its_cost() -> None:
    said = _headline(_ranking())
    assert said.startswith("gated-lmmse is the most accurate: −12.2 dB NMSE at 10 dB SNR, 0.4 dB above the bound")
    assert "in 0.500 ms per channel. Next is lmmse with −9.7 dB" in said
    assert "bound" not in _headline(_ranking(bounds=False))
    assert _headline(_ranking(diverged="gated-lmmse")).startswith("lmmse is the most accurate")


def test_what_diverged_is_last_and_says_so() -> None:
    (table,) = _tables(_ranking(diverged="gated-lmmse"), "NMSE (dB) by SNR")
    assert table.lines[2] == ("gated-lmmse", *["diverged (3)"] * 3, "–", "2.0", "0.500", "1,000")
    (intervals,) = _tables(_ranking(diverged="gated-lmmse"), "with its interval")
    assert [line[3] for line in intervals.lines if line[0] == "gated-lmmse"] == ["diverged (3)"] * 3


def test_a_study_in_which_all_diverged_has_a_page(tmp_path: Path) -> None:
    study, records = _ranking(bounds=False)
    records = [_record("estimator", name, 10.0, 10.0, _errors(None)) for name in LEVELS]
    assert study.headline(frame(records)) == "No estimator gave finite results."
    assert "diverged (3)" in write_page(_stored((study, records), tmp_path), STUDIES).read_text(encoding="utf-8")


def test_a_sweep_has_a_table_for_each_snr() -> None:
    tables = _tables(_sweep(), "NMSE (dB) at")
    assert [table.heading[1:3] for table in tables] == [("T 8", "T 24")] * 2
    assert [table.lines[0][:3] for table in tables] == [("lmmse", "−3.0", "−7.0"), ("lmmse", "−13.0", "−17.0")]
    assert "at 20 dB SNR and pilots = 24" in _headline(_sweep())


def test_a_study_that_has_just_begun_has_tables_of_what_there_is() -> None:
    study, records = _ranking()
    assert study.tables(frame([])) == []
    assert study.headline(frame([])) == ""
    only = study.tables(frame(records[:1]))[0]
    assert only.lines == [("lmmse", "−4.7", "–", "–", "–", "–", "–", "–")]


def test_markdown_has_as_many_cells_in_every_line(tmp_path: Path) -> None:
    read = read_study(_stored(_ranking(), tmp_path), STUDIES)
    text = markdown(read.study, read.frame)
    for block in text.split("**")[2::2]:
        widths = {line.count("|") for line in block.splitlines() if line.startswith("|")}
        assert len(widths) == 1


def test_times_have_two_digits_or_more() -> None:
    assert [milliseconds(value) for value in (None, 0.0312, 1.26, 184.2)] == ["–", "0.031", "1.3", "184"]


class _Page(HTMLParser):
    """Collects what a page refers to and checks that tags are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.references += [value or "" for key, value in attrs if key in ("src", "href", "srcset", "action", "data")]
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("kind", ["snr", "bare", "sweep"])
def test_the_page_is_whole_and_needs_nothing_from_elsewhere(kind: str, tmp_path: Path) -> None:
    made = {"snr": _ranking, "bare": lambda: _ranking(bounds=False, diverged="omp"), "sweep": _sweep}[kind]()
    page = write_page(_stored(made, tmp_path), STUDIES)
    names = {path.name for path in tmp_path.iterdir()}
    figures = {f"nmse_vs_{made[0].sweep}.png", "accuracy_vs_latency.png"}
    assert names == {"study.json", "rows.jsonl", "rows.csv", "table.md", "report.html", *figures}
    text = page.read_text(encoding="utf-8")
    parsed = _Page()
    parsed.feed(text)
    assert parsed.open == []
    assert len(parsed.references) == 2
    assert all(value.startswith("data:image/png;base64,iVBOR") for value in parsed.references)
    assert not parsed.tags & {"link", "iframe", "object"}
    assert not re.search(r"https?:|@import|url\((?!#)|\bfetch\(|\bimport\b|<script[^>]* src", text)
    assert 'name="viewport"' in text
    for path in tmp_path.glob("*.png"):
        assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_the_page_shows_everything_and_escapes_it(tmp_path: Path) -> None:
    study, records = _ranking()
    text = write_page(_stored((study, records), tmp_path), STUDIES).read_text(encoding="utf-8")
    assert "gmm is left out: no &lt;weights&gt;" in text
    assert "scenario.frontend.pilots" in text
    assert "commit 0123" in text
    assert text.index("most accurate") < text.index("<img")
    (every,) = [table for table in study.tables(frame(records)) if table.detail]
    assert len(every.lines) == len(Ranking(study, frame(records)).rows) == 15


def test_every_estimator_looks_different_without_colour() -> None:
    looks = [(look.marker, look.line) for look in LOOKS.values()]
    assert len(set(looks)) == len(looks)
    assert set(LOOKS) == set(chanest.estimator_names())
    ours = {"atom-lmmse", "gated-lmmse", "product-lmmse", "cluster-lmmse", "slot-lmmse", "delay-sbl", "universal"}
    assert {name for name, look in LOOKS.items() if look.strong} == ours


def test_labels_are_moved_apart_in_order_and_stay_inside() -> None:
    wanted = [-20.0, -19.9, -19.8, -10.0, -3.0, -2.9, -2.9]
    places = apart(wanted, 1.0, -20.5, -2.0)
    assert all(after - before >= 1.0 - 1e-9 for before, after in pairwise(places))
    assert places[0] >= -20.5
    assert places[-1] <= -2.0
    assert places[3] == -10.0
    assert apart([1.0, 5.0], 1.0, 0.0, 9.0) == [1.0, 5.0]


def test_the_page_of_a_folder_shows_the_studies_in_its_subfolders(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(RECORDED / "cdl_c_upa64x4", run)
    for kind, place in (
        ("coverage", "calibration"),
        ("link", "link"),
        ("novelty", "novelty/frames"),
        ("tracking",) * 2,
    ):
        shutil.copytree(RECORDED / place, run / kind)
    page = write_page(run, STUDIES).read_text(encoding="utf-8")
    titles = ["what intervals cover", "block errors of a link", "channels that are new", "snapshots over time"]
    places = [page.index(f"{title}</h2>") for title in titles]
    assert places == sorted(places)
    assert len(re.findall("data:image/png", page)) == 6
    assert "one BS antenna blocked" in page
    assert "gated-lmmse, tracked" in page


def test_a_folder_without_a_study_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no finished cells of a study"):
        write_page(tmp_path, STUDIES)


def test_what_estimators_pass_is_called_a_reference_and_what_they_do_not_a_bound() -> None:
    read = read_study(RECORDED / "cdl_c_upa64x4", STUDIES)
    rows = read.frame[read.frame["kind"] != "cost"]
    levels = rows.pivot_table(index=["kind", "name"], columns="snr_db", values="nmse_db")
    best = levels.loc["estimator"].min()
    words = {
        str(name): "reference" if (best < level).any() else "bound" for name, level in levels.loc["bound"].iterrows()
    }
    assert words == {name: REGISTERED[name].word() for name in words}
    assert words["oracle-support"] == words["genie-ensemble"] == "reference"
    shown = [line[0] for line in read.study.tables(read.frame)[0].lines[-len(words) :]]
    assert sorted(shown) == sorted(f"{REGISTERED[name].label} ({word})" for name, word in words.items())
