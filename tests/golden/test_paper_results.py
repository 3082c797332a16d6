"""The committed results of the paper's experiments: what the README and the notes claim of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vlista_core.experiments import EXPERIMENTS
from vlista_core.experiments.experiment import STRUCK, compared
from vlista_core.study import Cell, read_study, study_class

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "results" / "paper"
TABLES = ("mnist", "cifar10", "mnist-fixed", "cifar10-fixed")
LEARNED = ("lista", "alista-12", "nalista-12", "dlista", "a-dlista", "a-dlista-adaptive", "vlista-anchored")
DUE = ("lista", "dlista", "a-dlista", "vlista", "vlista-constant", "alista", "nalista")
"""Rows at full size that are still to be trained: these networks by the paper's recipe, ALISTA and NALISTA of three layers."""
AT_PAR = {("cifar10", 1)}
"""Where the adaptive A-DLISTA is as good as the linear MMSE estimate it starts from, and not better."""

READ = {folder.name: read_study(folder, EXPERIMENTS) for folder in sorted(FOLDER.iterdir()) if folder.is_dir()}
ROWS: dict[str, list[dict[str, Any]]] = {
    name: [{**record.cell, **record.row} for record in read.records] for name, read in READ.items()
}


def _found(experiment: str, model: str, measurements: int) -> list[dict[str, Any]]:
    """The seeds of one place of a table."""
    return [row for row in ROWS[experiment] if (row["model"], row["measurements"]) == (model, measurements)]


def _ssim(experiment: str, model: str, measurements: int) -> float:
    values = [row["ssim"] for row in _found(experiment, model, measurements)]
    return float(sum(values) / len(values))


@pytest.mark.parametrize("name", READ)
def test_every_row_is_of_the_experiment_as_it_is_now_and_none_is_missing(name: str) -> None:
    half = {"size": "half"} if name.endswith("-half") else {}
    read, now = READ[name], study_class(name.removesuffix("-half"), EXPERIMENTS).model_validate(half)
    assert read.study == now
    names = [read.study.cell_id(record.cell) for record in read.records]
    expected = [cell for cell in now.cells() if not _is_due(name, cell)]
    assert names == [now.cell_id(cell) for cell in expected]
    assert len((FOLDER / name / "rows.jsonl").read_text(encoding="utf-8").splitlines()) == len(names)


def _is_due(name: str, cell: Cell) -> bool:
    """Whether a row is still to be run: see DUE; at half size VLISTA, and the other numbers of measurements."""
    if name == "mnist-half":
        return str(cell["model"]).startswith("vlista") or cell["measurements"] != 25
    if name.endswith("-half"):
        return False
    three_layers = cell["model"] in ("alista", "nalista") and "phi" not in cell
    return cell["model"] in DUE and (cell.get("recipe") == "paper" or three_layers)


@pytest.mark.parametrize("name", [name for name in READ if name.endswith("-half")])
def test_rows_know_the_clean_commit_that_made_them(name: str) -> None:
    for record in READ[name].records:
        assert record.provenance.commit is not None
        assert record.provenance.dirty is False


@pytest.mark.parametrize("name", READ)
def test_the_committed_tables_are_those_of_the_rows(name: str) -> None:
    tables = READ[name].study.tables(READ[name].frame)
    assert (FOLDER / name / "table.md").read_text(encoding="utf-8") == "\n".join(table.markdown() for table in tables)


def test_tables_are_of_a_thousand_images_and_slow_solvers_of_a_few_hundred() -> None:
    slow = {"bcs": 200, "canonical": 300, "wavelet": 300, "spca": 300}
    for row in (row for table in TABLES for row in ROWS[table]):
        assert row["test_samples"] >= slow.get(row["model"], 1000)


def test_what_was_trained_says_its_budget() -> None:
    for name in (*TABLES, "synthetic"):
        trained = [row for row in ROWS[name] if "history" in row]
        assert {row["model"] for row in trained} >= {"lista", "a-dlista"}
        for row in trained:
            assert row["budget"]["samples"] == row["budget"]["steps"] * row["budget"]["batch_size"] > 0
            assert row["budget"]["seconds"] > 0


@pytest.mark.parametrize("table", TABLES)
def test_networks_are_at_or_above_the_printed_figure(table: str) -> None:
    for row in ROWS[table]:
        place = table, row["model"], row["measurements"]
        paper = compared(*place)
        if row["model"] in LEARNED and paper is not None and place not in STRUCK:
            assert row["ssim"] >= paper[0], place


@pytest.mark.parametrize("data", ["mnist", "cifar10"])
@pytest.mark.parametrize("measurements", [100, 300, 500])
def test_the_adaptive_one_leads_the_paper_s_rows(data: str, measurements: int) -> None:
    ours = _ssim(data, "a-dlista-adaptive", measurements)
    rows = {row["model"] for row in ROWS[data] if row["measurements"] == measurements}
    assert rows >= {"lista", "dlista", "vlista-anchored", "bcs"}
    for model in rows - {"a-dlista-adaptive", "lmmse"}:
        assert ours > _ssim(data, model, measurements), model


@pytest.mark.parametrize("data", ["mnist", "cifar10"])
@pytest.mark.parametrize("measurements", [1, 10, 100, 300, 500])
def test_vlista_is_ahead_of_bcs_and_the_adaptive_one_of_the_linear_estimate(data: str, measurements: int) -> None:
    assert _ssim(data, "vlista-anchored", measurements) > _ssim(data, "bcs", measurements)
    margin = 0.0002 if (data, measurements) in AT_PAR else 0.0
    assert _ssim(data, "a-dlista-adaptive", measurements) > _ssim(data, "lmmse", measurements) - margin


def test_memory_stays_small() -> None:
    peaks = [record.provenance.peak_gigabytes for read in READ.values() for record in read.records]
    known = [peak for peak in peaks if peak is not None]
    assert len(known) > 10
    assert max(known) < 6


def test_the_adaptive_one_trains_in_minutes() -> None:
    for data in ("mnist", "cifar10"):
        rows = _found(data, "a-dlista-adaptive", 100)
        assert len(rows) == 3
        for row in rows:
            assert row["budget"]["seconds"] <= 300
            assert row["seconds_to_printed"] <= 60
    assert _ssim("mnist", "a-dlista-adaptive", 100) >= 0.66


@pytest.mark.parametrize("phi", ["varying", "fixed"])
@pytest.mark.parametrize("measurements", [64, 96, 128, 160])
def test_the_adaptive_one_is_the_best_of_three_layers_on_synthetic_data(phi: str, measurements: int) -> None:
    here = [row for row in ROWS["synthetic"] if (row["measurements"], row["phi"]) == (measurements, phi)]
    medians = {row["model"]: row["nmse_db"] for row in here}
    assert {"lista", "dlista", "a-dlista", "vlista-anchored", "alista", "nalista"} < set(medians)
    ours = medians.pop("a-dlista-adaptive")
    assert all(ours < median for model, median in medians.items() if model not in ("ista", "fista", "bcs"))
