"""What the paper's experiments share: how cells are named and told on a terminal, rows by their keys, what the paper prints."""

import itertools
import json
import re
from collections.abc import Callable, Iterable
from functools import cache, reduce
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
from pydantic import Field

from vlista_core.study import Cell, Row, Study, Table
from vlista_core.study.tables import decibels
from vlista_core.tensorfile import Json

STANDS_FOR = {"a-dlista-adaptive": "a-dlista", "alista-12": "alista", "nalista-12": "nalista"}
"""Models of ours that the paper does not have -> the model of the paper whose figure is shown beside them, marked."""
STRUCK = frozenset(("cifar10-fixed", model, m) for model in ("lista", "a-dlista") for m in (1, 10))
"""(experiment, model, measurements) of printed figures above what a decoder without any structure makes of so few Gaussian
numbers: docs/notes/what-the-image-tables-depend-on.md has the evidence."""


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
        """A name that is unique within all experiments and fit for a file, such as mnist.a-dlista.m100.s0."""
        (model, m, seed), known = identity(cell), ("model", "measurements", "seed")
        parts = [self.name, model, f"m{m}", f"s{seed}", *(f"{key}-{cell[key]}" for key in cell if key not in known)]
        return ".".join(re.sub(r"[^\w.+-]", "_", part) for part in parts)

    def describe(self, cell: Cell, row: Row) -> str:
        """The figure, the printed one, how long training took."""
        (model, m, _), value = identity(cell), row[self.figure]
        digits = 1 if self.figure.endswith("_db") else 3
        diverged = row.get("diverged")
        shown = decibels(
            value if isinstance(value, float) else None,
            digits,
            diverged=diverged if isinstance(diverged, int) else None,
        )
        words = f"{self.figure.replace('_', ' ')} {shown}"
        if (paper := compared(self.name, model, m)) is not None:
            words += f" (paper {paper[0]:.3f})"
        if isinstance(budget := row.get("budget"), dict):
            words += f", trained in {budget['seconds']:.0f} s"
        if "seconds_to_printed" in row:
            reached = row["seconds_to_printed"]
            words += f", printed figure {'not reached' if reached is None else f'reached after {reached:.0f} s'}"
        return words


def cells_of(**values: Iterable[Json]) -> list[Cell]:
    """A cell for each combination of values, those of the last key changing fastest."""
    return [dict(zip(values, each, strict=True)) for each in itertools.product(*values.values())]


def identity(cell: Cell) -> tuple[str, int, int]:
    """The model, the number of measurements and the seed of a cell."""
    return str(cell["model"]), int(str(cell["measurements"])), int(str(cell["seed"]))


def by_measurements(
    title: str, models: Iterable[str], measurements: Iterable[int], entry: Callable[[str, int], str]
) -> Table:
    """A line for each model and a column for each number of measurements, ascending. entry: (model, m) -> text."""
    columns = sorted(measurements)
    lines = [(model, *(entry(model, m) for m in columns)) for model in models]
    return Table.of(title, ("model", *(f"m = {m}" for m in columns)), lines)


def rows_by(frame: pd.DataFrame, *keys: str) -> dict[tuple[Any, ...], dict[Any, Any]]:
    """The lines of a frame by some of their columns, each as a dict; empty for an empty frame."""
    return {tuple(line[key] for key in keys): line for line in frame.to_dict("records")}


def published(*keys: object) -> Any:
    """What the paper prints under some keys of published.json, one per level; None where it prints nothing."""
    return reduce(lambda entry, key: (entry or {}).get(str(key)), keys, _published())


def printed(experiment: str, model: str, measurements: int) -> tuple[float, float] | None:
    """SSIM and its ± in the paper's table of an experiment; None where it prints none."""
    value = published(experiment, model, measurements)
    return None if value is None else (float(value[0]), float(value[1]))


def compared(experiment: str, model: str, measurements: int) -> tuple[float, float] | None:
    """What a model is compared with: its own printed figure, or that of the model it `STANDS_FOR`."""
    return printed(experiment, STANDS_FOR.get(model, model), measurements)


def struck(experiment: str, model: str, measurements: int) -> bool:
    """Whether what a model is compared with is one of the printed figures that are out of reach."""
    return (experiment, STANDS_FOR.get(model, model), measurements) in STRUCK


@cache
def _published() -> Any:
    return json.loads(files(__package__).joinpath("published.json").read_text(encoding="utf-8"))
