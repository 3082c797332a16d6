"""The image grids of the paper's appendix: the same test images as every model sees them, at m = 10, 100 and 500.

The networks are those of the tables. The pixels are kept in the rows, so that the figures are drawn from these alone.
"""

import base64
import itertools
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from vlista_core.data.image_problem import ImageProblem
from vlista_core.estimate import Estimator
from vlista_core.experiments.experiment import by_measurements, identity
from vlista_core.experiments.images import SIZES, TITLES, ImageExperiment, estimate_with_variance
from vlista_core.experiments.recipes import estimate_test_draws
from vlista_core.metrics import finite_samples, ssim
from vlista_core.models import VLISTA
from vlista_core.plotting import new_figure
from vlista_core.study import Cell, Context, Figure, Row, Table
from vlista_core.study.measuring import finite
from vlista_core.study.tables import number
from vlista_core.tensorfile import Json

_DRAWS, _LEAST = 50, 1e-12
"""Draws of VLISTA's dictionaries for a map of its doubt, and the least deviation that is divided by."""


class Reconstructions(ImageExperiment):
    """Pictures, for the eye."""

    name: ClassVar[str] = "reconstructions"
    summary: ClassVar[str] = (
        "The first test images of both data sets as each model sees them, at three numbers of measurements."
    )

    at_half_size: ClassVar[dict[str, Any]] = {"measurements": (25, 125, 10)}

    models: tuple[str, ...] = (
        "canonical", "wavelet", "spca", "lista", "dlista", "a-dlista", "a-dlista-adaptive", "vlista", "vlista-anchored",
    )  # fmt: skip
    measurements: tuple[int, ...] = (100, 500, 10)
    """The most important first."""
    images: int = 6
    """The first of the test set."""

    def cells(self) -> list[Cell]:
        return self.model_cells(seed=[0], measurements=self.measurements, data=TITLES)

    def run(self, cell: Cell, context: Context) -> Row:
        data = str(cell["data"])
        estimator, problem, details = self.fitted(data, data, cell, context)
        seed = identity(cell)[2]
        signal, true = estimate_test_draws(estimator, problem, seed, self.images, self.images)
        estimate, truth = problem.images(signal), problem.images(true)
        values = ssim(estimate, truth)
        return {
            "ssim": finite(float(values.mean()), 4),
            "ssim_each": [finite(value, 4) for value in values.tolist()],
            "diverged": int((~finite_samples(estimate)).sum()),
            "side": list(problem.side),
            "images": [packed(image) for image in estimate.nan_to_num(0.0, 1.0, 0.0)],
            "truth": [packed(image) for image in truth],
            "test_samples": self.images,
            **self._doubt(estimator, problem, seed),
            **{key: details[key] for key in ("training", "budget") if key in details},
        }

    def _doubt(self, estimator: Estimator, problem: ImageProblem, seed: int) -> Row:
        """The deviation of VLISTA's reconstructions, pixel by pixel, in units of the largest one of an image."""
        if not isinstance(estimator, VLISTA):
            return {}
        batch = problem.sample(self.images, seed=seed, split="test")
        deviation = estimate_with_variance(estimator, batch, _DRAWS).doubt.sqrt().reshape(-1, *problem.side)
        peaks = deviation.amax((1, 2))
        maps: list[Json] = [packed(image) for image in deviation / peaks.clamp_min(_LEAST)[:, None, None]]
        return {"deviations": maps, "largest_deviations": [finite(peak, 4) for peak in peaks.tolist()]}

    def tables(self, frame: pd.DataFrame) -> list[Table]:
        found = _by_row(frame)

        def entry(data: str, row: str, m: int) -> str:
            cell = found.get((data, m, row), {})
            return number(cell.get("ssim"), ".3f", diverged=cell.get("diverged"))

        words = f"SSIM of the {self.images} images that are shown"
        tables = {data: f"{title}{SIZES[self.size]}: {words}" for data, title in TITLES.items()}
        return [by_measurements(tables[data], self._rows, self.measurements, partial(entry, data)) for data in tables]

    @property
    def _rows(self) -> list[str]:
        """What the rows of tables and figures are called."""
        return list(dict.fromkeys(_called(cell) for cell in self.cells()))

    def figures(self, frame: pd.DataFrame, folder: Path) -> list[Figure]:
        found, figures = _by_row(frame), []
        for data, m in itertools.product(TITLES, sorted(self.measurements)):
            cells = [found[data, m, row] for row in self._rows if (data, m, row) in found]
            if cells:
                path, pixels = folder / f"reconstructions_{data}_m{m}.png", int(np.prod(cells[0]["side"]))
                _draw(path, cells, f"{TITLES[data]}: {m} measurements of {pixels:,} pixels")
                caption = (
                    "The truth on top; the number under an image is its SSIM. Below VLISTA's images the deviation of its "
                    "reconstructions, bright where they disagree, with the largest one in units of a pixel's range."
                )
                figures.append(Figure(f"{TITLES[data]}: reconstructions from {m} measurements", caption, path))
        return figures


def _called(cell: Mapping[Any, Any]) -> str:
    """The model, with its recipe where it has one."""
    recipe = cell.get("recipe")
    return f"{cell['model']}, {recipe}" if isinstance(recipe, str) else str(cell["model"])


def _by_row(frame: pd.DataFrame) -> dict[tuple[str, int, str], dict[Any, Any]]:
    """(data set, measurements, what a row is called) -> a line of the frame."""
    return {(line["data"], line["measurements"], _called(line)): line for line in frame.to_dict("records")}


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
        rows.append((_called(cell), cell["images"], shown))
        if isinstance(maps := cell.get("deviations"), list):
            rows.append(("deviation", maps, [f"{peak:.2f}" for peak in cell["largest_deviations"]]))
    columns = len(first["truth"])
    with new_figure(path, (1.15 * columns + 2.2, 1.3 * len(rows) + 0.5)) as figure:
        grid = figure.subplots(len(rows), columns, squeeze=False)
        for line, (name, images, values) in zip(grid, rows, strict=True):
            for axes, image, value in zip(line, images, values, strict=True):
                axes.imshow(unpacked(image, first["side"]), cmap="gray", vmin=0, vmax=255)
                axes.set(xticks=[], yticks=[])
                axes.set_xlabel(value, fontsize=8.5, labelpad=2)
                axes.spines[:].set_visible(False)
            line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=10)
        figure.suptitle(title, fontsize=13)
