"""The study of a link: its blocks, rates and their intervals, and runs that go on where they stopped."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import chanest
from chanest.scenario import Scenario
from chanest.studies import STUDIES
from chanest.studies.block_errors import BlockErrors, crossing
from chanest.studies.link import LinkStudy, rates, usable_receivers
from vlista_core.study import Provenance, Record, Result, Row, frame, read_study, run_study
from vlista_core.study.measuring import wilson

TINY = "[bs]\nrows = 4\ncolumns = 2\nyaw_spread = 60.0\n[ue]\nrows = 2\ncolumns = 1\n[frontend]\npilots = 6\n"


@pytest.fixture
def tiny(tmp_path: Path) -> Scenario:
    (tmp_path / "tiny.toml").write_text(TINY)
    return chanest.load_scenario(str(tmp_path / "tiny.toml"))


def _study(scenario: Scenario, *receivers: str, **settings: object) -> LinkStudy:
    small = {"snr_db": (0.0, 10.0), "blocks": 12, "validation": 8, "data_symbols": 6, "subcarriers": 4, **settings}
    return LinkStudy.model_validate({"scenario": scenario, "receivers": receivers, **small})


def test_a_block_counts_its_training() -> None:
    study = LinkStudy(scenario=chanest.load_scenario("cdl_c_upa64x4"), receivers=("ls",))
    assert (study.coded_bits, study.information_bits, study.resource_elements) == (384, 192, 96)
    assert study.peak_efficiency == 2.0
    assert LinkStudy.model_validate_json(study.model_dump_json()) == study


@pytest.mark.parametrize(
    ("scenario", "settings", "message"),
    [
        ("cdl_c_upa64x4", {"modulation": "8psk"}, "modulation must be one of qpsk, 16qam, 64qam, 256qam, got '8psk'"),
        ("cdl_c_upa64x4", {"rate": 1.0}, "rate must be a code rate from 0.2 to 0.9, got 1.0"),
        ("cdl_c_upa64x4", {"streams": 5}, "streams must be at most 4"),
        ("hybrid_64x16", {"streams": 5}, "streams must be at most 4"),
        ("wideband_64x4", {}, "the link is for narrowband scenarios"),
        ("cdl_c_upa64x4", {"data_symbols": 10_000}, "12 to 8448 information bits"),
        ("cdl_c_upa64x4", {"subcarriers": 0}, "subcarriers must be an integer of at least 1"),
        ("cdl_c_upa64x4", {"snr_db": (float("nan"),)}, "snr_db must be one or more finite numbers"),
        ("cdl_c_upa64x4", {"snr_db": (1.0, 1.0)}, "snr_db must not name anything twice"),
        ("cdl_c_upa64x4", {"err_var": ()}, "err_var must name at least one"),
    ],
)
def test_a_study_that_cannot_be_run_is_one_sentence(scenario: str, settings: dict[str, object], message: str) -> None:
    made = {"scenario": chanest.load_scenario(scenario), "receivers": ("ls",), **settings}
    with pytest.raises(ValueError, match=message):
        LinkStudy.model_validate(made).cells()


def test_receivers_without_weights_or_of_no_known_name_are_refused_before_anything_runs(
    tiny: Scenario, tmp_path: Path
) -> None:
    never = tmp_path / "never"
    with pytest.raises(ValueError, match="gated-lmmse has no weights for tiny; train them with"):
        run_study(_study(tiny, "gated-lmmse"), never)
    with pytest.raises(ValueError, match="unknown receiver 'mmse'; known are ls, lmmse"):
        run_study(_study(tiny, "mmse"), never)
    assert not never.exists()
    usable, refused = usable_receivers(tiny)
    assert {"ls", "omp", "sionna-ls", "sionna-lmmse", "perfect", "genie-angles"} <= set(usable)
    assert refused["lmmse"].startswith("lmmse has no weights for tiny")


def test_rates_count_blocks_and_bits() -> None:
    found = {key: float(str(value)) for key, value in rates([0, 0, 5, 15], 100, 2.0).items()}
    assert found["bler"] == 0.5
    assert found["ber"] == pytest.approx(0.05)
    assert found["efficiency"] == 1.0
    assert found["bler_low"] < 0.5 < found["bler_high"]
    assert found["ber_low"] == 0.0 < 0.05 < found["ber_high"] < 0.15
    assert found["efficiency_low"] == pytest.approx(2 * (1 - found["bler_high"]))


def test_wilsons_interval_is_the_textbooks_one() -> None:
    assert wilson(100, 1000) == pytest.approx((0.0829, 0.1201), abs=1e-4)
    low, high = wilson(0, 100)
    assert low == pytest.approx(0.0, abs=1e-12)
    assert high == pytest.approx(0.037, abs=1e-3)


def test_the_needed_snr_is_where_the_logarithm_falls_through_the_target() -> None:
    assert crossing([0, 2, 4], [1.0, 1.0, 0.01]) == pytest.approx(3.0)
    assert crossing([0, 4], [0.4, 0.025]) == pytest.approx(2.0)
    assert crossing([0, 4], [0.4, 0.2]) is None
    assert crossing([0, 4], [0.05, 0.01]) is None
    assert crossing([0, 2, 4, 6], [0.3, 0.1, 0.2, 0.05]) == pytest.approx(5.0)
    assert crossing([0, 2], [1.0, 0.0]) == pytest.approx(2 / 3)


def _record(name: str, snr: float, bler: float, blind: float, diverged: int = 0) -> Record:
    def figures(rate: float) -> Row:
        low, high = wilson(round(1000 * rate), 1000)
        shares: Row = {"bler": rate, "bler_low": low, "bler_high": high, "ber": rate / 4, "efficiency": 1 - rate}
        return shares

    row = {
        "channel_nmse_db": None if diverged else -10.0,
        "diverged": diverged,
        "estimated": figures(bler),
        "zero": figures(blind),
    }
    cell = {"name": name, "snr_db": snr}
    return Record.model_validate({"cell": cell, "row": row, "provenance": Provenance()})


def test_the_table_ranks_by_needed_snr_and_keeps_bounds_apart() -> None:
    names = ("ls", "gated-lmmse", "perfect", "genie-angles")
    study = LinkStudy(
        scenario=chanest.load_scenario("cdl_c_upa64x4"), receivers=names, snr_db=(10.0, 0.0),
        err_var=("estimated", "zero"),
    )  # fmt: skip
    at_10 = {"ls": 0.05, "gated-lmmse": 0.02, "perfect": 0.01, "genie-angles": 0.018}
    rows = [_record(name, 10.0, at_10[name], 0.06) for name in names] + [_record(name, 0.0, 1.0, 1.0) for name in names]
    needed, *_, worth = study.tables(frame(rows))
    assert [line[0] for line in needed.lines[:2]] == ["gated-lmmse", "ls"]
    assert needed.bounds == 2
    assert [line[0] for line in needed.lines[2:]] == ["perfect CSI (bound)", "genie (b): angles known (bound)"]
    assert needed.lines[0][3] == "+0.15"
    assert needed.heading[-2:] == ("0", "10")
    assert study.headline(frame(rows)).startswith("gated-lmmse needs the least SNR for 10% block errors")
    lost = {line[0]: line[1:] for line in worth.lines}
    assert lost["ls"][:2] == ("1050", "1060")
    assert "perfect CSI" not in lost


def test_a_receiver_whose_estimates_diverged_says_so_in_place_of_an_nmse() -> None:
    study = LinkStudy(scenario=chanest.load_scenario("cdl_c_upa64x4"), receivers=("ls", "omp"), snr_db=(10.0,))
    rows = frame([_record("ls", 10.0, 0.05, 0.06), _record("omp", 10.0, 0.5, 0.6, diverged=7)])
    needed = study.tables(rows)[0]
    assert {line[0]: line[4] for line in needed.lines} == {"ls": "−10.0", "omp": "diverged (7)"}
    older = study.tables(rows.drop(columns="diverged"))[0]
    assert {line[0]: line[4] for line in older.lines} == {"ls": "−10.0", "omp": "–"}


def _curve(result: Result, name: str, column: str) -> list[float]:
    assert isinstance(result.study, LinkStudy)
    return BlockErrors(result.study, result.frame).curve(name, "estimated", column)


def test_a_run_is_stored_continued_and_grows(tiny: Scenario, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = run_study(_study(tiny, "ls", err_var=("estimated", "zero")), folder)
    assert [(record.cell["snr_db"], "zero" in record.row) for record in first.records] == [(0.0, True), (10.0, True)]
    assert tuple(read_study(folder, STUDIES).records) == first.records
    done: list[str] = []
    more = _study(tiny, "ls", "sionna-ls", "perfect", err_var=("estimated", "zero"))
    second = run_study(more, folder, ended=lambda each: done.append(each.name))
    assert done == ["sionna-ls.snr_0", "perfect.snr_0", "sionna-ls.snr_10", "perfect.snr_10"]
    assert _curve(second, "ls", "ber") == _curve(first, "ls", "ber")
    theirs = _curve(second, "sionna-ls", "channel_nmse_db")
    assert _curve(second, "ls", "channel_nmse_db") == pytest.approx(theirs, abs=1e-3)
    assert sum(_curve(second, "perfect", "bler")) <= sum(_curve(second, "ls", "bler"))
    with pytest.raises(ValueError, match="holds another link study, with other blocks"):
        run_study(_study(tiny, "ls", blocks=13, err_var=("estimated", "zero")), folder)


def test_sionna_is_imported_only_when_blocks_are_sent() -> None:
    code = "import sys, chanest.link, chanest.cli, chanest.studies.link; sys.exit('sionna' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0
