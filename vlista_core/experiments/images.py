"""The paper's four image tables: SSIM on MNIST and CIFAR-10, with a Φ for each image and with one Φ for all."""

from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
from torch import Tensor

from vlista_core.data.image_problem import ImageProblem
from vlista_core.data.images import load_images
from vlista_core.estimate import Estimator
from vlista_core.experiments.curves import Curve, draw_panels
from vlista_core.experiments.experiment import (
    STANDS_FOR,
    Experiment,
    by_measurements,
    cells_of,
    compared,
    identity,
    printed,
)
from vlista_core.experiments.image_models import MODELS, fit
from vlista_core.experiments.recipes import Recipe, estimate_test_draws
from vlista_core.metrics import finite_samples, nmse_db, psnr_db, ssim
from vlista_core.models import VLISTA
from vlista_core.problems import Batch
from vlista_core.study import Cell, Context, Figure, Row, Table
from vlista_core.study.measuring import finite
from vlista_core.study.tables import missing, number, signed

TITLES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
"""Data set -> how tables call it."""
_WITH_ERROR = "{:.3f} ± {:.3f}"
images_of = cache(load_images)
"""(name, folder) -> the data set, loaded once per process."""


class ImageExperiment(Experiment):
    """An experiment on MNIST or CIFAR-10."""

    def fitted(
        self,
        images: str,
        table: str,
        cell: Cell,
        context: Context,
        *,
        fixed: bool = False,
        classes: tuple[int, ...] | None = None,
    ) -> tuple[Estimator, ImageProblem, Row]:
        """The estimator of a cell, its problem, and how it was made.

        images: the data set; table: the experiment whose networks are used; fixed: one Φ for all; classes: labels, None is all.
        """
        model, m, seed = identity(cell)
        made, phi_seed = MODELS[model], seed if fixed else None
        problem = ImageProblem(
            data=images_of(images, self.data), rows=m, centred=True, sharing=made.sharing if isinstance(made, Recipe) else 1,
            fixed_phi_seed=phi_seed, classes=classes, device=self.device,
        )  # fmt: skip
        weights = context.scratch / f"{table}.{model}.m{m}.s{seed}.safetensors"
        estimator, details = fit(model, problem, seed, weights)
        return estimator, problem.on("cpu"), details


class ImageTable(ImageExperiment):
    """One of the paper's tables: SSIM of test images by model and number of measurements, ours beside what it prints."""

    growing: ClassVar[frozenset[str]] = frozenset({"models", "measurements"})
    heading: ClassVar[str]
    """Of its tables and figures."""
    images: ClassVar[str]
    """The data set."""
    fixed: ClassVar[bool]
    """Whether there is one Φ for all images."""

    models: tuple[str, ...] = (
        "canonical", "wavelet", "spca", "lista", "dlista", "a-dlista", "a-dlista-adaptive", "bcs", "vlista", "lmmse",
    )  # fmt: skip
    measurements: tuple[int, ...] = (100, 500, 300, 10, 1)
    """The most important first."""
    repeated: int = 100
    """The number of measurements at which there are `seeds` training seeds; there is one elsewhere."""
    seeds: int = 3
    test_images: int = 1000
    test_images_bcs: int = 200
    """BCS inverts a matrix for every sample and step."""

    def __init_subclass__(cls, *, images: str = "", fixed: bool = False) -> None:
        """images, fixed: what sets one of the four tables apart; its names follow. Without them they are inherited."""
        super().__init_subclass__()
        if images:
            phi, name = "one Φ for all" if fixed else "a Φ for each", TITLES[images]
            cls.name, cls.images, cls.fixed = f"{images}-fixed" if fixed else images, images, fixed
            cls.summary = f"SSIM of {name} test images, {phi}."
            cls.heading = f"{name}, {phi} image{'s' if fixed else ''}"

    def cells(self) -> list[Cell]:
        """Seed by seed, number of measurements by number of measurements, all models of each together."""
        cells = cells_of(seed=range(self.seeds), measurements=self.measurements, model=self.models)
        return [cell for cell in cells if cell["seed"] == 0 or cell["measurements"] == self.repeated]

    def run(self, cell: Cell, context: Context) -> Row:
        model, m, seed = identity(cell)
        estimator, problem, details = self.fitted(self.images, self.name, cell, context, fixed=self.fixed)
        found = measure(estimator, problem, seed, self.test_images_bcs if model == "bcs" else self.test_images)
        return {**found, **details, **_time_to_printed(details, compared(self.name, model, m))}

    def tables(self, frame: pd.DataFrame) -> list[Table]:
        found = _summary(frame)
        others = [f"† printed for {STANDS_FOR[model]}" for model in self.models if model in STANDS_FOR]
        note = f" ({', '.join(others)})" if others else ""

        def paper(model: str, m: int, form: str) -> str:
            value = compared(self.name, model, m)
            return form.format(*value) + ("†" if model in STANDS_FOR else "") if value else "–"

        def pair(model: str, m: int) -> str:
            own = found.get((model, m), {})
            return f"{number(own.get('ours'), '.3f', diverged=own.get('diverged'))} ({paper(model, m, '{:.3f}')})"

        def line(model: str, m: int) -> tuple[str, ...]:
            own, printed = found.get((model, m), {}), compared(self.name, model, m)
            known = not missing(own.get("ours"))
            return (
                model,
                _WITH_ERROR.format(own["ours"], own["error"])
                if known
                else number(None, "", diverged=own.get("diverged")),
                paper(model, m, _WITH_ERROR),
                signed(own["ours"] - printed[0], 3) if known and printed else "–",
                f"{own.get('seeds', 0):.0f} of {self._seeds_at(m)}",
                f"{own['least']:.3f} … {own['most']:.3f}" if known and own.get("seeds", 0) > 1 else "–",
                number(own.get("samples"), ",.0f"),
                number(own.get("seconds"), ".0f"),
            )

        heading = ("model", "ours", "paper", "difference", "seeds", "spread", "test images", "training (s)")
        first = by_measurements(f"{self.heading}: SSIM, ours (paper's){note}", self.models, self.measurements, pair)
        return [first] + [
            Table.of(f"{self.heading}, m = {m}: SSIM{note}", heading, [line(model, m) for model in self.models])
            for m in sorted(self.measurements)
        ]

    def figures(self, frame: pd.DataFrame, folder: Path) -> list[Figure]:
        found, columns, path = _summary(frame), sorted(self.measurements), folder / f"{self.name}.png"
        curves = []
        for model in (model for model in self.models if any((model, m) in found for m in columns)):
            paper = [(m, (printed(self.name, model, m) or [None])[0]) for m in columns]
            known = ((m, found.get((model, m), {}).get("ours")) for m in columns)
            ours = [(m, None if missing(value) else value) for m, value in known]
            curves += [Curve(model, ours), Curve(model, paper, printed=True)]
        drawn = draw_panels(
            path, {"": curves}, title=f"{self.heading}: SSIM of test images", x_label="measurements m",
            y_label="SSIM", x_ticks=columns, log_x=True,
        )  # fmt: skip
        caption = (
            "Filled marks: ours, mean over the test images and the seeds. Hollow marks, dashed: printed in the paper."
        )
        return [Figure(f"{self.heading}: SSIM by number of measurements", caption, path)] if drawn else []

    def _seeds_at(self, m: int) -> int:
        return self.seeds if m == self.repeated else 1


