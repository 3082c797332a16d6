"""Do the intervals cover? VLISTA's and BCS's variances against their errors on MNIST.

The intervals are Gaussian, about the mean of the reconstructions. VLISTA's variance is that of reconstructions whose
dictionaries are drawn from its posterior, BCS's that of its own posterior. Beside them as they are, both are shown with their
variances multiplied by one factor, the one of a grid with the least calibration error on validation images. The network is that
of the table `mnist`.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vlista_core.data.image_problem import ImageProblem
from vlista_core.draws import Split
from vlista_core.estimate import Estimator
from vlista_core.experiments.base import Cell, Context, Done, Experiment, Figure, identity, number
from vlista_core.experiments.curves import BAYESIAN, LOOKS
from vlista_core.experiments.image_models import fit, image_problem
from vlista_core.experiments.images import estimate_with_variance, images_of
from vlista_core.metrics import calibration_error, coverage
from vlista_core.plotting import new_figure
from vlista_core.tables import Table
from vlista_core.tensorfile import Json

TABLE = "mnist"
"""The experiment whose networks are used."""
MEASUREMENTS = 100
MODELS = ("vlista", "bcs")
LEVELS = tuple(range(5, 100, 5))
"""Probabilities of the intervals, in per cent."""
SHOWN = (50, 90, 95)
WIDTH = 90
"""The interval whose mean width is shown."""
TEST_IMAGES = 60
VALIDATION_IMAGES = 30
DRAWS = 100
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

    name = "calibration"
    summary = f"Coverage of the intervals of VLISTA and BCS on MNIST at m = {MEASUREMENTS}, raw and after scaling."
    figure = "calibration_error"

    def cells(self) -> list[Cell]:
        return [{"experiment": self.name, "model": model, "measurements": MEASUREMENTS, "seed": 0} for model in MODELS]

    def run(self, cell: Cell, context: Context) -> dict[str, Json]:
        model, m, seed = identity(cell)
        problem = image_problem(images_of(TABLE, context.data), m, model)
        estimator, _ = fit(model, problem, seed, context.weights_of({**cell, "experiment": TABLE}))
        context.report(0.2, "validation images")
        factor = best_factor(intervals(estimator, problem, VALIDATION_IMAGES, seed, "validation"))
        context.report(0.4, "test images")
        found = intervals(estimator, problem, TEST_IMAGES, seed, "test")
        raw, scaled = reliability(found), reliability(found.scaled(factor))
        return {
            "calibration_error": raw["calibration_error"],
            "raw": raw,
            "scaled": scaled,
            "factor": round(factor, 4),
            "rms_error": round(float((found.estimate - found.truth).square().mean().sqrt()), 4),
            "test_samples": TEST_IMAGES,
        }

    def tables(self, done: Done) -> list[Table]:
        cells = {str(cell["model"]): cell for cell in done}
        heading = (
            "model", "variances", "calibration error", *(f"coverage of {level} %" for level in SHOWN),
            f"width of {WIDTH} %", "factor", "RMS error",
        )  # fmt: skip
        lines = tuple(_line(model, form, cells.get(model, {})) for model in MODELS for form in _FORMS)
        title = (
            f"MNIST, m = {MEASUREMENTS}: calibration of the intervals of pixels, {TEST_IMAGES} test images, {DRAWS} draws; "
            f"the factor of the variances is from {VALIDATION_IMAGES} validation images"
        )
        return [Table(title, heading, lines)]

    def figures(self, done: Done, folder: Path) -> list[Figure]:
        if not done:
            return []
        path = folder / "calibration.png"
        _draw(path, done)
        caption = (
            "How often the true pixel lies in the central interval of a given probability. On the diagonal intervals cover "
            "as they say; below it they are too narrow. Filled: as they are; hollow, dashed: variances multiplied by one "
            "factor from validation images."
        )
        return [Figure("Reliability of the intervals", caption, path)]


def intervals(estimator: Estimator, problem: ImageProblem, count: int, seed: int, split: Split) -> Intervals:
    """The first `count` images of a split, each estimated with its variance."""
    batch = problem.sample(count, seed=seed, split=split)
    return Intervals(*estimate_with_variance(estimator, batch, DRAWS), batch.signal)


def best_factor(found: Intervals) -> float:
    """The one of `FACTORS` with which the intervals cover best."""
    errors = {factor: calibration_error(*found.scaled(factor)) for factor in FACTORS}
    return min(errors, key=lambda factor: errors[factor])


def reliability(found: Intervals) -> dict[str, Json]:
    """Coverage by level, its mean distance from the level, and the mean width of an interval."""
    deviations = 2.0 * math.sqrt(2.0) * float(torch.erfinv(torch.tensor(WIDTH / 100, dtype=torch.float64)))
    return {
        "calibration_error": round(calibration_error(*found), 4),
        "coverage": {str(level): round(coverage(*found, level / 100), 4) for level in LEVELS},
        "width": round(deviations * float(found.variance.sqrt().mean()), 4),
    }


def _line(model: str, form: str, cell: dict[str, Json]) -> tuple[str, ...]:
    part = cell.get(form)
    part = part if isinstance(part, dict) else {}
    error, width, rms = number(part, "calibration_error"), number(part, "width"), number(cell, "rms_error")
    factor = number(cell, "factor") if form == "scaled" else 1.0 if part else None
    return (
        model,
        _FORMS[form],
        "–" if error is None else f"{error:.3f}",
        *(f"{100 * value:.1f} %" if (value := _covered(part, level)) is not None else "–" for level in SHOWN),
        "–" if width is None else f"{width:.3f}",
        "–" if factor is None else f"{factor:.3g}",
        "–" if rms is None else f"{rms:.3f}",
    )


def _covered(part: dict[str, Json], level: int) -> float | None:
    values = part.get("coverage")
    return number(values, str(level)) if isinstance(values, dict) else None


def _draw(path: Path, done: Done) -> None:
    with new_figure(path, (6.6, 6.0)) as figure:
        axes = figure.subplots()
        axes.plot([0, 100], [0, 100], color="#777777", lw=0.8)
        for cell in sorted(done, key=lambda cell: MODELS.index(str(cell["model"]))):
            model = str(cell["model"])
            for form, words in _FORMS.items():
                part = cell[form]
                assert isinstance(part, dict)
                style: dict[str, Any] = {} if form == "raw" else {"mfc": "white", "ls": (0, (5, 3))}
                axes.plot(
                    LEVELS, [100 * (_covered(part, level) or 0.0) for level in LEVELS],
                    label=f"{model}, {words}", color=BAYESIAN[model], marker=LOOKS[model].marker, lw=1.4, **style,
                )  # fmt: skip
        axes.set(
            xlim=(0, 100), ylim=(0, 100), aspect="equal", xlabel="probability of the interval (%)",
            ylabel="true pixels inside (%)", title=f"Reliability on MNIST, m = {MEASUREMENTS}",
        )  # fmt: skip
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=9.5, loc="upper left")
