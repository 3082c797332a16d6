"""Do the intervals cover? VLISTA's and BCS's variances against their errors on MNIST.

The intervals are Gaussian, about the mean of the reconstructions. VLISTA's own variance is that of reconstructions whose
dictionaries are drawn from its posterior, plus what that leaves unexplained (`VLISTA.spread`); the first part is shown alone
too. BCS's is that of its own posterior. Beside them as they are, they are shown with their variances multiplied by one factor,
the one of a grid with the least calibration error on validation images. The networks are those of the table `mnist`, by the
paper's recipe; one has a constant deviation, and a table compares the two image by image.
"""

import itertools
import math
from pathlib import Path
from statistics import NormalDist
from typing import Any, ClassVar, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from vlista_core.draws import Split
from vlista_core.experiments.curves import BAYESIAN, LOOKS
from vlista_core.experiments.experiment import identity, rows_by
from vlista_core.experiments.images import CONTROL, SIZES, ImageExperiment, estimate_with_variance
from vlista_core.metrics import calibration_error, coverage, finite_samples
from vlista_core.plotting import new_figure
from vlista_core.study import Cell, Context, Figure, Row, Table
from vlista_core.study.measuring import finite
from vlista_core.study.tables import missing, number, signed

LEVELS = tuple(range(5, 100, 5))
"""Probabilities of the intervals, in per cent."""
SHOWN = (50, 90, 95)
_LEAST_VARIANCE = 1e-12
_TWO_SIDED = NormalDist().inv_cdf(0.975)
WIDTH = 90
"""The interval whose mean width is shown."""
FACTORS: tuple[float, ...] = tuple(10.0 ** (step / 20) for step in range(-60, 81))
"""What the variances may be multiplied by."""
_FORMS = {"doubt": "of the dictionaries alone", "raw": "its own", "scaled": "scaled"}


_TRACED = {
    "log_likelihood": "log likelihood", "divergence": "divergence", "deviation": "mean deviation",
    "over_samples": "variation over samples", "over_entries": "variation over entries",
}  # fmt: skip
"""Key of a trace -> the title of its panel."""
_STYLES: dict[str, dict[str, Any]] = {
    "doubt": {"ls": ":", "ms": 3},
    "raw": {},
    "scaled": {"mfc": "white", "ls": (0, (5, 3))},
}


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

    @property
    def log_likelihoods(self) -> Tensor:
        """Mean log density of a true pixel of each image: [images]."""
        variance = self.variance.double().clamp_min(_LEAST_VARIANCE)
        terms = torch.log(2 * math.pi * variance) + (self.estimate - self.truth).double().square() / variance
        return -0.5 * terms.mean(1)


