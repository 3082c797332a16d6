"""What the paper's experiments share: how their cells are named and told on a terminal, and rows by their keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pydantic import Field

from vlista_core.experiments.published import compared
from vlista_core.study import Cell, Row, Study, Table
from vlista_core.study.tables import decibels

if TYPE_CHECKING:
    import pandas as pd

_IDENTITY = ("model", "measurements", "seed")


class Identity(NamedTuple):
    """What every cell has."""

    model: str
    measurements: int
    seed: int


class Experiment(Study):
    """A study whose cells have a model, a number of measurements and a seed at least."""

    figure: ClassVar[str] = "ssim"
    """The key of a row that is printed first."""
    growing: ClassVar[frozenset[str]] = frozenset({"models"})

    models: tuple[str, ...]
    """In the order of the tables."""
    data: Path | None = Field(default=None, exclude=True)
    """The folder of the data sets; None leaves it to `vlista_core.data`."""

    def cell_id(self, cell: Cell) -> str:
        return cell_name(self.name, cell)

    def describe(self, cell: Cell, row: Row) -> str:
        """The figure, the printed one, how long training took."""
        (model, m, _), value = identity(cell), row[self.figure]
        digits = 1 if self.figure.endswith("_db") else 3
        words = f"{self.figure.replace('_', ' ')} {decibels(value if isinstance(value, float) else None, digits)}"
        if (paper := compared(self.name, model, m)) is not None:
            words += f" (paper {paper[0]:.3f})"
        if isinstance(budget := row.get("budget"), dict):
            words += f", trained in {budget['seconds']:.0f} s"
        if "seconds_to_printed" in row:
            reached = row["seconds_to_printed"]
            words += f", printed figure {'not reached' if reached is None else f'reached after {reached:.0f} s'}"
        return words


def identity(cell: Cell) -> Identity:
    """The model, the number of measurements and the seed of a cell."""
    return Identity(str(cell["model"]), int(str(cell["measurements"])), int(str(cell["seed"])))


def cell_name(experiment: str, cell: Cell) -> str:
    """A name that is unique within all experiments and fit for a file, such as mnist.a-dlista.m100.s0."""
    model, m, seed = identity(cell)
    parts = [experiment, model, f"m{m}", f"s{seed}", *(f"{key}-{cell[key]}" for key in cell if key not in _IDENTITY)]
    return ".".join(re.sub(r"[^\w.+-]", "_", part) for part in parts)


def by_measurements(
    title: str, models: Iterable[str], measurements: Iterable[int], entry: Callable[[str, int], str]
) -> Table:
    """A line for each model and a column for each number of measurements, ascending. entry: (model, m) -> text."""
    columns = sorted(measurements)
    lines = [(model, *(entry(model, m) for m in columns)) for model in models]
    return Table.of(title, ("model", *(f"m = {m}" for m in columns)), lines)


def rows_by(frame: pd.DataFrame, *keys: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The lines of a frame by some of their columns, each as a dict; empty for an empty frame."""
    lines = frame.to_dict("records")
    return {tuple(line[key] for key in keys): {str(key): value for key, value in line.items()} for line in lines}
