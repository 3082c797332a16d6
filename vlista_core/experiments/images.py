"""The paper's four image tables: SSIM on MNIST and CIFAR-10, with a Φ for each image and with one Φ for all."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from vlista_core.data.image_problem import ImageProblem
from vlista_core.data.image_set import ImageData
from vlista_core.data.images import load_images
from vlista_core.estimate import Estimator
from vlista_core.experiments.curves import Curve, draw_panels
from vlista_core.experiments.experiment import Experiment, by_measurements, identity
from vlista_core.experiments.image_models import fit, image_problem
from vlista_core.experiments.published import STANDS_FOR, compared, printed
from vlista_core.experiments.recipes import estimate_test_draws
from vlista_core.metrics import nmse_db, psnr_db, ssim
from vlista_core.models import VLISTA
from vlista_core.problems import Batch
from vlista_core.study import Cell, Context, Figure, Row, Table
from vlista_core.study.tables import missing, number, signed

if TYPE_CHECKING:
    import pandas as pd


class ImageTable(Experiment):
    """One of the paper's tables: SSIM of test images by model and number of measurements, ours beside what it prints."""

    growing: ClassVar[frozenset[str]] = frozenset({"models", "measurements"})
    heading: ClassVar[str]
    """Of its tables and figures."""
    images: ClassVar[str]
    """The data set."""
    fixed: ClassVar[bool] = False
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

    def cells(self) -> list[Cell]:
        """Seed by seed, number of measurements by number of measurements, all models of each together."""
        return [
            {"model": model, "measurements": m, "seed": seed}
            for seed in range(self.seeds)
            for m in self.measurements
            if seed < self._seeds_at(m)
            for model in self.models
        ]

    def run(self, cell: Cell, context: Context) -> Row:
        model, m, seed = identity(cell)
        problem = image_problem(
            images_of(self.images, self.data), m, model, fixed_phi_seed=seed if self.fixed else None
        )
        estimator, details = fit(model, problem, seed, context.scratch / f"{self.cell_id(cell)}.safetensors")
        found = measure(estimator, problem, seed, self.test_images_bcs if model == "bcs" else self.test_images)
        return {**found, **details, **_time_to_printed(details, compared(self.name, model, m))}

    def tables(self, frame: pd.DataFrame) -> list[Table]:
        others = [f"† printed for {STANDS_FOR[model]}" for model in self.models if model in STANDS_FOR]
        note = f" ({', '.join(others)})" if others else ""

        def pair(model: str, m: int) -> str:
            paper, ours = compared(self.name, model, m), _mean(_of(frame, model, m), "ssim")
            return f"{number(ours, '.3f')} ({number(paper and paper[0], '.3f')}{_mark(model)})"

        tables = [by_measurements(f"{self.heading}: SSIM, ours (paper's){note}", self.models, self.measurements, pair)]
        heading = ("model", "ours", "paper", "difference", "seeds", "spread", "test images", "training (s)")
        for m in sorted(self.measurements):
            lines = [self._line(frame, model, m) for model in self.models]
            tables.append(Table.of(f"{self.heading}, m = {m}: SSIM{note}", heading, lines))
        return tables

    def figures(self, frame: pd.DataFrame, folder: Path) -> list[Figure]:
        columns, curves = sorted(self.measurements), []
        for model in self.models:
            means = [(float(m), _mean(_of(frame, model, m), "ssim")) for m in columns]
            ours = [(m, mean) for m, mean in means if mean is not None]
            paper = [(float(m), found[0]) for m in columns if (found := printed(self.name, model, m))]
            curves += [Curve(model, ours)] if ours else []
            curves += [Curve(model, paper, printed=True)] if paper and ours else []
        if not curves:
            return []
        path = folder / f"{self.name}.png"
        draw_panels(
            path, {"": curves}, title=f"{self.heading}: SSIM of test images", x_label="measurements m",
            y_label="SSIM", x_ticks=[float(m) for m in columns], log_x=True,
        )  # fmt: skip
        caption = (
            "Filled marks: ours, mean over the test images and the seeds. Hollow marks, dashed: printed in the paper."
        )
        return [Figure(f"{self.heading}: SSIM by number of measurements", caption, path)]

    def _seeds_at(self, m: int) -> int:
        return self.seeds if m == self.repeated else 1

    def _line(self, frame: pd.DataFrame, model: str, m: int) -> tuple[str, ...]:
        found, paper = _of(frame, model, m), compared(self.name, model, m)
        mean = _mean(found, "ssim")
        values = sorted(found["ssim"]) if len(found) else []
        return (
            model,
            _with_error(mean, _mean(found, "ssim_error")),
            f"{_with_error(*paper)}{_mark(model)}" if paper else "–",
            signed(mean - paper[0], 3) if mean is not None and paper else "–",
            f"{len(found)} of {self._seeds_at(m)}",
            f"{values[0]:.3f} … {values[-1]:.3f}" if len(values) > 1 else "–",
            ", ".join(sorted({f"{count:,.0f}" for count in found["test_samples"]})) if len(found) else "–",
            number(_mean(found, "budget.seconds"), ".0f"),
        )