def _summary(frame: pd.DataFrame) -> dict[Any, dict[Any, float]]:
    """(model, measurements) -> means over the seeds and their spread; no mean where a seed has none."""
    keys, values = ["model", "measurements"], ["ssim", "ssim_error", "test_samples", "budget.seconds", "diverged"]
    if frame.empty:
        return {}
    grouped = frame.reindex(columns=keys + values).astype(dict.fromkeys(values, float)).groupby(keys, sort=False)
    return grouped.agg(
        ours=("ssim", lambda seeds: seeds.mean(skipna=False)), error=("ssim_error", "mean"), seeds=("ssim", "size"),
        least=("ssim", "min"), most=("ssim", "max"), samples=("test_samples", "mean"), seconds=("budget.seconds", "mean"),
        diverged=("diverged", "sum"),
    ).to_dict("index")  # fmt: skip


class Mnist(ImageTable, images="mnist"):
    """MNIST with a Φ for each image."""


class Cifar10(ImageTable, images="cifar10"):
    """CIFAR-10 with a Φ for each image."""


class MnistFixed(ImageTable, images="mnist", fixed=True):
    """MNIST with one Φ for all images."""

    models: tuple[str, ...] = ("lista", "alista", "nalista", "a-dlista")


class Cifar10Fixed(MnistFixed, images="cifar10", fixed=True):
    """CIFAR-10 with one Φ for all images."""


def measure(estimator: Estimator, problem: ImageProblem, seed: int, count: int) -> Row:
    """SSIM on the first `count` test images, its standard error, and PSNR and NMSE of the same estimates.

    diverged: images whose estimate has a NaN or Inf; the figures are None where there are any.
    """
    images, truth = map(problem.images, estimate_test_draws(estimator, problem, seed, count, 50))
    values = ssim(images, truth)
    return {
        "ssim": finite(float(values.mean()), 4),
        "ssim_error": finite(float(values.std() / count**0.5), 4),
        "psnr_db": finite(float(psnr_db(images, truth).clamp_max(100.0).mean()), 2),
        "nmse_db": finite(nmse_db(images.flatten(1), truth.flatten(1)), 2),
        "diverged": int((~finite_samples(images)).sum()),
        "test_samples": count,
    }


def estimate_with_variance(estimator: Estimator, batch: Batch, draws: int) -> tuple[Tensor, Tensor]:
    """The estimate and its variance, [batch, n] each: VLISTA's from so many draws of its dictionaries."""
    sampling = {"n_samples": draws} if isinstance(estimator, VLISTA) else {}
    out = estimator.estimate(batch.y, batch.phi, batch.noise_var, **sampling)
    if out.variance is None:
        raise ValueError(f"{type(estimator).__name__} gives no variance of its estimates")
    return out.signal, out.variance


def _time_to_printed(details: Row, paper: tuple[float, float] | None) -> Row:
    """Seconds from the start until a validation reached the printed figure; None where none did."""
    history = details.get("history")
    if paper is None or not isinstance(history, list):
        return {}
    reached = [row[1] for row in history if isinstance(row, list) and float(str(row[2])) >= paper[0]]
    return {"seconds_to_printed": reached[0] if reached else None}
