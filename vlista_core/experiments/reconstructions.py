"""The image grids of the paper's appendix: the same test images as every model sees them, at m = 10, 100 and 500.

The networks are those of the tables. The pixels are kept in the rows, so that the figures are drawn from these alone.
"""

import base64
import itertools
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from vlista_core.experiments.experiment import by_measurements, cells_of, identity, rows_by
from vlista_core.experiments.images import TITLES, ImageExperiment
from vlista_core.metrics import finite_samples, ssim
from vlista_core.plotting import new_figure
from vlista_core.study import Cell, Context, Figure, Row, Table
from vlista_core.study.measuring import finite
from vlista_core.study.tables import number


class Reconstructions(ImageExperiment):
    """Pictures, for the eye."""

    name: ClassVar[str] = "reconstructions"
    summary: ClassVar[str] = (
        "The first test images of both data sets as each model sees them, at three numbers of measurements."
    )

    models: tuple[str, ...] = ("canonical", "wavelet", "lista", "dlista", "a-dlista", "a-dlista-adaptive", "vlista")
    measurements: tuple[int, ...] = (100, 500, 10)
    """The most important first."""
    images: int = 6
    """The first of the test set."""

    def cells(self) -> list[Cell]:
        return cells_of(seed=[0], measurements=self.measurements, data=TITLES, model=self.models)

    def run(self, cell: Cell, context: Context) -> Row:
        data = str(cell["data"])
        estimator, problem, details = self.fitted(data, data, cell, context)
        batch = problem.sample(self.images, seed=identity(cell)[2], split="test")
        estimate = problem.images(estimator.estimate(batch.y, batch.phi, batch.noise_var).signal.detach())
        truth = problem.images(batch.signal)
        values = ssim(estimate, truth)
        return {
            "ssim": finite(float(values.mean()), 4),
            "ssim_each": [finite(value, 4) for value in values.tolist()],
            "diverged": int((~finite_samples(estimate)).sum()),
            "side": list(problem.side),
            "images": [packed(image) for image in estimate.nan_to_num(0.0, 1.0, 0.0)],
            "truth": [packed(image) for image in truth],
            "test_samples": self.images,
            **{key: details[key] for key in ("recipe", "budget") if key in details},
        }

    def tables(self, frame: pd.DataFrame) -> list[Table]:
        found = rows_by(frame, "data", "model", "measurements")

        def entry(data: str, model: str, m: int) -> str:
            cell = found.get((data, model, m), {})
            return number(cell.get("ssim"), ".3f", diverged=cell.get("diverged"))

        words = f"SSIM of the {self.images} images that are shown"
        tables = {data: f"{title}: {words}" for data, title in TITLES.items()}
        return [by_measurements(tables[data], self.models, self.measurements, partial(entry, data)) for data in tables]

    def figures(self, frame: pd.DataFrame, folder: Path) -> list[Figure]:
        found, figures = rows_by(frame, "data", "measurements", "model"), []
        for data, m in itertools.product(TITLES, sorted(self.measurements)):
            cells = [found[data, m, model] for model in self.models if (data, m, model) in found]
            if cells:
                path, pixels = folder / f"reconstructions_{data}_m{m}.png", int(np.prod(cells[0]["side"]))
                _draw(path, cells, f"{TITLES[data]}: {m} measurements of {pixels:,} pixels")
                caption = "The truth on top; the number under an image is its SSIM."
                figures.append(Figure(f"{TITLES[data]}: reconstructions from {m} measurements", caption, path))
        return figures


def packed(image: Tensor) -> str:
    """An image in [0, 1] as base64 of its pixels, one byte each: [height, width]."""
    return base64.b64encode((image * 255.0).round().to(torch.uint8).numpy().tobytes()).decode("ascii")


def unpacked(text: str, side: tuple[int, int]) -> np.ndarray:
    """The pixels of `packed`: uint8 [height, width]."""
    return np.frombuffer(base64.b64decode(text), dtype=np.uint8).reshape(side)


def _draw(path: Path, cells: list[dict[str, Any]], title: str) -> None:
    """A row for the truth and one for each cell."""
    first = cells[0]
    rows = [("truth", first["truth"], [""] * len(first["truth"]))]
    for cell in cells:
        shown = ["diverged" if value is None else f"{value:.2f}" for value in cell["ssim_each"]]
        rows.append((cell["model"], cell["images"], shown))
    columns = len(first["truth"])
    with new_figure(path, (1.15 * columns + 1.6, 1.3 * len(rows) + 0.5)) as figure:
        grid = figure.subplots(len(rows), columns, squeeze=False)
        for line, (name, images, values) in zip(grid, rows, strict=True):
            for axes, image, value in zip(line, images, values, strict=True):
                axes.imshow(unpacked(image, first["side"]), cmap="gray", vmin=0, vmax=255)
                axes.set(xticks=[], yticks=[])
                axes.set_xlabel(value, fontsize=8.5, labelpad=2)
                axes.spines[:].set_visible(False)
            line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=10)
        figure.suptitle(title, fontsize=13)
