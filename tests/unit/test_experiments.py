"""The paper's experiments: the contract of each, the table beside the paper's, which cells are chosen, one line per cell."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pandas as pd
import pytest
import torch
from study_kill import kill_often
from torch import Tensor

from vlista_core.data.synthetic import SyntheticProblem
from vlista_core.estimate import Estimate, Estimator, Measurement
from vlista_core.experiments import EXPERIMENTS
from vlista_core.experiments.choosing import chosen_studies, folder_of, integers, is_wanted, wanted_studies
from vlista_core.experiments.curves import LOOKS
from vlista_core.experiments.experiment import compared, printed, published, struck
from vlista_core.experiments.images import ImageTable, Mnist
from vlista_core.experiments.synthetic import Synthetic, measure
from vlista_core.linops import LinearMap
from vlista_core.solvers import FISTA
from vlista_core.study import Cell, Context, Provenance, Record, Row, frame, run_study, study_class


class Toy(Mnist):
    """A small table under the name of one that the paper has."""

    summary: ClassVar[str] = "A toy."
    heading: ClassVar[str] = "Toy"

    models: tuple[str, ...] = ("lista", "a-dlista", "a-dlista-adaptive")
    measurements: tuple[int, ...] = (100, 10)
    recipes: tuple[str, ...] = ("ours",)
    seeds: int = 2

    def run(self, cell: Cell, context: Context) -> Row:
        if cell["model"] == "lista" and cell["measurements"] == 10:
            raise ValueError("no such\nthing")
        return {"ssim": 0.5 + 0.02 * int(str(cell["seed"])), "ssim_error": 0.001, "test_samples": 1000,
                "budget": {"steps": 3, "batch_size": 4, "samples": 12, "seconds": 12.0}}  # fmt: skip


def test_a_table_shows_ours_the_papers_and_the_difference(tmp_path: Path) -> None:
    result = run_study(Toy(), tmp_path)
    assert [Toy().cell_id(record.cell) for record in result.records][:4] == [
        f"mnist.{words}.s0.recipe-ours"
        for words in ("lista.m100", "a-dlista.m100", "a-dlista-adaptive.m100", "a-dlista.m10")
    ]
    assert result.faults == {"mnist.lista.m10.s0.recipe-ours": "no such thing"}
    overview, ten, hundred = Toy().tables(result.frame)
    assert overview.lines[0] == ("lista", "0.111 · – · –", "0.370 · – · 0.510")
    assert overview.lines[2][2] == "0.479† · – · 0.510"
    assert "† printed for a-dlista" in overview.title
    assert ten.lines[0] == ("lista", "ours", "–", "0.111 ± 0.001", "–", "0 of 1", "–", "–", "–", "–", "–")
    assert hundred.lines[2] == (
        "a-dlista-adaptive", "ours", "0.510 ± 0.001", "0.479 ± 0.001†", "+0.031", "2 of 2", "0.500 … 0.520", "1,000", "3", "12",
        "12",
    )  # fmt: skip


def test_what_is_chosen_exists_or_is_refused_in_one_sentence() -> None:
    studies = chosen_studies("mnist")
    assert isinstance(studies[0], ImageTable)
    wanted: dict[str, Sequence[str | int]] = {"model": ["lista"], "measurements": [100], "seed": [1]}
    assert wanted_studies("mnist", studies, wanted) == studies
    chosen = [studies[0].cell_id(cell) for cell in studies[0].cells() if is_wanted(cell, wanted)]
    assert chosen == ["mnist.lista.m100.s1.recipe-paper", "mnist.lista.m100.s1.recipe-ours"]
    assert [is_wanted(cell, {"recipe": ["paper"]}) for cell in studies[0].cells()].count(True) == 31
    assert "mnist-half" in [folder_of(study) for study in chosen_studies("all", size="half")]
    assert [study.name for study in chosen_studies("all")] == list(EXPERIMENTS)
    for key, value, message in (
        ("model", "listo", "mnist has no cells with model listo; allowed are canonical, wavelet"),
        ("measurements", 7, "mnist has no cells with measurements 7; allowed are 100, 500, 300, 10, 1"),
        ("seed", 5, "mnist has no cells with seed 5; allowed are 0, 1, 2"),
    ):
        with pytest.raises(ValueError, match=message):
            wanted_studies("mnist", studies, {key: [value]})
    with pytest.raises(ValueError, match="mnist has no cell with all of these"):
        wanted_studies("mnist", studies, {"measurements": [10], "seed": [2]})
    with pytest.raises(ValueError, match="unknown study 'mnits'; known are synthetic, mnist"):
        chosen_studies("mnits")
    with pytest.raises(ValueError, match="size must be one of full, half, got 'tiny'"):
        chosen_studies("mnist", size="tiny")
    with pytest.raises(ValueError, match="synthetic has no images, so size must be full, got half"):
        chosen_studies("synthetic", size="half")
    with pytest.raises(ValueError, match="measurements must be integers with commas between"):
        integers("measurements", "1,x")


def test_published_figures_are_found_by_the_names_of_the_experiments() -> None:
    assert printed("mnist", "a-dlista", 100) == (0.479, 0.001)
    assert printed("cifar10-fixed", "nalista", 500) == (0.688, 0.001)
    assert printed("mnist", "a-dlista-adaptive", 100) is None
    assert compared("mnist", "a-dlista-adaptive", 100) == (0.479, 0.001)
    assert printed("mnist", "lista", 7) is None
    assert printed("synthetic", "lista", 100) is None
    assert published("inference_ms_rtx2080ti_batch32", "ista", 500) == [1550.0, 20.0]
    assert published("parameters_millions", "nalista") == 0.333


def test_printed_figures_above_the_ceiling_are_struck_and_no_others() -> None:
    """The ceiling: the best of the runs of benchmarks/ssim_ceiling.py on the Gaussian rows of the table."""
    ceiling = {1: 0.166, 10: 0.284}
    models = ("lista", "alista", "nalista", "a-dlista")
    for model, (m, limit) in itertools.product(models, ceiling.items()):
        figure = printed("cifar10-fixed", model, m)
        assert figure is not None
        assert struck("cifar10-fixed", model, m) == (figure[0] > limit), (model, m)
    assert struck("cifar10-fixed", "a-dlista-adaptive", 1)
    assert not any(struck(table, "lista", m) for table in ("mnist-fixed", "cifar10") for m in (1, 10))
    assert not any(struck("cifar10-fixed", model, m) for model in models for m in (100, 300, 500))


def test_a_finished_cell_is_told_in_one_line() -> None:
    cell: Cell = {"model": "a-dlista-adaptive", "measurements": 100, "seed": 0}
    row: Row = {"ssim": 0.6642, "budget": {"seconds": 199.6}, "seconds_to_printed": 34.2}
    assert Mnist().describe(cell, row) == (
        "ssim 0.664 (paper 0.479), trained in 200 s, printed figure reached after 34 s"
    )
    assert "printed figure not reached" in Mnist().describe(cell, {**row, "seconds_to_printed": None})


def test_quantiles_rise_and_the_median_is_the_figure() -> None:
    problem = SyntheticProblem(length=32, rows=20)
    result = measure(FISTA(iterations=30), problem, 0, 100)
    quantiles = result["quantiles_db"]
    assert isinstance(quantiles, dict)
    levels = [float(str(value)) for value in quantiles.values()]
    assert levels == sorted(levels)
    assert result["nmse_db"] == quantiles["50"]


class Broken(Estimator):
    """Zero, and NaN for the first sample of a batch."""

    def estimate(self, y: Tensor, phi: LinearMap | Tensor, noise_var: Tensor | float) -> Estimate:
        signal = y.new_zeros(len(y), Measurement.checked(y, phi, noise_var).phi.shape[1])
        signal[0, 0] = torch.nan
        return Estimate(signal)


def test_a_sample_that_diverged_is_counted_and_leaves_no_figure(tmp_path: Path) -> None:
    study = Synthetic(models=("ista", "fista"), measurements=(20,), length=32)
    row = measure(Broken(), SyntheticProblem(length=32, rows=20), 0, 30)
    assert json.loads(json.dumps(row, allow_nan=False)) == row
    assert (row["nmse_db"], row["nmse_ratio_db"], row["diverged"]) == (None, None, 1)
    cell: Cell = {"seed": 0, "phi": "varying", "measurements": 20, "model": "ista"}
    assert study.describe(cell, row) == "nmse db diverged (1)"
    rows = frame([Record(cell=cell, row=row, provenance=Provenance())])
    assert study.tables(rows)[0].lines == [("ista", "diverged (1)"), ("fista", "–")]
    assert study.figures(rows, tmp_path) == []


def test_a_seed_that_diverged_leaves_no_mean() -> None:
    good: Row = {"ssim": 0.5, "ssim_error": 0.001, "test_samples": 10, "diverged": 0}
    bad: Row = {**good, "ssim": None, "ssim_error": None, "diverged": 2}
    cells: list[Cell] = [{"seed": seed, "measurements": 100, "model": "lista", "recipe": "ours"} for seed in (0, 1)]
    rows = [Record(cell=cell, row=row, provenance=Provenance()) for cell, row in zip(cells, (good, bad), strict=True)]
    overview, hundred = Mnist(models=("lista",), measurements=(100,), seeds=2).tables(frame(rows))
    assert overview.lines == [("lista", "0.370 · – · diverged (2)")]
    assert hundred.lines[1][1:7] == ("ours", "diverged (2)", "0.370 ± 0.001", "–", "2 of 2", "–")


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_an_experiment_that_is_killed_often_ends_with_the_rows_of_one_run(tmp_path: Path) -> None:
    study = Synthetic(models=("bcs",), measurements=tuple(range(10, 22)), length=32, test_samples=20)
    assert kill_often(study, tmp_path / "killed", times=5, longest=0.2, seed=0) >= 2
    resumed, whole = run_study(study, tmp_path / "killed"), run_study(study, tmp_path / "whole")
    assert len(whole.records) == 24
    assert [(each.cell, each.row) for each in resumed.records] == [(each.cell, each.row) for each in whole.records]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_keeps_the_contract(name: str, tmp_path: Path) -> None:
    study = study_class(name, EXPERIMENTS).model_validate({})
    cells = study.cells()
    assert study.name == name
    assert study.summary.endswith(".")
    assert study.summary == study.explanation(pd.DataFrame())
    assert len({study.cell_id(cell) for cell in cells}) == len(cells) > 0
    for cell in cells:
        assert study.cell_id(cell).startswith(f"{name}.{cell['model']}.m{cell['measurements']}.s{cell['seed']}")
        assert json.loads(json.dumps(cell)) == cell
    assert type(study).model_validate_json(json.dumps(study.configuration())) == study
    assert "data" not in study.configuration()
    tables = study.tables(pd.DataFrame())
    assert any("–" in entry for table in tables for line in table.lines for entry in line)
    assert study.figures(pd.DataFrame(), tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_every_model_looks_different_without_colour() -> None:
    looks = [(look.marker, look.line) for look in LOOKS.values()]
    assert len(set(looks)) == len(looks)
