"""The plan of a link, its rates and their intervals, and runs that go on where they stopped."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import chanest
from chanest.link import LinkPlan, LinkResults, LinkRow, run_link, usable_receivers
from chanest.link.plan import ErrVar
from chanest.link.report import headline, tables
from chanest.link.results import crossing, rates, wilson
from chanest.scenario import Scenario

TINY = "[bs]\nrows = 4\ncolumns = 2\nyaw_spread = 60.0\n[ue]\nrows = 2\ncolumns = 1\n[frontend]\nframes = 6\n"


@pytest.fixture
def tiny(tmp_path: Path) -> Scenario:
    (tmp_path / "tiny.toml").write_text(TINY)
    return chanest.load_scenario(str(tmp_path / "tiny.toml"))


def _plan(scenario: Scenario, *receivers: str, **settings: object) -> LinkPlan:
    small = {"snr_db": (0.0, 10.0), "blocks": 12, "validation": 8, "data_symbols": 6, "subcarriers": 4, **settings}
    return LinkPlan(scenario, receivers, **small)  # type: ignore[arg-type]


def test_a_block_counts_its_training() -> None:
    plan = LinkPlan(chanest.load_scenario("cdl_c_upa64x4"), ("ls",))
    assert (plan.coded_bits, plan.information_bits, plan.resource_elements) == (384, 192, 96)
    assert plan.peak_efficiency == 2.0
    assert LinkPlan.from_json(plan.to_json()) == plan


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
def test_a_plan_that_cannot_be_run_is_one_sentence(scenario: str, settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LinkPlan(chanest.load_scenario(scenario), ("ls",), **settings)  # type: ignore[arg-type]


def test_receivers_without_weights_or_of_no_known_name_are_refused_before_anything_runs(tiny: Scenario) -> None:
    with pytest.raises(ValueError, match="a-dlista\\+ has no weights for tiny; train them with"):
        run_link(_plan(tiny, "a-dlista+"), "never")
    with pytest.raises(ValueError, match="unknown receiver 'mmse'; known are ls, lmmse"):
        run_link(_plan(tiny, "mmse"), "never")
    assert not Path("never").exists()
    usable, notes = usable_receivers(tiny)
    assert {"ls", "omp", "sionna-ls", "sionna-lmmse", "perfect", "genie-angles"} <= set(usable)
    assert any(note.startswith("lmmse is left out") for note in notes)


def test_rates_count_blocks_and_bits() -> None:
    found = rates([0, 0, 5, 15], 100, 2.0)
    assert found["bler"] == 0.5
    assert found["ber"] == pytest.approx(0.05)
    assert found["efficiency"] == 1.0
    assert found["bler_low"] < 0.5 < found["bler_high"]
    assert found["ber_low"] == 0.0 < 0.05 < found["ber_high"] < 0.15
    assert found["efficiency_low"] == pytest.approx(2 * (1 - found["bler_high"]))


def test_wilsons_interval_is_the_textbooks_one() -> None:
    assert wilson(0.1, 1000) == pytest.approx((0.0829, 0.1201), abs=1e-4)
    low, high = wilson(0.0, 100)
    assert low == pytest.approx(0.0, abs=1e-12)
    assert high == pytest.approx(0.037, abs=1e-3)


def test_the_needed_snr_is_where_the_logarithm_falls_through_the_target() -> None:
    assert crossing([0, 2, 4], [1.0, 1.0, 0.01]) == pytest.approx(3.0)
    assert crossing([0, 4], [0.4, 0.025]) == pytest.approx(2.0)
    assert crossing([0, 4], [0.4, 0.2]) is None
    assert crossing([0, 4], [0.05, 0.01]) is None
    assert crossing([0, 2, 4, 6], [0.3, 0.1, 0.2, 0.05]) == pytest.approx(5.0)
    assert crossing([0, 2], [1.0, 0.0]) == pytest.approx(2 / 3)


def _row(name: str, snr: float, bler: float, err_var: ErrVar = "estimated") -> LinkRow:
    low, high = wilson(bler, 1000)
    return LinkRow(name, err_var, snr, 1000, bler, low, high, bler / 4, 0.0, 1.0, 1 - bler, 1 - high, 1 - low, -10.0)


def test_the_table_ranks_by_needed_snr_and_keeps_bounds_apart() -> None:
    names = ("ls", "a-dlista+", "perfect", "genie-angles")
    plan = LinkPlan(chanest.load_scenario("cdl_c_upa64x4"), names, snr_db=(10.0, 0.0), err_var=("estimated", "zero"))
    rates_at_10 = {"ls": 0.05, "a-dlista+": 0.02, "perfect": 0.01, "genie-angles": 0.018}
    rows = [_row(name, snr, 1.0 if snr == 0 else rates_at_10[name]) for snr in (10.0, 0.0) for name in names]
    rows += [_row(name, snr, 1.0 if snr == 0 else 0.06, "zero") for snr in (10.0, 0.0) for name in names]
    results = LinkResults(plan, tuple(rows), {})
    needed = tables(results)[0]
    assert [line[0] for line in needed.lines[:2]] == ["a-dlista+", "ls"]
    assert needed.bounds == 2
    assert [line[0] for line in needed.lines[2:]] == ["perfect CSI (bound)", "genie (b): angles known (bound)"]
    assert needed.lines[0][3] == "+0.15"
    assert needed.heading[-2:] == ("0", "10")
    assert headline(results).startswith("a-dlista+ needs the least SNR for 10% block errors")
    worth = {line[0]: line[1:] for line in tables(results)[-1].lines}
    assert worth["ls"][:2] == ("1050", "1060")
    assert "perfect CSI" not in worth


def test_a_run_is_stored_continued_and_grows(tiny: Scenario, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = run_link(_plan(tiny, "ls", err_var=("estimated", "zero")), folder)
    assert [(row.snr_db, row.err_var) for row in first.rows] == [
        (0.0, "estimated"), (0.0, "zero"), (10.0, "estimated"), (10.0, "zero"),
    ]  # fmt: skip
    assert LinkResults.read(folder) == first
    done: list[str] = []
    more = _plan(tiny, "ls", "sionna-ls", "perfect", err_var=("estimated", "zero"))
    second = run_link(more, folder, progress=lambda _, __, words: done.append(words))
    assert done == ["", "sionna-ls.snr_0", "perfect.snr_0", "sionna-ls.snr_10", "perfect.snr_10"]
    assert second.curve("ls") == first.curve("ls")
    for ours, theirs in zip(second.curve("ls"), second.curve("sionna-ls"), strict=True):
        assert ours.channel_nmse_db == pytest.approx(theirs.channel_nmse_db, abs=1e-3)
    assert sum(row.bler for row in second.curve("perfect")) <= sum(row.bler for row in second.curve("ls"))
    with pytest.raises(ValueError, match="holds a run of other blocks"):
        run_link(_plan(tiny, "ls", blocks=13), folder)
    (folder / "results.json").unlink()
    with pytest.raises(ValueError, match="holds no finished run of a link"):
        LinkResults.read(folder)


def test_sionna_is_imported_only_when_blocks_are_sent() -> None:
    code = "import sys, chanest, chanest.link, chanest.cli; sys.exit('sionna' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0