class Calibration(ImageExperiment):
    """How often the truth lies in an interval, against how often it should."""

    name: ClassVar[str] = "calibration"
    summary: ClassVar[str] = "Coverage of the intervals of VLISTA and BCS on MNIST, raw and after scaling."
    figure: ClassVar[str] = "calibration_error"

    at_half_size: ClassVar[dict[str, Any]] = {"measurements": 25, "seeds": 3}

    models: tuple[str, ...] = ("vlista", "vlista-constant", "bcs")
    measurements: int = 100
    recipes: tuple[str, ...] = ("paper",)
    seeds: int = 1
    test_images: int = 200
    validation_images: int = 50
    draws: int = 100

    def cells(self) -> list[Cell]:
        return self.model_cells(measurements=[self.measurements], seed=range(self.seeds))

    def run(self, cell: Cell, context: Context) -> Row:
        estimator, problem, details = self.fitted("mnist", "mnist", cell, context)

        def intervals(count: int, split: Split) -> tuple[Intervals, Intervals]:
            """The estimator's own, and those of its dictionaries alone."""
            batch = problem.sample(count, seed=identity(cell)[2], split=split)
            out = estimate_with_variance(estimator, batch, self.draws)
            return tuple(Intervals(out.signal, each, batch.signal) for each in (out.variance, out.doubt))  # type: ignore[return-value]

        context.report(0.2, "validation images")
        factor = best_factor(intervals(self.validation_images, "validation")[0])
        context.report(0.4, "test images")
        found, doubt = intervals(self.test_images, "test")
        raw = reliability(found)
        return {
            "calibration_error": raw["calibration_error"],
            **({"doubt": reliability(doubt)} if doubt.variance is not found.variance else {}),
            "raw": raw,
            "scaled": reliability(found.scaled(factor)),
            "factor": finite(factor, 4),
            "rms_error": finite(float((found.estimate - found.truth).square().mean().sqrt()), 4),
            "diverged": found.diverged,
            "log_likelihoods": [finite(value, 4) for value in found.log_likelihoods.tolist()],
            "test_samples": self.test_images,
            **{key: details[key] for key in ("training", "budget", "history", "trace") if key in details},
        }

    def tables(self, frame: pd.DataFrame) -> list[Table]:
        found = _means(frame)

        def line(model: str, form: str) -> list[str]:
            cell = found.get((model,), {})
            factor = cell.get("factor") if form == "scaled" else 1.0 if cell else None
            shares = (number(cell.get(f"{form}.coverage.{level}"), ".1%").replace("%", " %") for level in SHOWN)
            error = number(cell.get(f"{form}.calibration_error"), ".3f", diverged=cell.get("diverged"))
            width = number(cell.get(f"{form}.width"), ".3f")
            rms = number(cell.get("rms_error"), ".3f")
            likelihood = number(cell.get(f"{form}.log_likelihood"), ".4g")
            return [model, _FORMS[form], error, *shares, width, likelihood, number(factor, ".3g"), rms]

        heading = (
            "model", "variances", "calibration error", *(f"coverage of {level} %" for level in SHOWN),
            f"width of {WIDTH} %", "log likelihood of a pixel", "factor", "RMS error",
        )  # fmt: skip
        title = (
            f"MNIST{SIZES[self.size]}, m = {self.measurements}: calibration of the intervals of pixels, "
            f"{self.test_images} test images, {self._over_seeds(frame)}"
            f"{self.draws} draws; the factor of the variances is from {self.validation_images} validation images"
        )
        shown = [(model, form) for model in self.models for form in _FORMS if form != "doubt" or model != "bcs"]
        return [Table.of(title, heading, [line(model, form) for model, form in shown]), self._compared(frame)]

    def _compared(self, frame: pd.DataFrame) -> Table:
        """VLISTA less its control with one deviation, on the same images with the same Φ."""
        found = rows_by(frame, "model", "seed")
        lines = []
        for seed in range(self.seeds):
            pair = [found.get((model, seed)) for model in ("vlista", CONTROL)]
            if None in pair:
                lines.append((str(seed), *["–"] * 6))
                continue
            bounds = [best_validation(row) for row in pair if row is not None]
            pixels = [torch.tensor(row["log_likelihoods"], dtype=torch.float64) for row in pair if row is not None]
            difference = pixels[0] - pixels[1]
            margin = _TWO_SIDED * float(difference.std()) / len(difference) ** 0.5
            lines.append(
                (
                    str(seed),
                    *(f"{bound:.1f}" for bound in bounds),
                    signed(bounds[0] - bounds[1], 1),
                    *(f"{float(each.mean()):.4f}" for each in pixels),
                    f"{signed(float(difference.mean()), 4)} ± {margin:.4f}",
                )
            )
        heading = (
            "seed", "validation bound, vlista", CONTROL, "difference", "log likelihood of a test pixel, vlista", CONTROL,
            "difference, with its 95 % interval over images",
        )  # fmt: skip
        title = f"MNIST{SIZES[self.size]}, m = {self.measurements}: VLISTA's posterior against one constant deviation, in nats"
        return Table.of(title, heading, lines)

    def _over_seeds(self, frame: pd.DataFrame) -> str:
        done = 0 if frame.empty else frame["seed"].nunique()
        return f"{done} of {self.seeds} training seeds, " if self.seeds > 1 else ""

    def figures(self, frame: pd.DataFrame, folder: Path) -> list[Figure]:
        if frame.empty:
            return []
        path, found = folder / "calibration.png", _means(frame)
        with new_figure(path, (6.6, 6.0)) as figure:
            axes = figure.subplots()
            axes.plot([0, 100], [0, 100], color="#777777", lw=0.8)
            for model, form in itertools.product((model for model in self.models if (model,) in found), _FORMS):
                if missing(found[model,].get(f"{form}.calibration_error")):
                    continue
                style = _STYLES[form]
                axes.plot(
                    LEVELS, [100 * found[model,][f"{form}.coverage.{level}"] for level in LEVELS], lw=1.4,
                    label=f"{model}, {_FORMS[form]}", color=BAYESIAN[model], marker=LOOKS[model].marker, **style,
                )  # fmt: skip
            axes.set(
                xlim=(0, 100), ylim=(0, 100), aspect="equal", xlabel="probability of the interval (%)",
                ylabel="true pixels inside (%)", title=f"Reliability on MNIST{SIZES[self.size]}, m = {self.measurements}",
            )  # fmt: skip
            axes.grid(alpha=0.25)
            axes.legend(frameon=False, fontsize=9.5, loc="upper left")
        caption = (
            "How often the true pixel lies in the central interval of a given probability. On the diagonal intervals cover "
            "as they say; below it they are too narrow. Filled: their own; hollow, dashed: variances multiplied by one "
            "factor from validation images; dotted: of VLISTA's dictionaries alone."
        )
        first = rows_by(frame[frame["seed"] == frame["seed"].min()], "model")
        return [Figure("Reliability of the intervals", caption, path), *self._training_figure(first, folder)]

    def _training_figure(self, found: dict[tuple[Any, ...], dict[Any, Any]], folder: Path) -> list[Figure]:
        """The bound and the deviations of the posterior over training, layer by layer."""
        traced = [
            (model, found[model,]) for model in self.models if isinstance(found.get((model,), {}).get("trace"), list)
        ]
        if not traced:
            return []
        path = folder / "posterior.png"
        with new_figure(path, (16.0, 3.2 * len(traced))) as figure:
            grid = figure.subplots(len(traced), len(_TRACED), squeeze=False)
            for line, (model, row) in zip(grid, traced, strict=True):
                steps = [record[0] for record in row["history"]]
                for axes, (key, words) in zip(line, _TRACED.items(), strict=True):
                    for layer, values in enumerate(zip(*(record[key] for record in row["trace"]), strict=True)):
                        axes.plot(steps, values, lw=1.4, label=f"layer {layer + 1}")
                    axes.set(title=f"{model}:\n{words}", xlabel="steps")
                    axes.grid(alpha=0.25)
            grid[0][0].legend(frameon=False, fontsize=8.5)
        caption = (
            "On validation images, with the same draws every time: the log likelihood of the image and the divergence from the "
            "prior, each layer by itself; the mean deviation of the posterior; and how much deviations differ between samples "
            "and between entries, as coefficients of variation."
        )
        return [Figure("VLISTA's posterior over training", caption, path)]


def _means(frame: pd.DataFrame) -> dict[tuple[Any, ...], dict[Any, Any]]:
    """(model,) -> the means over the seeds of what is a number, and how many images diverged."""
    if frame.empty:
        return {}
    numbers = frame.groupby("model", sort=False).mean(numeric_only=True)
    numbers["diverged"] = frame.groupby("model", sort=False)["diverged"].sum()
    return {(model,): line for model, line in numbers.to_dict("index").items()}


def best_validation(row: dict[Any, Any]) -> float:
    """The best bound on validation images, in nats an image."""
    return -min(float(record[2]) for record in row["history"])


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
        "log_likelihood": finite(float(found.log_likelihoods.mean()), 4),
    }
