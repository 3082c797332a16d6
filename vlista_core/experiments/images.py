"""The paper's four image tables: SSIM on MNIST and CIFAR-10, with a Φ for each image and with one Φ for all."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from vlista_core.data.image_problem import ImageProblem
from vlista_core.data.image_set import ImageData
from vlista_core.data.images import load_images
from vlista_core.estimate import Estimator
from vlista_core.experiments.base import Cell, Context, identity
from vlista_core.experiments.grid import TableExperiment
from vlista_core.experiments.image_models import fit, image_problem
from vlista_core.experiments.published import compared
from vlista_core.metrics import nmse_db, psnr_db, ssim
from vlista_core.models import VLISTA
from vlista_core.problems import Batch
from vlista_core.tensorfile import Json

TEST_IMAGES = 1000
TEST_IMAGES_BCS = 200
"""BCS inverts a matrix for every sample and step."""
_BATCH = 50
_TITLES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
_VARYING = (
    "canonical",
    "wavelet",
    "spca",
    "lista",
    "dlista",
    "a-dlista",
    "a-dlista-adaptive",
    "bcs",
    "vlista",
    "lmmse",
)
_FIXED = ("lista", "alista", "nalista", "a-dlista")


class ImageTable(TableExperiment):
    """SSIM of test images by model and number of measurements."""

    def __init__(self, data: str, *, fixed: bool) -> None:
        self.data, self.fixed = data, fixed
        self.name = f"{data}-fixed" if fixed else data
        self.title = f"{_TITLES[data]}, {'one Φ for all images' if fixed else 'a Φ for each image'}"
        self.summary = f"SSIM of {_TITLES[data]} test images, {'one Φ for all' if fixed else 'a Φ for each'}."
        self.models = _FIXED if fixed else _VARYING

    def run(self, cell: Cell, context: Context) -> dict[str, Json]:
        model, measurements, seed = identity(cell)
        problem = image_problem(
            images_of(self.data, context.data), measurements, model, fixed_phi_seed=seed if self.fixed else None
        )
        estimator, details = fit(model, problem, seed, context.weights_of(cell))
        found = measure(estimator, problem, seed, TEST_IMAGES_BCS if model == "bcs" else TEST_IMAGES)
        return {**found, **details, **_time_to_printed(details, compared(self.name, model, measurements))}


def mnist() -> ImageTable:
    return ImageTable("mnist", fixed=False)


def cifar10() -> ImageTable:
    return ImageTable("cifar10", fixed=False)


def mnist_fixed() -> ImageTable:
    return ImageTable("mnist", fixed=True)


def cifar10_fixed() -> ImageTable:
    return ImageTable("cifar10", fixed=True)


@cache
def images_of(name: str, folder: Path | None) -> ImageData:
    """The data set, loaded once a process."""
    return load_images(name, folder)


def measure(estimator: Estimator, problem: ImageProblem, seed: int, count: int) -> dict[str, Json]:
    """SSIM on the first `count` test images, its standard error, and PSNR and NMSE of the same estimates."""
    estimates, signals = [], []
    for start in range(0, count, _BATCH):
        batch = problem.sample(min(_BATCH, count - start), seed=seed, split="test", start=start)
        estimates.append(estimator.estimate(batch.y, batch.phi, batch.noise_var).signal)
        signals.append(batch.signal)
    images, truth = problem.images(torch.cat(estimates)), problem.images(torch.cat(signals))
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


def _time_to_printed(details: dict[str, Json], paper: tuple[float, float] | None) -> dict[str, Json]:
    """Seconds from the start until a validation reached the printed figure; None where none did."""
    history = details.get("history")
    if paper is None or not isinstance(history, list):
        return {}
    reached = [row[1] for row in history if isinstance(row, list) and float(str(row[2])) >= paper[0]]
    return {"seconds_to_printed": reached[0] if reached else None}
