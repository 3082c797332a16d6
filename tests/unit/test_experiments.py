"""The framework of the experiments: cells, store, runner, selection, tables, published figures; every experiment's contract."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from vlista_core import experiments
from vlista_core.data.synthetic import SyntheticProblem
from vlista_core.experiments import Cell, Context, Experiment, cell_id, experiment_names, get_experiment
from vlista_core.experiments.base import IDENTITY
from vlista_core.experiments.cli import describe
from vlista_core.experiments.curves import LOOKS
from vlista_core.experiments.grid import TableExperiment
from vlista_core.experiments.published import compared, printed, printed_latency, printed_parameters
from vlista_core.experiments.report import write_report
from vlista_core.experiments.runner import Finished, pending, run_cells
from vlista_core.experiments.selection import integers, select_cells
from vlista_core.experiments.store import Store, read_cells
from vlista_core.experiments.synthetic import measure
from vlista_core.jobs import run_in_processes
from vlista_core.solvers import FISTA
from vlista_core.tables import Table
from vlista_core.tensorfile import Json


class Toy(TableExperiment):
    """A small table under the name of one that the paper has."""

    name, summary, title = "mnist", "A toy.", "Toy"
    models = ("lista", "a-dlista", "a-dlista-adaptive")
    measurements = (10, 100)
    first = (100, 10)
    repeats = {100: 2}  # noqa: RUF012

    def run(self, cell: Cell, context: Context) -> dict[str, Json]:
        if cell["model"] == "lista" and cell["measurements"] == 10:
            raise ValueError("no such\nthing")
        context.report(0.5, "half")
        return {"ssim": 0.5 + 0.02 * int(str(cell["seed"])), "ssim_error": 0.001, "test_samples": 1000,
                "threads": torch.get_num_threads(), "train_seconds": 12.0, "history": [1, 2]}  # fmt: skip


class Timed(Experiment):
    """Cells that measure time."""

    name, summary, figure, timed = "timed", "A clock.", "ms", True

    def cells(self) -> list[Cell]:
        return [{"experiment": "timed", "model": "x", "measurements": 1, "seed": 0, "noise_db": None}]

    def run(self, cell: Cell, context: Context) -> dict[str, Json]:
        return {"ms": 1.0, "test_samples": 1, "threads": torch.get_num_threads()}

    def tables(self, done: list[dict[str, Json]]) -> list[Table]:
        return []


class Faulty(Timed):
    """Results that cannot be kept."""

    name = "faulty"

    def cells(self) -> list[Cell]:
        return [
            {"experiment": "faulty", "model": name, "measurements": 1, "seed": 0} for name in ("nan", "bare", "key")
        ]

    def run(self, cell: Cell, context: Context) -> dict[str, Json]:
        if cell["model"] == "key":
            raise KeyError("gone")
        return {"ms": float("nan"), "test_samples": 1} if cell["model"] == "nan" else {"test_samples": 1}


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The toys alone are registered."""
    places = {"mnist": f"{__name__}:Toy", "timed": f"{__name__}:Timed", "faulty": f"{__name__}:Faulty"}
    known = experiments.EXPERIMENTS.copy()
    for name in known:
        monkeypatch.delitem(experiments.EXPERIMENTS, name)
    for name, place in places.items():
        monkeypatch.setitem(experiments.EXPERIMENTS, name, place)
    return places


def _run(name: str, folder: Path, **options: float) -> list[Finished]:
    store = Store(folder)
    return list(run_cells(pending(get_experiment(name).cells(), store, lambda _: None), store, **options))


