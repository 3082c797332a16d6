"""The image grids of the paper's appendix: the same test images as every model sees them, at m = 10, 100 and 500.

The networks are those of the tables. The pixels are kept in the cells, so that the figures are drawn from these alone.
"""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vlista_core.experiments.base import Cell, Context, Done, Experiment, Figure, identity, number
from vlista_core.experiments.grid import ssim as ssim_text
from vlista_core.experiments.image_models import fit, image_problem
from vlista_core.experiments.images import images_of
from vlista_core.metrics import ssim
from vlista_core.plotting import new_figure
from vlista_core.tables import Table
from vlista_core.tensorfile import Json

DATA = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
MODELS = ("canonical", "wavelet", "lista", "dlista", "a-dlista", "a-dlista-adaptive", "vlista")
MEASUREMENTS = (10, 100, 500)
FIRST = (100, 500, 10)
"""The same, the most important first."""
IMAGES = 6
"""The first of the test set."""


class Reconstructions(Experiment):
    """Pictures, for the eye."""

    name = "reconstructions"
    summary = (
        f"The first {IMAGES} test images of both data sets as each model sees them, at three numbers of measurements."
    )

    def cells(self) -> list[Cell]:
        return [
            {"experiment": self.name, "model": model, "measurements": m, "seed": 0, "data": data}
            for m in FIRST
            for data in DATA
            for model in MODELS
        ]

    def run(self, cell: Cell, context: Context) -> dict[str, Json]:
        (model, m, seed), data = identity(cell), str(cell["data"])
        problem = image_problem(images_of(data, context.data), m, model)
        table: Cell = {"experiment": data, "model": model, "measurements": m, "seed": seed}
        estimator, _ = fit(model, problem, seed, context.weights_of(table))
        batch = problem.sample(IMAGES, seed=seed, split="test")
        estimate = problem.images(estimator.estimate(batch.y, batch.phi, batch.noise_var).signal.detach())
        truth = problem.images(batch.signal)
        values = ssim(estimate, truth)
        return {
            "ssim": round(float(values.mean()), 4),
            "ssim_each": [round(value, 4) for value in values.tolist()],
            "side": list(problem.side),
            "images": [packed(image) for image in estimate],
            "truth": [packed(image) for image in truth],
            "test_samples": IMAGES,
        }

    def tables(self, done: Done) -> list[Table]:
        heading = ("model", *(f"m = {m}" for m in MEASUREMENTS))
        return [
            Table(
                f"{title}: SSIM of the {IMAGES} images that are shown",
                heading,
                tuple((model, *(_ssim_of(done, data, model, m) for m in MEASUREMENTS)) for model in MODELS),
            )
            for data, title in DATA.items()
        ]

    def figures(self, done: Done, folder: Path) -> list[Figure]:
        figures = []
        for data, title in DATA.items():
            for m in MEASUREMENTS:
                cells = [cell for model in MODELS if (cell := _find(done, data, model, m)) is not None]
                if cells:
                    path = folder / f"reconstructions_{data}_m{m}.png"
                    _draw(path, cells, f"{title}: {m} measurements of {_pixels(cells[0])}")
                    caption = "The truth on top; the number under an image is its SSIM."
                    figures.append(Figure(f"{title}: reconstructions from {m} measurements", caption, path))
        return figures


def packed(image: Tensor) -> str:
    """An image in [0, 1] as base64 of its pixels, a byte each: [height, width]."""
    return base64.b64encode((image * 255.0).round().to(torch.uint8).numpy().tobytes()).decode("ascii")


def unpacked(text: str, side: tuple[int, int]) -> np.ndarray:
    """The pixels of `packed`: uint8 [height, width]."""
    return np.frombuffer(base64.b64decode(text), dtype=np.uint8).reshape(side)


def _find(done: Done, data: str, model: str, m: int) -> dict[str, Json] | None:
    found = [cell for cell in done if (cell["data"], cell["model"], cell["measurements"]) == (data, model, m)]
    return found[0] if found else None


def _ssim_of(done: Done, data: str, model: str, m: int) -> str:
    return ssim_text(number(_find(done, data, model, m) or {}, "ssim"))


def _side(cell: dict[str, Json]) -> tuple[int, int]:
    side = cell["side"]
    assert isinstance(side, list)
    return int(str(side[0])), int(str(side[1]))


def _pixels(cell: dict[str, Json]) -> str:
    height, width = _side(cell)
    return f"{height * width:,} pixels"


def _texts(cell: dict[str, Json], key: str) -> list[str]:
    values = cell[key]
    assert isinstance(values, list)
    return [str(value) for value in values]


def _draw(path: Path, cells: Done, title: str) -> None:
    """A row for the truth and one for each cell."""
    side = _side(cells[0])
    rows = [("truth", _texts(cells[0], "truth"), [""] * IMAGES)]
    rows += [(str(cell["model"]), _texts(cell, "images"), _texts(cell, "ssim_each")) for cell in cells]
    columns = len(rows[0][1])
    with new_figure(path, (1.15 * columns + 1.6, 1.3 * len(rows) + 0.5)) as figure:
        grid = figure.subplots(len(rows), columns, squeeze=False)
        for line, (name, images, values) in zip(grid, rows, strict=True):
            for axes, image, value in zip(line, images, values, strict=True):
                axes.imshow(unpacked(image, side), cmap="gray", vmin=0, vmax=255)
                axes.set(xticks=[], yticks=[])
                axes.set_xlabel(value and f"{float(value):.2f}", fontsize=8.5, labelpad=2)
                axes.spines[:].set_visible(False)
            line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=10)
        figure.suptitle(title, fontsize=13)
