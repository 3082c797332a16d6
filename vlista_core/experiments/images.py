"""The paper's four image tables: SSIM on MNIST and CIFAR-10, with a Φ for each image and with one Φ for all."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import pandas as pd
from pydantic import model_validator
from torch import Tensor

from vlista_core.charts import Axis
from vlista_core.data.image_problem import ImageProblem
from vlista_core.data.image_set import ImageData
from vlista_core.data.images import load_images
from vlista_core.estimate import Estimator
from vlista_core.experiments.baselines import affordable_images
from vlista_core.experiments.curves import Curve, panel_chart
from vlista_core.experiments.experiment import (
    STANDS_FOR,
    Experiment,
    by_measurements,
    cells_of,
    compared,
    identity,
    struck,
)
from vlista_core.experiments.image_models import fit, recipes_of
from vlista_core.experiments.recipes import estimate_test_draws
from vlista_core.metrics import finite_samples, nmse_db, psnr_db, ssim
from vlista_core.models import VLISTA
from vlista_core.problems import Batch
from vlista_core.study import Cell, Context, Figure, Row, Table
from vlista_core.study.measuring import finite
from vlista_core.study.tables import missing, number, signed
from vlista_core.tensorfile import Json

TITLES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
"""Data set -> how tables call it."""
_WITH_ERROR = "{:.3f} ± {:.3f}"
CONTROL = "vlista-constant"
"""Of an ablation; it runs at one number of measurements."""
Size = Literal["full", "half"]
SIZES: dict[Size, str] = {"full": "", "half": " at half size"}
"""Size of the images -> how titles say it."""


@cache
def images_of(name: str, folder: Path | None, size: Size = "full") -> ImageData:
    """A data set, loaded once per process."""
    data = load_images(name, folder)
    return data if size == "full" else data.halved()


class ImageExperiment(Experiment):
    """An experiment on MNIST or CIFAR-10.

    At half size, 14×14 and 16×16 pixels, everything trains on a laptop within an hour; the paper prints nothing for it.
    """

    at_half_size: ClassVar[dict[str, Any]]
    """What is different there: a quarter of the pixels, and of the measurements."""

    size: Size = "full"
    recipes: tuple[str, ...] = ("paper", "ours")
    """By which networks are trained, where they can be."""

    @model_validator(mode="before")
    @classmethod
    def _sized(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {**cls.at_half_size, **values} if values.get("size") == "half" else values

    def printed_for(self, model: str, measurements: int) -> tuple[float, float] | None:
        return None if self.size == "half" else compared(self.name, model, measurements)

    def model_cells(self, **values: Iterable[Json]) -> list[Cell]:
        """A cell for each combination of values, model and recipe; solvers have no recipe."""
        found = []
        for cell in cells_of(**values, model=self.models):
            for recipe in recipes_of(str(cell["model"])):
                if recipe is None or recipe in self.recipes:
                    found.append(cell if recipe is None else {**cell, "recipe": recipe})
        return found

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
        problem = ImageProblem(
            data=images_of(images, self.data, self.size), rows=m, centred=True, sharing=1,
            fixed_phi_seed=seed if fixed else None, classes=classes, device=self.device,
        )  # fmt: skip
        recipe = str(cell["recipe"]) if "recipe" in cell else None
        # As the cell of the table is called, so that --restart finds it, and by size.
        words = [table, model, f"m{m}", f"s{seed}", *([f"recipe-{recipe}"] if recipe else [])]
        words += [] if self.size == "full" else [self.size]
        weights = context.scratch / f"{'.'.join(words)}.safetensors"
        estimator, details = fit(model, recipe, problem, seed, weights)
        return estimator, problem.on("cpu"), details


class ImageTable(ImageExperiment):
    """One of the paper's tables: SSIM of test images by model and number of measurements, ours beside what it prints."""

    growing: ClassVar[frozenset[str]] = frozenset({"models", "measurements", "recipes"})
    heading: ClassVar[str]
    """Of its tables and figures."""
    images: ClassVar[str]
    """The data set."""
    fixed: ClassVar[bool]
    """Whether there is one Φ for all images."""
    at_half_size: ClassVar[dict[str, Any]] = {"measurements": (25, 125, 10), "repeated": 25}

    models: tuple[str, ...] = (
        "canonical", "wavelet", "spca", "lista", "dlista", "a-dlista", "a-dlista-adaptive", "bcs", "vlista", "vlista-constant",
        "vlista-anchored", "lmmse",
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
        cells = self.model_cells(seed=range(self.seeds), measurements=self.measurements)
        once = [cell for cell in cells if cell["model"] != CONTROL or cell["measurements"] == self.repeated]
        return [cell for cell in once if cell["seed"] == 0 or cell["measurements"] == self.repeated]

    def run(self, cell: Cell, context: Context) -> Row:
        model, m, seed = identity(cell)
        estimator, problem, details = self.fitted(self.images, self.name, cell, context, fixed=self.fixed)
        wanted = self.test_images_bcs if model == "bcs" else self.test_images
        found = measure(estimator, problem, seed, affordable_images(estimator, problem, wanted))
        return {**found, **details, **_time_to_printed(details, self.printed_for(model, m))}

    def tables(self, frame: pd.DataFrame) -> list[Table]:
        found, rows = _summary(frame), [(model, recipe) for model in self.models for recipe in self._recipes(model)]
        others = [f"† printed for {STANDS_FOR[model]}" for model in self.models if model in STANDS_FOR]
        marks = [*others, *(["~~struck~~: above what any estimate can reach"] if self.fixed else [])]
        note = f" ({', '.join(marks)})" if marks else ""

        def paper(model: str, m: int, form: str) -> str:
            if (value := self.printed_for(model, m)) is None:
                return "–"
            text = form.format(*value) + ("†" if model in STANDS_FOR else "")
            return f"~~{text}~~" if struck(self.name, model, m) else text

        def entry(model: str, m: int) -> str:
            ours = [found.get((model, recipe or "", m), {}) for recipe in _both(recipes_of(model))]
            shown = [number(own.get("ours"), ".3f", diverged=own.get("diverged")) for own in ours]
            return " · ".join([paper(model, m, "{:.3f}"), *shown])

        def line(model: str, recipe: str | None, m: int) -> tuple[str, ...]:
            own, printed = found.get((model, recipe or "", m), {}), self.printed_for(model, m)
            known = not missing(own.get("ours"))
            return (
                model,
                recipe or "–",
                _WITH_ERROR.format(own["ours"], own["error"])
                if known
                else number(None, "", diverged=own.get("diverged")),
                paper(model, m, _WITH_ERROR),
                signed(own["ours"] - printed[0], 3) if known and printed else "–",
                f"{own.get('seeds', 0):.0f} of {self._seeds_at(m)}",
                f"{own['least']:.3f} … {own['most']:.3f}" if known and own.get("seeds", 0) > 1 else "–",
                number(own.get("samples"), ",.0f"),
                *(number(own.get(key), ",.0f") for key in ("steps", "seen", "seconds")),
            )

        heading = (
            "model", "recipe", "SSIM", "printed", "difference", "seeds", "spread", "test images", "steps", "images seen",
            "training (s)",
        )  # fmt: skip
        title = (
            f"{self._heading}: SSIM, printed · paper's recipe · ours; printed · found where nothing is trained{note}"
        )
        return [by_measurements(title, self.models, self.measurements, entry)] + [
            Table.of(f"{self._heading}, m = {m}: SSIM{note}", heading, [line(*row, m) for row in rows])
            for m in sorted(self.measurements)
        ]

    def figures(self, frame: pd.DataFrame, folder: Path) -> list[Figure]:
        found, columns, path = _summary(frame), sorted(self.measurements), folder / f"{self.name}.png"
        panels = {}
        for recipe, words in {"paper": "the paper's recipe", "ours": "our recipe"}.items():
            curves = []
            for model in self.models:
                own = recipe if recipe in recipes_of(model) else ""
                known = ((m, found.get((model, own, m), {}).get("ours")) for m in columns)
                ours = [(m, None if missing(value) else value) for m, value in known]
                if any(value is not None for _, value in ours):
                    paper = [(m, (self.printed_for(model, m) or [None])[0]) for m in columns]
                    curves += [
                        Curve(model, ours),
                        *([Curve(model, paper, printed=True)] if model not in STANDS_FOR else []),
                    ]
            panels[words] = curves
        axis = Axis("measurements m", columns, logarithmic=True)
        chart = panel_chart(panels, title=f"{self._heading}: SSIM of test images", x=axis, y_label="SSIM", best=max)
        caption = (
            "Filled marks: ours, mean over the test images and the seeds. Hollow marks, dashed: printed in the paper. "
            "Rows that train nothing are in both panels."
        )
        title = f"{self._heading}: SSIM by number of measurements"
        return [] if chart is None else [Figure.drawn(title, caption, path, chart)]

    @property
    def _heading(self) -> str:
        return self.heading + SIZES[self.size]

    def _recipes(self, model: str) -> list[str | None]:
        return [recipe for recipe in recipes_of(model) if recipe is None or recipe in self.recipes]

    def _seeds_at(self, m: int) -> int:
        return self.seeds if m == self.repeated else 1


def _both(recipes: tuple[str | None, ...]) -> list[str | None]:
    """Both recipes in the order of the tables, for a network; nothing to choose for others."""
    return [None] if recipes == (None,) else ["paper", "ours"]


def _summary(frame: pd.DataFrame) -> dict[Any, dict[Any, float]]:
    """(model, recipe or "", measurements) -> means over the seeds and their spread; no mean where a seed has none."""
    keys = ["model", "recipe", "measurements"]
    values = ["ssim", "ssim_error", "test_samples", "budget.seconds", "budget.steps", "budget.samples", "diverged"]
    if frame.empty:
        return {}
    known = frame.reindex(columns=keys + values).astype({**dict.fromkeys(values, float), "recipe": object})
    known["recipe"] = known["recipe"].where(known["recipe"].notna(), "")
    return known.groupby(keys, sort=False).agg(
        ours=("ssim", lambda seeds: seeds.mean(skipna=False)), error=("ssim_error", "mean"), seeds=("ssim", "size"),
        least=("ssim", "min"), most=("ssim", "max"), samples=("test_samples", "mean"), seconds=("budget.seconds", "mean"),
        steps=("budget.steps", "mean"), seen=("budget.samples", "mean"), diverged=("diverged", "sum"),
    ).to_dict("index")  # fmt: skip


class Mnist(ImageTable, images="mnist"):
    """MNIST with a Φ for each image."""


class Cifar10(ImageTable, images="cifar10"):
    """CIFAR-10 with a Φ for each image."""

    at_half_size: ClassVar[dict[str, Any]] = {"measurements": (25,), "repeated": 25, "seeds": 1}


class MnistFixed(ImageTable, images="mnist", fixed=True):
    """MNIST with one Φ for all images."""

    at_half_size: ClassVar[dict[str, Any]] = {"measurements": (25, 125), "repeated": 25, "seeds": 1}

    models: tuple[str, ...] = ("lista", "alista", "nalista", "alista-12", "nalista-12", "a-dlista")


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


class Doubtful(NamedTuple):
    """An estimate and its variances, [batch, n] each."""

    signal: Tensor
    variance: Tensor
    """Of the true signal about the estimate."""
    doubt: Tensor
    """VLISTA's part of it that comes from the draws of its dictionaries; all of it for others."""


def estimate_with_variance(estimator: Estimator, batch: Batch, draws: int) -> Doubtful:
    """The estimate and what it says of its error: VLISTA's from so many draws of its dictionaries."""
    sampling = {"n_samples": draws} if isinstance(estimator, VLISTA) else {}
    out = estimator.estimate(batch.y, batch.phi, batch.noise_var, **sampling)
    if out.variance is None:
        raise ValueError(f"{type(estimator).__name__} gives no variance of its estimates")
    return Doubtful(out.signal, out.variance, out.variance if out.samples is None else out.samples.var(0))


def _time_to_printed(details: Row, paper: tuple[float, float] | None) -> Row:
    """Seconds from the start until a validation reached the printed figure; None where none did.

    Our recipe validates by SSIM; the paper's validates by its loss, which tells nothing of the printed figure.
    """
    history, told = details.get("history"), details.get("training")
    by_loss = isinstance(told, dict) and told.get("name") == "paper"
    if paper is None or by_loss or not isinstance(history, list):
        return {}
    reached = [row[1] for row in history if isinstance(row, list) and float(str(row[2])) >= paper[0]]
    return {"seconds_to_printed": reached[0] if reached else None}