def test_cells_run_once_and_one_that_fails_does_not_stop_the_others(registry: dict[str, str], tmp_path: Path) -> None:
    first = _run("mnist", tmp_path)
    assert [cell_id(each.cell) for each in first][:4] == [
        "mnist.lista.m100.s0", "mnist.a-dlista.m100.s0", "mnist.a-dlista-adaptive.m100.s0", "mnist.lista.m10.s0",
    ]  # fmt: skip
    assert [each.fault for each in first if each.fault] == ["no such thing"]
    again = _run("mnist", tmp_path)
    assert [cell_id(each.cell) for each in again] == ["mnist.lista.m10.s0"]
    done = read_cells(tmp_path)
    assert len(done) == 8
    assert all({*IDENTITY, "ssim", "test_samples", "seconds"} <= set(cell) for cell in done)
    assert not list(tmp_path.rglob("*.partial*"))
    with (tmp_path / "cells.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8
    assert "history" not in rows[0]
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert len(manifest["runs"]) == 1
    assert set(manifest["runs"][0]["versions"]) >= {"vlista", "torch", "numpy", "python"}
    assert str(tmp_path) not in json.dumps(manifest)


def test_a_cell_that_was_cut_off_is_run_again_with_a_word(registry: dict[str, str], tmp_path: Path) -> None:
    _run("mnist", tmp_path)
    store, cells = Store(tmp_path), get_experiment("mnist").cells()
    path = store.path(cells[0])
    path.write_text(path.read_text()[:40])
    (tmp_path / "cells" / f".{path.stem}.1.2.partial.json").write_text(store.path(cells[1]).read_text())
    assert len(read_cells(tmp_path)) == 7
    said: list[str] = []
    assert pending(cells, store, said.append)[0] == cells[0]
    assert said == ["mnist.lista.m100.s0 was cut off while it was written, or changed since: it is run again"]
    _run("mnist", tmp_path)
    assert len(read_cells(tmp_path)) == 8


def test_cells_have_one_thread_and_timings_have_all(registry: dict[str, str], tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        finished = [*_run("mnist", tmp_path), *_run("timed", tmp_path)]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    threads = {each.cell["experiment"]: each.result["threads"] for each in finished if each.result}
    assert threads == {"mnist": 1, "timed": 2}


def test_results_that_cannot_be_kept_are_faults(registry: dict[str, str], tmp_path: Path) -> None:
    nan, bare, key = _run("faulty", tmp_path)
    assert "not JSON compliant" in str(nan.fault)
    assert bare.fault == "its result has no ms"
    assert key.fault == "KeyError: 'gone'"
    assert read_cells(tmp_path) == []


def test_no_cell_starts_once_the_hours_have_passed(registry: dict[str, str], tmp_path: Path) -> None:
    assert _run("mnist", tmp_path, hours=1e-12) == []
    with pytest.raises(ValueError, match="hours must be positive, got 0"):
        _run("mnist", tmp_path, hours=0)


def test_jobs_are_taken_only_as_there_is_room_for_them() -> None:
    """So that a deadline is kept in processes too."""
    taken: list[int] = []

    def jobs() -> Iterator[int]:
        for job in (-1, -2, -3, -4):
            taken.append(job)
            yield job

    found = []
    for job, result in run_in_processes(abs, jobs(), 1):
        assert len(taken) <= len(found) + 2
        found.append((job, result))
    assert found == [(-1, 1), (-2, 2), (-3, 3), (-4, 4)]


def test_a_restart_forgets_results_and_weights(registry: dict[str, str], tmp_path: Path) -> None:
    _run("mnist", tmp_path)
    store, cells = Store(tmp_path), get_experiment("mnist").cells()[:1]
    kept = store.weights / f"{cell_id(cells[0])}.resume.safetensors"
    kept.write_text("")
    with pytest.raises(ValueError, match="workers"):
        list(run_cells(cells, store, restart=True, workers=0))
    assert kept.exists()
    assert len(list(run_cells(cells, store, restart=True))) == 1
    assert not kept.exists()


def test_what_is_chosen_exists_or_is_refused_in_one_sentence(registry: dict[str, str]) -> None:
    assert len(select_cells("all")) == 9 + 1 + 3
    assert select_cells("all")[0]["experiment"] == "mnist"
    assert [cell["experiment"] for cell in select_cells("all")[:3]] == ["mnist", "timed", "faulty"]
    chosen = select_cells("mnist", models=["lista"], measurements=[100], seeds=[1])
    assert [cell_id(cell) for cell in chosen] == ["mnist.lista.m100.s1"]
    for options, message in (
        ({"models": ["listo"]}, "mnist has no cells with model listo; allowed are lista, a-dlista, a-dlista-adaptive"),
        ({"measurements": [7]}, "mnist has no cells with measurements 7; allowed are 100, 10"),
        ({"seeds": [5]}, "mnist has no cells with seed 5; allowed are 0, 1"),
    ):
        with pytest.raises(ValueError, match=message):
            select_cells("mnist", **options)
    with pytest.raises(ValueError, match="unknown experiment 'mnits'; known are mnist, timed, faulty"):
        select_cells("mnits")
    with pytest.raises(ValueError, match="measurements must be integers with commas between"):
        integers("measurements", "1,x")


def test_a_table_shows_ours_the_papers_and_the_difference(registry: dict[str, str], tmp_path: Path) -> None:
    _run("mnist", tmp_path)
    overview, ten, hundred = get_experiment("mnist").tables(read_cells(tmp_path))
    assert overview.lines[0] == ("lista", "– (0.111)", "0.510 (0.370)")
    assert overview.lines[2][2] == "0.510 (0.479†)"
    assert "† printed for a-dlista" in overview.title
    assert ten.lines[0] == ("lista", "–", "0.111 ± 0.001", "–", "0 of 1", "–", "–", "–")
    assert hundred.lines[2] == (
        "a-dlista-adaptive", "0.510 ± 0.001", "0.479 ± 0.001†", "+0.031", "2 of 2", "0.500 … 0.520", "1,000", "12",
    )  # fmt: skip


def test_the_report_needs_finished_cells(registry: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no finished cells"):
        write_report(tmp_path)


def test_published_figures_are_found_by_the_names_of_the_experiments() -> None:
    assert printed("mnist", "a-dlista", 100) == (0.479, 0.001)
    assert printed("cifar10-fixed", "nalista", 500) == (0.688, 0.001)
    assert printed("mnist", "a-dlista-adaptive", 100) is None
    assert compared("mnist", "a-dlista-adaptive", 100) == (0.479, 0.001)
    assert printed("mnist", "lista", 7) is None
    assert printed("synthetic", "lista", 100) is None
    assert printed_latency("ista", 500) == 1550.0
    assert printed_parameters("nalista") == 0.333


def test_a_finished_cell_is_told_in_one_line(registry: dict[str, str]) -> None:
    cell: Cell = {"experiment": "mnist", "model": "a-dlista-adaptive", "measurements": 100, "seed": 0}
    result: dict[str, Json] = {"ssim": 0.6642, "train_seconds": 199.6, "seconds_to_printed": 34.2, "seconds": 231.0}
    assert describe(cell, result) == (
        "mnist.a-dlista-adaptive.m100.s0: ssim 0.664 (paper 0.479), trained in 200 s, printed figure reached after 34 s, "
        "231 s in all"
    )
    assert "printed figure not reached" in describe(cell, {**result, "seconds_to_printed": None})


def test_quantiles_rise_and_the_median_is_the_figure() -> None:
    problem = SyntheticProblem(length=32, rows=20)
    result = measure(FISTA(iterations=30), problem, 0, 100)
    quantiles = result["quantiles_db"]
    assert isinstance(quantiles, dict)
    levels = [float(str(value)) for value in quantiles.values()]
    assert levels == sorted(levels)
    assert result["nmse_db"] == quantiles["50"]


@pytest.mark.parametrize("name", experiment_names())
def test_every_experiment_keeps_the_contract(name: str, tmp_path: Path) -> None:
    experiment = get_experiment(name)
    cells = experiment.cells()
    assert experiment.name == name
    assert experiment.summary.endswith(".")
    assert len({cell_id(cell) for cell in cells}) == len(cells) > 0
    for cell in cells:
        assert cell["experiment"] == name
        assert isinstance(cell["model"], str)
        assert isinstance(cell["measurements"], int)
        assert isinstance(cell["seed"], int)
        assert json.loads(json.dumps(cell)) == cell
    tables = experiment.tables([])
    assert all(len(line) == len(table.heading) for table in tables for line in table.lines)
    assert any("–" in cell for table in tables for line in table.lines for cell in line)
    assert experiment.figures([], tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_every_model_looks_different_without_colour() -> None:
    looks = [(look.marker, look.line) for look in LOOKS.values()]
    assert len(set(looks)) == len(looks)
