"""What a study is: a frozen configuration, the independent cells of work it comes to, and what is shown of their rows."""

import re
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple, cast

import pandas as pd
from pydantic import BaseModel, ConfigDict

from vlista_core.charts import Chart
from vlista_core.plotting import draw_chart
from vlista_core.study.tables import Table
from vlista_core.tensorfile import Json

Cell = dict[str, Json]
"""One independent piece of work: everything its figures depend on (names, settings, seed, digest of the weights)."""
Row = dict[str, Json]
"""What came out of a cell: finite JSON, nested if need be."""
Report = Callable[[float, str], None]
"""Called with the share that is done, 0 to 1, and a few words."""


def silent(share: float, words: str) -> None:
    """A report that nobody reads."""


@dataclass(frozen=True)
class Context:
    """What a cell is given besides its identity; no figure may depend on it."""

    scratch: Path
    """A folder for checkpoints and trained weights. Files called `cell_id` and an ending go when the cell is restarted."""
    report: Report = silent


class Figure(NamedTuple):
    """A picture for the page."""

    title: str
    caption: str
    path: Path
    """Of a PNG in the folder that `Study.figures` was given."""
    chart: Chart | None = None
    """What it was drawn from, for a figure that can be hovered and zoomed; None where it is a picture and no more."""
    on_page: bool = True
    """Whether the page shows it; a table with shades says the same where not."""

    @classmethod
    def drawn(cls, title: str, caption: str, path: Path, chart: Chart) -> "Figure":
        """The picture of a chart, drawn to `path`."""
        draw_chart(chart, path)
        return cls(title, caption, path, chart)


class Study(BaseModel):
    """Cells that run in any order and anywhere, and the tables and figures of those that are done.

    The fields of a subclass are its configuration. A field with `exclude=True` is no part of it: where data lie, say.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str]
    """As in the registry."""
    summary: ClassVar[str]
    """One sentence for lists and for the page."""
    growing: ClassVar[frozenset[str]] = frozenset()
    """Tuple fields that a later run into the same folder may extend."""
    packages: ClassVar[tuple[str, ...]] = ()
    """Packages whose versions are recorded besides those of every study."""

    @abstractmethod
    def cells(self) -> list[Cell]:
        """Every cell, the most important first. It may raise a ValueError for what cannot run, before anything is written."""

    @abstractmethod
    def run(self, cell: Cell, context: Context) -> Row:
        """The figures of one cell, with one torch thread unless the cell is `timed`.

        The keys "recipe", "budget", "seed" and "weights" of the cell or the row are noted in the provenance too.
        """

    @abstractmethod
    def tables(self, frame: pd.DataFrame) -> list[Table]:
        """Tables of the finished cells, the main one first. frame: one line per cell, see `vlista_core.study.frame`."""

    def figures(self, frame: pd.DataFrame, folder: Path) -> list[Figure]:
        """Pictures of the finished cells, drawn into `folder`; none where there is nothing to draw."""
        return []

    def headline(self, frame: pd.DataFrame) -> str:
        """The message in a sentence or two; empty for none."""
        return ""

    def title(self) -> str:
        """The heading of the page or of its section."""
        return self.name

    def explanation(self, frame: pd.DataFrame) -> str:
        """What a reader of the tables must know, for the page."""
        return self.summary

    def cell_id(self, cell: Cell) -> str:
        """A readable name for a cell, unique within the study and fit for a file name."""
        parts = [self.name, *(f"{key}-{value}" for key, value in cell.items() if not isinstance(value, dict | list))]
        return ".".join(re.sub(r"[^\w.+()-]", "_", part) for part in parts)

    def describe(self, cell: Cell, row: Row) -> str:
        """A finished cell in a few words, for the terminal."""
        return "done"

    def timed(self, cell: Cell) -> bool:
        """Whether the cell measures time: it runs last, in the main process, with all threads and nothing beside it."""
        return False

    def afresh(self, cell: Cell) -> bool:
        """Whether the cell runs in the main process, every time: what it depends on (an object of the user) has no identity."""
        return False

    def configuration(self) -> dict[str, Json]:
        """The fields as JSON."""
        return cast(dict[str, Json], self.model_dump(mode="json"))
