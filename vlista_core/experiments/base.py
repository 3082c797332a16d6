"""What an experiment is: independent cells of work, each a function of its identity, and tables and figures of what is done."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast

from vlista_core.tables import Table
from vlista_core.tensorfile import Json

Cell = dict[str, Json]
"""Which cell: "experiment", "model", "measurements" and "seed" at least, and what else tells it from the others."""
IDENTITY = ("experiment", "model", "measurements", "seed")

Done = list[dict[str, Json]]
"""Finished cells, each with its identity, its result and "seconds" in one."""


def _silent(share: float, words: str) -> None:
    """A report that nobody reads."""


@dataclass(frozen=True)
class Context:
    """What a cell is given besides its identity; no figure may depend on it."""

    data: Path | None
    """The folder of the data sets; None leaves it to `vlista_core.data`."""
    weights: Path
    """A folder for checkpoints and trained weights; name them by `cell_id`."""
    report: Callable[[float, str], None] = _silent
    """Called with the share done, 0 to 1, and a few words."""

    def weights_of(self, cell: Cell) -> Path:
        """The file for the trained network of a cell."""
        return self.weights / f"{cell_id(cell)}.safetensors"


class Figure(NamedTuple):
    """A picture for the report."""

    title: str
    caption: str
    path: Path
    """Of a PNG in the folder that `Experiment.figures` was given."""


class Experiment(ABC):
    """Cells that can be run in any order and anywhere, and what is shown of those that are done."""

    name: str
    summary: str
    """A line for the list and the report."""
    figure: str = "ssim"
    """The key of a result that is printed first: "ssim", "nmse_db" or one of the experiment's own."""
    timed: bool = False
    """Cells that measure time: they run last, in the main process, with all threads and nothing beside them."""

    @abstractmethod
    def cells(self) -> list[Cell]:
        """Every cell of the full experiment, the most important first."""

    @abstractmethod
    def run(self, cell: Cell, context: Context) -> dict[str, Json]:
        """The result of a cell: `figure` and "test_samples" at least, finite JSON throughout.

        It runs with one torch thread, so that the figures depend on the cell alone. Where a network is trained,
        "train_seconds" and "seconds_to_printed" (None if the printed figure was not reached) are shown as well.
        """

    @abstractmethod
    def tables(self, done: Done) -> list[Table]:
        """Tables of the finished cells; what is missing is printed as "–"."""

    def figures(self, done: Done, folder: Path) -> list[Figure]:
        """Pictures of the finished cells, drawn into `folder`; none where there is nothing to draw."""
        return []


class Identity(NamedTuple):
    """What every cell has besides its experiment."""

    model: str
    measurements: int
    seed: int


def identity(cell: Cell) -> Identity:
    """The model, the number of measurements and the seed of a cell."""
    return Identity(str(cell["model"]), int(str(cell["measurements"])), int(str(cell["seed"])))


def cell_id(cell: Cell) -> str:
    """A readable name, unique within all experiments and fit for a file, such as mnist.a-dlista.m100.s0."""
    parts = [str(cell["experiment"]), str(cell["model"]), f"m{cell['measurements']}", f"s{cell['seed']}"]
    parts += [f"{key}-{value}" for key, value in cell.items() if key not in IDENTITY]
    return ".".join(re.sub(r"[^\w.+-]", "_", part) for part in parts)


def number(done: dict[str, Json], key: str) -> float | None:
    """A figure of a finished cell; None where it has none."""
    value = done.get(key)
    return None if value is None else float(cast(float, value))
