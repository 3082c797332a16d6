"""The bench: every source with its gap and the lead or loss of ours; weights lent to equal arrays only; no channel twice."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import chanest
from chanest.problem import ChannelProblem
from chanest.studies import STUDIES
from chanest.studies.bench import SCENARIOS, BenchStudy, best_bound
from chanest.studies.standing import Standing
from vlista_core.study import Provenance, Record, Row, frame, read_study, run_study
from vlista_core.study.page import write_page

CDL, STREET = "cdl_c_upa64x4", "rt_canyon_upa64x4"
LEVELS = {
    (CDL, "sbl"): (-4.0, -9.5),
    (CDL, "nomp"): (-2.9, -7.0),
    (CDL, "gated-lmmse"): (-6.0, -12.0),
    (CDL, "universal"): (-5.0, -10.5),
    (CDL, "genie-angles"): (-7.0, -12.5),
    (STREET, "sbl"): (-9.0, -16.0),
    (STREET, "nomp"): (-8.0, -18.0),
    (STREET, "gated-lmmse"): (-3.0, -6.0),
    (STREET, "universal"): (-8.5, -17.0),
}
"""NMSE at 0 and 10 dB; nobody is told a bound of the street, and gated-lmmse has weights of CDL-C there."""


def _toy(changes: dict[tuple[str, str], tuple[float | None, float]] | None = None) -> tuple[BenchStudy, list[Record]]:
    scenarios = tuple(chanest.load_scenario(name) for name in (CDL, STREET))
    estimators = ("sbl", "nomp", "gated-lmmse", "universal")
    study = BenchStudy(scenarios=scenarios, estimators=estimators, snr_db=(0.0, 10.0), channels=100)
    records = []
    for (scenario, name), levels in {**LEVELS, **(changes or {})}.items():
        for snr, level in zip(study.snr_db, levels, strict=True):
            lent = CDL if (scenario, name) == (STREET, "gated-lmmse") else None
            kind = "bound" if name.startswith("genie") else "estimator"
            cell = {"kind": kind, "name": name, "value": snr, "snr_db": snr, "scenario": scenario, "channels": 100}
            row: Row = {"nmse_db": level, "nmse_low_db": level, "nmse_high_db": level, "diverged": 2 * (level is None)}
            times: Row = {} if kind == "bound" else {"ms_in_passing": 4.0 + snr}
            made = {"cell": {**cell, "lent_by": lent}, "row": {**row, **times}, "provenance": Provenance(commit="0123")}
            records.append(Record.model_validate(made))
    return study, records


def test_every_line_has_the_gaps_the_lead_or_the_loss_and_the_bound() -> None:
    study, records = _toy()
    gaps, at_0, at_10, times, intervals = study.tables(frame(records))
    assert gaps.heading == ("scenario", "sbl", "nomp", "gated-lmmse", "universal", "lead of ours", "bound")
    assert gaps.lines[0] == (CDL, "+3.00", "+4.80", "+0.75", "+2.00", "+2.25", "genie-angles")
    assert gaps.lines[1] == (STREET, "–", "–", "– †", "–", "−0.25", "none")
    assert at_0.lines[0] == (CDL, "−4.0", "−2.9", "−6.0", "−5.0", "+2.00", "−7.0")
    assert at_0.lines[1] == (STREET, "−9.0", "−8.0", "−3.0 †", "−8.5", "−0.50", "–")
    assert at_10.lines[1] == (STREET, "−16.0", "−18.0", "−6.0 †", "−17.0", "−1.00", "–")
    assert times.lines[0] == (CDL, "4.0", "4.0", "4.0", "4.0")
    assert intervals.detail
    assert len(intervals.lines) == len(records)


def test_the_best_of_a_line_is_in_bold_wherever_the_table_is_shown() -> None:
    study, records = _toy()
    table = study.tables(frame(records))[2]
    assert table.marked == {(0, 3), (1, 2)}
    assert re.findall(r"\*\*(−.*?)\*\*", table.markdown()) == ["−12.0", "−18.0"]
    assert re.findall(r"<strong>(.*?)</strong>", table.html()) == ["−12.0", "−18.0"]
    assert table.lines[0][3] == "−12.0"


def test_the_headline_counts_leads_and_names_losses() -> None:
    study, records = _toy()
    said = study.headline(frame(records))
    assert said.startswith("gated-lmmse or universal leads on 1 of 2 scenarios, by 2.2 dB, mean over 0, 10 dB SNR.")
    assert said.endswith(f"Behind the best other estimator: {STREET} (0.2 dB).")
    assert f"†: with the weights of {CDL}." in study.explanation(frame(records))


def test_what_diverged_says_so_and_counts_for_no_lead() -> None:
    study, records = _toy({(CDL, "gated-lmmse"): (None, -12.0)})
    standing = Standing(study, frame(records))
    assert study.tables(frame(records))[1].lines[0][3] == "diverged (2)"
    assert standing.gap((CDL, None), "gated-lmmse") is None
    assert standing.best((CDL, None), None, ours=True) == "universal"
    assert standing.lead((CDL, None), 10.0) == pytest.approx(2.5)


def test_a_bench_that_has_just_begun_has_tables_and_a_picture_of_what_there_is(tmp_path: Path) -> None:
    study, records = _toy()
    for some in (records[:1], records):
        assert study.tables(frame(some))
        assert study.figures(frame(some), tmp_path)[0].path.read_bytes()[:4] == b"\x89PNG"
    assert study.tables(frame([])) == []
    assert study.figures(frame([]), tmp_path) == []


def test_the_shipped_list_has_every_source_and_a_bound_for_each() -> None:
    problems = [ChannelProblem(chanest.load_scenario(name)) for name in SCENARIOS]
    kinds = {problem.scenario.channel.kind for problem in problems}
    assert kinds >= {"cdl", "clusters", "scm", "umi", "uma", "rma", "inh", "rt"}
    assert all(problem.subcarriers == 1 and best_bound(problem) for problem in problems)


def test_a_source_with_fewer_channels_gets_no_more_and_it_is_said() -> None:
    street, cdl = (chanest.load_scenario(name) for name in (STREET, CDL))
    assert [each.source().different("test") for each in (street, cdl)] == [1000, None]
    study = BenchStudy(scenarios=(street, cdl), estimators=("ls",), channels=3000)
    counts = {cell["scenario"]: cell["channels"] for cell in study.cells()}
    assert counts == {STREET: 1000, CDL: 3000}
    assert study.left_out() == [f"{STREET} has 1,000 different test channels, and gets no more"]


def test_a_street_that_cannot_be_traced_is_left_out_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHANEST_CACHE", str(tmp_path))
    monkeypatch.setattr("chanest.channels.rt.can_trace", lambda: False)
    shipped = (Path(chanest.__file__).parents[1] / "scenarios" / f"{STREET}.toml").read_text(encoding="utf-8")
    (tmp_path / "elsewhere.toml").write_text(shipped.replace("28e9", "29e9"))
    scenarios = tuple(chanest.load_scenario(name) for name in (CDL, tmp_path / "elsewhere.toml"))
    study = BenchStudy(scenarios=scenarios, estimators=("ls", "omp"), snr_db=(0.0,))
    assert {cell["scenario"] for cell in study.cells()} == {CDL}
    assert len(study.left_out()) == 1
    assert study.left_out()[0].startswith("elsewhere is left out: 1000 test users of the scene")


def test_weights_are_lent_to_equal_arrays_without_their_own_and_left_out_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHANEST_WEIGHTS", str(tmp_path))
    names = (CDL, "rma_upa64x4", "clusters_dual_4x8")
    scenarios = tuple(chanest.load_scenario(name) for name in names)
    alone = BenchStudy(scenarios=scenarios, estimators=("ls", "gmm"), snr_db=(0.0,))
    assert [cell["scenario"] for cell in alone.cells() if cell["name"] == "gmm"] == [CDL]
    where = "gmm on rma_upa64x4, clusters_dual_4x8"
    assert alone.left_out() == [f"left out: {where} (why: chanest estimators SCENARIO)"]
    lent = alone.model_copy(update={"trained_on": scenarios[0]})
    found = {cell["scenario"]: cell["lent_by"] for cell in lent.cells() if cell["name"] == "gmm"}
    assert found == {CDL: None, "rma_upa64x4": CDL}
    assert [cell["lent_by"] for cell in lent.cells() if cell["name"] == "ls"] == [None] * 3
    assert len(lent.left_out()) == 1


def test_figures_are_those_of_the_accuracy_study_and_a_sweep_has_a_line_has_a_line_for_each_value(
    few_antennas: str, tmp_path: Path
) -> None:
    for name in ("tiny", "small"):
        (tmp_path / f"{name}.toml").write_text(
            few_antennas.replace("columns = 2", "columns = 3" if name == "small" else "columns = 2")
        )
    scenarios = tuple(chanest.load_scenario(tmp_path / f"{name}.toml") for name in ("tiny", "small"))
    study = BenchStudy(
        scenarios=scenarios, estimators=("ls", "omp"), snr_db=(10.0,), channels=16, sweep="pilots", values=(4, 9)
    )
    result = run_study(study, tmp_path / "run")
    assert not result.faults
    alone = study.part(scenarios[1]).model_copy(update={"estimators": ("omp",)})
    rows = run_study(alone, tmp_path / "alone").records
    expected = {record.cell["value"]: record.row["nmse_db"] for record in rows if record.cell["kind"] == "estimator"}
    standing = Standing(study, result.frame)
    for value in (4, 9):
        assert standing.level(("small", value), "omp", 10.0) == pytest.approx(expected[value])
    lines = [line[0] for line in study.tables(result.frame)[0].lines]
    assert lines == ["tiny, T = 4", "tiny, T = 9", "small, T = 4", "small, T = 9"]
    write_page(tmp_path / "run", STUDIES)
    assert read_study(tmp_path / "run", STUDIES).study == study


def test_a_bench_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    one = chanest.load_scenario(CDL)
    for changes, message in (
        ({"scenarios": (one, one)}, f"scenarios must be one or more, each once, got {CDL}, {CDL}"),
        ({"estimators": ()}, "estimators must be one or more, each once, got none"),
        ({"estimators": ("lsd",)}, "unknown estimator 'lsd'"),
        ({"channels": 0}, "channels must be an integer of at least 1"),
        ({"sweep": "pilots"}, "no value of the sweep over pilots suits it"),
        (
            {"scenarios": (chanest.load_scenario("rma_upa64x4"),), "estimators": ("lmmse",)},
            "nothing can run: lmmse has no weights",
        ),
    ):
        study = BenchStudy.model_validate({"scenarios": (one,), "estimators": ("ls",), **changes})
        with pytest.raises(ValueError, match=message):
            run_study(study, tmp_path / "run")
    assert not (tmp_path / "run").exists()
