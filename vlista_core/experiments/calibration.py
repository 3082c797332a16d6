"""Do the intervals cover? VLISTA's and BCS's variances against their errors on MNIST.

The intervals are Gaussian, about the mean of the reconstructions. VLISTA's variance is that of reconstructions whose
dictionaries are drawn from its posterior, BCS's that of its own posterior. Beside them as they are, both are shown with their
variances multiplied by one factor, the one of a grid with the least calibration error on validation images. The network is that
of the table `mnist`.
"""

import itertools
import math
from pathlib import Path
from statistics import NormalDist
from typing import Any, ClassVar, NamedTuple

import pandas as pd
from torch import Tensor

from vlista_core.draws import Split
from vlista_core.experiments.curves import BAYESIAN, LOOKS
from vlista_core.experiments.experiment import cells_of, identity, rows_by
from vlista_core.experiments.images import ImageExperiment, estimate_with_variance
from vlista_core.metrics import calibration_error, coverage, finite_samples
from vlista_core.plotting import new_figure
from vlista_core.study import Cell, Context, Figure, Row, Table
from vlista_core.study.measuring import finite
from vlista_core.study.tables import missing, number

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

    @property
    def diverged(self) -> int:
        """Images whose estimate or variance has a NaN or Inf; there are no figures where there are any."""
        return int((~(finite_samples(self.estimate) & finite_samples(self.variance))).sum())

    def scaled(self, factor: float) -> "Intervals":
        return self._replace(variance=factor * self.variance)


class Calibration(ImageExperiment):
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
        return cells_of(measurements=[self.measurements], seed=[0], model=self.models)

    def run(self, cell: Cell, context: Context) -> Row:
        estimator, problem, details = self.fitted("mnist", "mnist", cell, context)

        def intervals(count: int, split: Split) -> Intervals:
            batch = problem.sample(count, seed=identity(cell)[2], split=split)
            return Intervals(*estimate_with_variance(estimator, batch, self.draws), batch.signal)

        context.report(0.2, "validation images")
        factor = best_factor(intervals(self.validation_images, "validation"))
        context.report(0.4, "test images")
        found = intervals(self.test_images, "test")
        raw, scaled = reliability(found), reliability(found.scaled(factor))
        return {
            "calibration_error": raw["calibration_error"],
            "raw": raw,
            "scaled": scaled,
            "factor": finite(factor, 4),
            "rms_error": finite(float((found.estimate - found.truth).square().mean().sqrt()), 4),
            "diverged": found.diverged,
            "test_samples": self.test_images,
            **{key: details[key] for key in ("recipe", "budget") if key in details},
        }

    def tables(self, frame: pd.DataFrame) -> list[Table]:
        found = rows_by(frame, "model")

        def line(model: str, form: str) -> list[str]:
            cell = found.get((model,), {})
            factor = cell.get("factor") if form == "scaled" else 1.0 if cell else None
            shares = (number(cell.get(f"{form}.coverage.{level}"), ".1%").replace("%", " %") for level in SHOWN)
            error = number(cell.get(f"{form}.calibration_error"), ".3f", diverged=cell.get("diverged"))
            width = number(cell.get(f"{form}.width"), ".3f")
            rms = number(cell.get("rms_error"), ".3f")
            return [model, _FORMS[form], error, *shares, width, number(factor, ".3g"), rms]

        heading = (
            "model", "variances", "calibration error", *(f"coverage of {level} %" for level in SHOWN),
            f"width of {WIDTH} %", "factor", "RMS error",
        )  # fmt: skip
        title = (
            f"MNIST, m = {self.measurements}: calibration of the intervals of pixels, {self.test_images} test images, "
            f"{self.draws} draws; the factor of the variances is from {self.validation_images} validation images"
        )
        return [Table.of(title, heading, [line(model, form) for model in self.models for form in _FORMS])]

    def figures(self, frame: pd.DataFrame, folder: Path) -> list[Figure]:
        if frame.empty:
            return []
        path, found = folder / "calibration.png", rows_by(frame, "model")
        with new_figure(path, (6.6, 6.0)) as figure:
            axes = figure.subplots()
            axes.plot([0, 100], [0, 100], color="#777777", lw=0.8)
            for model, form in itertools.product((model for model in self.models if (model,) in found), _FORMS):
                if missing(found[model,][f"{form}.calibration_error"]):
                    continue
                style: dict[str, Any] = {} if form == "raw" else {"mfc": "white", "ls": (0, (5, 3))}
                axes.plot(
                    LEVELS, [100 * found[model,][f"{form}.coverage.{level}"] for level in LEVELS], lw=1.4,
                    label=f"{model}, {_FORMS[form]}", color=BAYESIAN[model], marker=LOOKS[model].marker, **style,
                )  # fmt: skip
            axes.set(
                xlim=(0, 100), ylim=(0, 100), aspect="equal", xlabel="probability of the interval (%)",
                ylabel="true pixels inside (%)", title=f"Reliability on MNIST, m = {self.measurements}",
            )  # fmt: skip
            axes.grid(alpha=0.25)
            axes.legend(frameon=False, fontsize=9.5, loc="upper left")
        caption = (
            "How often the true pixel lies in the central interval of a given probability. On the diagonal intervals cover "
            "as they say; below it they are too narrow. Filled: as they are; hollow, dashed: variances multiplied by one "
            "factor from validation images."
        )
        return [Figure("Reliability of the intervals", caption, path)]


def best_factor(found: Intervals) -> float:
    """The one of `FACTORS` with which the intervals cover best; NaN where they are not finite."""
    if found.diverged:
        return math.nan
    return min(FACTORS, key=lambda factor: calibration_error(*found.scaled(factor)))


def reliability(found: Intervals) -> Row:
    """Coverage by level, its mean distance from the level, and the mean width of an interval."""
    deviations = 2.0 * NormalDist().inv_cdf(0.5 + WIDTH / 200)
    return {
        "calibration_error": finite(calibration_error(*found), 4),
        "coverage": {str(level): finite(coverage(*found, level / 100), 4) for level in LEVELS},
        "width": finite(deviations * float(found.variance.sqrt().mean()), 4),
    }
