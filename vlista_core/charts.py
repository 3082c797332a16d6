"""Charts as numbers: what a picture for print and a figure of a page that can be hovered and zoomed are both drawn from."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from vlista_core.tensorfile import Json

Dashes = tuple[int, tuple[float, ...]]
"""Offset, then lengths of dashes and gaps in line widths, as Matplotlib takes them."""
DOTTED: Dashes = (0, (1, 1))
MIXED: Dashes = (0, (4, 1, 1, 1))
PRINTED: Dashes = (0, (5, 3))
"""Of figures that others have printed."""
Point = tuple[float, float]


@dataclass(frozen=True)
class Look:
    """How a curve is drawn: told from the others without colour too."""

    colour: str
    marker: str
    line: str | Dashes = "-"
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


@dataclass(frozen=True)
class Series:
    """A curve, or the mark of one estimator in a chart of marks."""

    label: str
    look: Look
    points: Sequence[Point]
    """(x, y), finite, by ascending x."""
    interval: Sequence[Point] = ()
    """(low, high) of every point; empty for none."""
    bound: bool = False
    """Whether it is a limit, which no estimator is asked to reach. In a chart of marks it is a line across."""
    printed: bool = False
    """Whether others have printed it: pale, dashed, hollow marks, no label at its end."""
    every: int = 1
    """One mark per so many points."""


class Panel(NamedTuple):
    """One pair of axes."""

    title: str
    series: Sequence[Series]
    limits: Point | None = None
    """(bottom, top) of what is shown; None for all there is."""


class Axis(NamedTuple):
    """What an axis says."""

    label: str
    ticks: Sequence[float] = ()
    """Empty for ticks that a program chooses."""
    logarithmic: bool = False
    limits: Point | None = None


@dataclass(frozen=True)
class Chart:
    """Panels that share their axes' labels and their estimators."""

    title: str
    x: Axis
    y: Axis
    panels: Sequence[Panel]
    columns: int = 0
    """Panels side by side; 0 for all."""
    marks: bool = False
    """Whether a series is one mark with its name beside it, not a curve."""
    level: float | None = None
    """Of a thin line across, for comparison."""
    band: Point | None = None
    """(bottom, top) of a grey band across: where figures count as right."""
    first: Sequence[str] = ()
    """Labels of the series that a page shows to begin with; empty for all."""
    size: Point | None = None
    """Of the printed picture in inches; None for one that suits the panels."""

    def across(self) -> int:
        """Panels side by side."""
        return self.columns or max(1, len(self.panels))

    def as_json(self) -> dict[str, Json]:
        """Everything a page needs to draw it."""
        return {
            "title": self.title, "x": _axis(self.x), "y": _axis(self.y), "marks": self.marks,
            "columns": self.across(), "level": self.level,
            "band": None if self.band is None else list(self.band), "first": list(self.first),
            "panels": [
                {"title": panel.title, "limits": None if panel.limits is None else list(panel.limits),
                 "series": [_series(each) for each in panel.series]}
                for panel in self.panels
            ],
        }  # fmt: skip


def best_and_bounds(ranked: Iterable[Series], count: int = 3) -> tuple[str, ...]:
    """Labels of the best `count` series and of all bounds. ranked: best first."""
    ranked = list(ranked)
    best = islice((each.label for each in ranked if not (each.bound or each.printed)), count)
    return (*dict.fromkeys(best), *dict.fromkeys(each.label for each in ranked if each.bound))


def _axis(axis: Axis) -> dict[str, Json]:
    limits: Json = None if axis.limits is None else list(axis.limits)
    return {"label": axis.label, "ticks": list(axis.ticks), "log": axis.logarithmic, "limits": limits}


def _series(series: Series) -> dict[str, Json]:
    look = series.look
    dashes = (PRINTED if series.printed else look.line)[1] if series.printed or not isinstance(look.line, str) else ()
    return {
        "label": series.label, "colour": look.colour, "marker": look.marker, "width": look.width, "size": look.size,
        "dashes": [float(length) for length in dashes], "bound": series.bound, "printed": series.printed,
        "every": series.every, "points": [[_short(x), _short(y)] for x, y in series.points],
        "interval": [[_short(low), _short(high)] for low, high in series.interval],
    }  # fmt: skip


def _short(value: float) -> float:
    """Six significant digits: more than a screen shows."""
    return float(f"{value:.6g}")
