"""Tables, figures and the page of an evaluation: order, gaps, message, labels apart, nothing fetched from elsewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

import chanest
from chanest.evaluation import Plan, Results, Row
from chanest.evaluation.results import new_manifest
from chanest.plotting import evaluation as figures
from chanest.report import html, markdown, write_report
from chanest.tables import gap_tables, headline, interval_table, main_tables
from vlista_core.plotting import apart
from vlista_core.tables import milliseconds

LEVELS = {"lmmse": (-4.7, -9.7, -14.8), "omp": (-5.0, -6.0, -8.0), "a-dlista+": (-6.6, -12.2, -18.1)}
BOUNDS = {"genie-angles": (-7.1, -12.6, -18.5), "genie-rays": (-8.0, -14.0, -20.0)}


def _row(kind: str, name: str, sweep: str, value: float, snr: float, level: float | None) -> Row:
    low, high = (None, None) if level is None else (level - 0.2, level + 0.2)
    cost = (2.0, 0.5, 100, 1000, "tiny<b>") if kind == "estimator" else (None, None, None, None, None)
    label = name if kind == "estimator" else f"bound {name}"
    return Row(kind, name, label, sweep, value, snr, 100, level, low, high, level, level, 0, 1.0, *cost)


def _results(*, bounds: bool = True, diverged: str = "") -> Results:
    scenario = chanest.load_scenario("cdl_c_upa64x4")
    plan = Plan(scenario, tuple(LEVELS), tuple(BOUNDS) if bounds else (), channels=100)
    rows = [
        _row(kind, name, "snr", snr, snr, None if name == diverged else levels[index])
        for index, snr in enumerate(plan.snr_db)
        for kind, group in (("estimator", LEVELS), ("bound", BOUNDS if bounds else {}))
        for name, levels in group.items()
    ]
    return Results(plan, tuple(rows), {**new_manifest(plan), "notes": ["gmm is left out: no <weights>"]})


def _sweep() -> Results:
    plan = Plan(
        chanest.load_scenario("cdl_c_upa64x4"), ("ls", "lmmse"), (), (0.0, 20.0), sweep="frames", values=(8, 24)
    )
    rows = [
        _row("estimator", name, "frames", value, snr, -snr / 2 - value / 4 - (name == "lmmse"))
        for value, snr in plan.points()
        for name in plan.estimators
    ]
    return Results(plan, tuple(rows), new_manifest(plan))


def test_estimators_come_best_first_at_the_middle_snr_then_the_bounds() -> None:
    (table,) = main_tables(_results())
    assert [line[0] for line in table.lines] == [
        "a-dlista+", "lmmse", "omp", "bound genie-rays (bound)", "bound genie-angles (bound)",
    ]  # fmt: skip
    assert table.bounds == 2
    assert table.heading[:4] == ("estimator", "0 dB", "10 dB", "20 dB")
    assert table.lines[0] == ("a-dlista+", "−6.6", "−12.2", "−18.1", "+0.43", "2.0", "0.500", "1,000")
    assert table.lines[-1][1:] == ("−7.1", "−12.6", "−18.5", "+0.00", "–", "–", "–")


def test_gaps_are_counted_from_the_genie_that_knows_the_angles() -> None:
    (table,) = gap_tables(_results())
    assert table.lines[0] == ("a-dlista+", "+0.50", "+0.40", "+0.40", "+0.43")
    assert gap_tables(_results(bounds=False)) == []
    (without,) = main_tables(_results(bounds=False))
    assert without.lines[0][4] == "–"


def test_the_headline_names_the_best_its_gap_and_its_cost() -> None:
    said = headline(_results())
    assert said.startswith("a-dlista+ is the most accurate: −12.2 dB NMSE at 10 dB SNR, 0.4 dB above the bound")
    assert "in 0.500 ms a channel. Next is lmmse with −9.7 dB" in said
    assert "bound" not in headline(_results(bounds=False))
    assert headline(_results(diverged="a-dlista+")).startswith("lmmse is the most accurate")


def test_what_diverged_is_last_and_has_a_dash() -> None:
    results = _results(diverged="a-dlista+")
    (table,) = main_tables(results)
    assert table.lines[2] == ("a-dlista+", "–", "–", "–", "–", "2.0", "0.500", "1,000")


def test_a_sweep_has_a_table_for_each_snr() -> None:
    tables = main_tables(_sweep())
    assert [table.heading[1:3] for table in tables] == [("T 8", "T 24")] * 2
    assert [table.lines[0][:3] for table in tables] == [("lmmse", "−3.0", "−7.0"), ("lmmse", "−13.0", "−17.0")]
    assert "at 20 dB SNR and frames = 24" in headline(_sweep())


def test_markdown_has_as_many_cells_in_every_line() -> None:
    for block in markdown(_results()).split("**")[2::2]:
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
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize(
    "results", [_results(), _results(bounds=False, diverged="omp"), _sweep()], ids=["snr", "bare", "sweep"]
)
def test_the_page_is_whole_and_needs_nothing_from_elsewhere(results: Results, tmp_path: Path) -> None:
    page = write_report(results, tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"table.md", f"nmse_vs_{results.plan.sweep}.png", "accuracy_vs_latency.png", "report.html"}
    text = page.read_text(encoding="utf-8")
    parsed = _Page()
    parsed.feed(text)
    assert parsed.open == []
    assert len(parsed.references) == 2
    assert all(value.startswith("data:image/png;base64,iVBOR") for value in parsed.references)
    assert not parsed.tags & {"script", "link", "iframe", "object"}
    assert not re.search(r"https?:|@import|url\(", text)
    assert 'name="viewport"' in text
    for path in tmp_path.glob("*.png"):
        assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_the_page_shows_everything_and_escapes_it(tmp_path: Path) -> None:
    results = _results()
    image = tmp_path / "x.png"
    image.write_bytes(b"")
    text = html(results, {"A <figure>": image})
    assert "gmm is left out: no &lt;weights&gt;" in text
    assert "A &lt;figure&gt;" in text
    assert "scenario.frontend.frames" in text
    assert results.plan.hash() in text
    assert text.index("most accurate") < text.index("<img")
    assert len(interval_table(results).lines) == len(results.rows)


def test_every_estimator_looks_different_without_colour() -> None:
    looks = [(look.marker, look.line) for look in figures._LOOKS.values()]
    assert len(set(looks)) == len(looks)
    assert set(figures._LOOKS) == set(chanest.estimator_names())
    assert {name for name, look in figures._LOOKS.items() if look.strong} == {"a-dlista", "a-dlista+"}


def test_labels_are_moved_apart_in_order_and_stay_inside() -> None:
    wanted = [-20.0, -19.9, -19.8, -10.0, -3.0, -2.9, -2.9]
    places = apart(wanted, 1.0, -20.5, -2.0)
    assert all(after - before >= 1.0 - 1e-9 for before, after in pairwise(places))
    assert places[0] >= -20.5
    assert places[-1] <= -2.0
    assert places[3] == -10.0
    assert apart([1.0, 5.0], 1.0, 0.0, 9.0) == [1.0, 5.0]
