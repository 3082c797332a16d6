"""Do the intervals cover? VLISTA's and BCS's variances against their errors on MNIST.

The intervals are Gaussian, about the mean of the reconstructions. VLISTA's variance is that of reconstructions whose
dictionaries are drawn from its posterior, BCS's that of its own posterior. Beside them as they are, both are shown with their
variances multiplied by one factor, the one of a grid with the least calibration error on validation images. The network is that
of the table `mnist`.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from vlista_core.data.image_problem import ImageProblem
from vlista_core.draws import Split
from vlista_core.estimate import Estimator
from vlista_core.experiments.curves import BAYESIAN, LOOKS
from vlista_core.experiments.experiment import Experiment, cell_name, identity, rows_by
from vlista_core.experiments.image_models import fit, image_problem
from vlista_core.experiments.images import estimate_with_variance, images_of
from vlista_core.metrics import calibration_error, coverage
from vlista_core.plotting import new_figure
from vlista_core.study import Cell, Context, Figure, Row, Table
from vlista_core.study.tables import number

if TYPE_CHECKING:
    import pandas as pd

TABLE = "mnist"
"""The experiment whose networks are used."""
LEVELS = tuple(range(5, 100, 5))
"""Probabilities of the intervals, in per cent."""
SHOWN = (50, 90, 95)
WIDTH = 90
"""The interval whose mean width is shown."""
FACTORS: tuple[float, ...] = tuple(10.0 ** (step / 20) for step in range(-60, 81))
"""What the variances may be multiplied by."""
_FORMS = {"raw": "as it is", "scaled": "scaled"}


class Intervals(NamedTuple):
    """Estimates with variances, and the truth: [images, n] each."""

    estimate: Tensor
    variance: Tensor
    truth: Tensor

    def scaled(self, factor: float) -> Intervals:
        return self._replace(variance=factor * self.variance)


class Calibration(Experiment):
    """How often the truth lies in an interval, against how often it should."""

    name: ClassVar[str] = "calibration"
    summary: ClassVar[str] = "Coverage of the intervals of VLISTA and BCS on MNIST, raw and after scaling."
    figure: ClassVar[str] = "calibration_error"

    models: tuple[str, ...] = ("vlista", "bcs")
    measurements: int = 100
    test_images: int = 60
    validation_images: int = 30
    draws: int = 100

    def cells(self) -> list[Cell]:
        return [{"model": model, "measurements": self.measurements, "seed": 0} for model in self.models]

    def run(self, cell: Cell, context: Context) -> Row:
        model, m, seed = identity(cell)
        problem = image_problem(images_of(TABLE, self.data), m, model)
        estimator, details = fit(model, problem, seed, context.scratch / f"{cell_name(TABLE, cell)}.safetensors")
        context.report(0.2, "validation images")
        factor = best_factor(intervals(estimator, problem, self.validation_images, seed, "validation", self.draws))
        context.report(0.4, "test images")
        found = intervals(estimator, problem, self.test_images, seed, "test", self.draws)
        raw, scaled = reliability(found), reliability(found.scaled(factor))
        return {
            "calibration_error": raw["calibration_error"],
            "raw": raw,
            "scaled": scaled,
            "factor": round(factor, 4),
            "rms_error": round(float((found.estimate - found.truth).square().mean().sqrt()), 4),
            "test_samples": self.test_images,
            **{key: details[key] for key in ("recipe", "budget") if key in details},
        }

    def tables(self, frame: pd.DataFrame) -> list[Table]:
        found = rows_by(frame, "model")
        heading = (
            "model", "variances", "calibration error", *(f"coverage of {level} %" for level in SHOWN),
            f"width of {WIDTH} %", "factor", "RMS error",
        )  # fmt: skip
        lines = [_line(model, form, found.get((model,), {})) for model in self.models for form in _FORMS]
        title = (
            f"MNIST, m = {self.measurements}: calibration of the intervals of pixels, {self.test_images} test images, "
            f"{self.draws} draws; the factor of the variances is from {self.validation_images} validation images"
        )
        return [Table.of(title, heading, lines)]

    def figures(self, frame: pd.DataFrame, folder: Path) -> list[Figure]:
        if frame.empty:
            return []
        path, found = folder / "calibration.png", rows_by(frame, "model")
        rows = {model: found[model,] for model in self.models if (model,) in found}
        _draw(path, rows, f"Reliability on MNIST, m = {self.measurements}")
        caption = (
            "How often the true pixel lies in the central interval of a given probability. On the diagonal intervals cover "
            "as they say; below it they are too narrow. Filled: as they are; hollow, dashed: variances multiplied by one "
            "factor from validation images."
        )
        return [Figure("Reliability of the intervals", caption, path)]


def intervals(
    estimator: Estimator, problem: ImageProblem, count: int, seed: int, split: Split, draws: int
) -> Intervals:
    """The first `count` images of a split, each estimated with its variance."""
    batch = problem.sample(count, seed=seed, split=split)
    return Intervals(*estimate_with_variance(estimator, batch, draws), batch.signal)


def best_factor(found: Intervals) -> float:
    """The one of `FACTORS` with which the intervals cover best."""
    errors = {factor: calibration_error(*found.scaled(factor)) for factor in FACTORS}
    return min(errors, key=lambda factor: errors[factor])


def reliability(found: Intervals) -> Row:
    """Coverage by level, its mean distance from the level, and the mean width of an interval."""
    deviations = 2.0 * math.sqrt(2.0) * float(torch.erfinv(torch.tensor(WIDTH / 100, dtype=torch.float64)))
    return {
        "calibration_error": round(calibration_error(*found), 4),
        "coverage": {str(level): round(coverage(*found, level / 100), 4) for level in LEVELS},
        "width": round(deviations * float(found.variance.sqrt().mean()), 4),
    }


def _line(model: str, form: str, cell: dict[str, Any]) -> tuple[str, ...]:
    covered = [cell.get(f"{form}.coverage.{level}") for level in SHOWN]
    factor = cell.get("factor") if form == "scaled" else 1.0 if cell else None
    return (
        model,
        _FORMS[form],
        number(cell.get(f"{form}.calibration_error"), ".3f"),
        *("–" if share is None else f"{100 * share:.1f} %" for share in covered),
        number(cell.get(f"{form}.width"), ".3f"),
        number(factor, ".3g"),
        number(cell.get("rms_error"), ".3f"),
    )


def _draw(path: Path, rows: dict[str, dict[str, Any]], title: str) -> None:
    with new_figure(path, (6.6, 6.0)) as figure:
        axes = figure.subplots()
        axes.plot([0, 100], [0, 100], color="#777777", lw=0.8)
        for model, row in rows.items():
            for form, words in _FORMS.items():
                style: dict[str, Any] = {} if form == "raw" else {"mfc": "white", "ls": (0, (5, 3))}
                axes.plot(
                    LEVELS, [100 * row[f"{form}.coverage.{level}"] for level in LEVELS],
                    label=f"{model}, {words}", color=BAYESIAN[model], marker=LOOKS[model].marker, lw=1.4, **style,
                )  # fmt: skip
        axes.set(
            xlim=(0, 100), ylim=(0, 100), aspect="equal", xlabel="probability of the interval (%)",
            ylabel="true pixels inside (%)", title=title,
        )  # fmt: skip
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=9.5, loc="upper left")