class Mnist(ImageTable):
    """MNIST with a Φ for each image."""

    name: ClassVar[str] = "mnist"
    summary: ClassVar[str] = "SSIM of MNIST test images, a Φ for each."
    heading: ClassVar[str] = "MNIST, a Φ for each image"
    images: ClassVar[str] = "mnist"


class Cifar10(ImageTable):
    """CIFAR-10 with a Φ for each image."""

    name: ClassVar[str] = "cifar10"
    summary: ClassVar[str] = "SSIM of CIFAR-10 test images, a Φ for each."
    heading: ClassVar[str] = "CIFAR-10, a Φ for each image"
    images: ClassVar[str] = "cifar10"


class MnistFixed(ImageTable):
    """MNIST with one Φ for all images."""

    name: ClassVar[str] = "mnist-fixed"
    summary: ClassVar[str] = "SSIM of MNIST test images, one Φ for all."
    heading: ClassVar[str] = "MNIST, one Φ for all images"
    images: ClassVar[str] = "mnist"
    fixed: ClassVar[bool] = True

    models: tuple[str, ...] = ("lista", "alista", "nalista", "a-dlista")


class Cifar10Fixed(MnistFixed):
    """CIFAR-10 with one Φ for all images."""

    name: ClassVar[str] = "cifar10-fixed"
    summary: ClassVar[str] = "SSIM of CIFAR-10 test images, one Φ for all."
    heading: ClassVar[str] = "CIFAR-10, one Φ for all images"
    images: ClassVar[str] = "cifar10"


@cache
def images_of(name: str, folder: Path | None) -> ImageData:
    """The data set, loaded once per process."""
    return load_images(name, folder)


def measure(estimator: Estimator, problem: ImageProblem, seed: int, count: int) -> Row:
    """SSIM on the first `count` test images, its standard error, and PSNR and NMSE of the same estimates."""
    images, truth = map(problem.images, estimate_test_draws(estimator, problem, seed, count, 50))
    values = ssim(images, truth)
    return {
        "ssim": round(float(values.mean()), 4),
        "ssim_error": round(float(values.std() / count**0.5), 4),
        "psnr_db": round(float(psnr_db(images, truth).clamp_max(100.0).mean()), 2),
        "nmse_db": round(nmse_db(images.flatten(1), truth.flatten(1)), 2),
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


def _of(frame: pd.DataFrame, model: str, m: int) -> pd.DataFrame:
    """The seeds of one place of the table."""
    return frame if frame.empty else frame[(frame["model"] == model) & (frame["measurements"] == m)]


def _mean(found: pd.DataFrame, key: str) -> float | None:
    """Of a column where it has values."""
    mean = float(found[key].astype(float).mean()) if key in found.columns else None
    return None if missing(mean) else mean


def _with_error(mean: float | None, error: float | None) -> str:
    return number(mean, ".3f") if mean is None or error is None else f"{mean:.3f} ± {error:.3f}"


def _mark(model: str) -> str:
    return "†" if model in STANDS_FOR else ""
