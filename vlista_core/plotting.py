"""Figures in the style of the house: readable in grey, a name at the end of each curve, saved whole or not at all."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vlista_core.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DOTTED, MIXED = (0, (1, 1)), (0, (4, 1, 1, 1))
_LINE_HEIGHT = 1.25
"""Of a label, in font sizes."""


@dataclass(frozen=True)
class Look:
    """How a curve is drawn: told from the others without colour too."""

    colour: str
    marker: str
    line: str | tuple[int, tuple[float, ...]] = "-"
    strong: bool = False

    @property
    def width(self) -> float:
        return 2.6 if self.strong else 1.1

    @property
    def size(self) -> float:
        """Of the marker on a curve; a star looks smaller than it is."""
        return 11.0 if self.marker == "*" else 7.0 if self.strong else 5.0

    @property
    def weight(self) -> str:
        return "bold" if self.strong else "normal"


def label_ends(figure: "Figure", axes: "Axes", ends: list[tuple[float, str, Look]], *, rows: int = 1) -> None:
    """A name at the right end of each curve, pushed apart where they would overlap, with a thin line to the curve.

    rows: of panels that share the height of the figure.
    """
    low, high = axes.get_ylim()
    size = 9.5 if len(ends) <= 16 else 8.5
    height = 0.78 * figure.get_size_inches()[1] * 72 / rows
    spacing = (high - low) * _LINE_HEIGHT * size / height
    ends = sorted(((max(low, min(end[0], high)), *end[1:]) for end in ends), key=lambda end: end[0])
    places = apart([level for level, _, _ in ends], spacing, low, high)
    for (level, label, look), place in zip(ends, places, strict=True):
        axes.annotate(
            label, xy=(1.0, level), xytext=(1.06, place), xycoords=("axes fraction", "data"),
            textcoords=("axes fraction", "data"), va="center", fontsize=size, color=look.colour, weight=look.weight,
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": look.colour, "lw": 0.6, "shrinkA": 1, "shrinkB": 0, "relpos": (0, 0.5)},
        )  # fmt: skip


def apart(places: list[float], spacing: float, low: float, high: float) -> list[float]:
    """Ascending places moved as little as may be so that neighbours are `spacing` apart, within [low, high].

    Each group of labels that touch is centred on the mean of where its members want to be: isotonic regression of what is
    left of the places once each label has the room that those below it need.
    """
    from scipy.optimize import isotonic_regression

    room = spacing * np.arange(len(places))
    first = isotonic_regression(np.asarray(places) - room).x if places else room
    return [float(place) for place in np.maximum(low, np.minimum(first, high - room[-1:])) + room]


@contextmanager
def new_figure(path: Path, size: tuple[float, float]) -> "Iterator[Figure]":
    """A figure in the style of the house that is saved to `path`, whole or not at all."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as NewFigure

    with rc_context({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 12}):
        figure = NewFigure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        yield figure
        with replacing(path) as partial:
            figure.savefig(partial, dpi=160)
