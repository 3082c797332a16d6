"""Figures in the style of the house: readable in grey, a name at the end of each curve, saved whole or not at all."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vlista_core.charts import PRINTED, Axis, Chart, Look, Panel, Series
from vlista_core.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LINE_HEIGHT = 1.25
"""Of a label, in font sizes."""
_GREY = "#777777"


def draw_chart(chart: Chart, path: Path) -> None:
    """A picture of a chart: all its series, each with its name."""
    columns = chart.across()
    rows = math.ceil(len(chart.panels) / columns)
    wide, tall = 8.6 if columns == 1 else 5.4 * columns + 0.5, 6.2 if rows == 1 else 3.8 * rows
    with new_figure(path, chart.size or (wide, tall)) as figure:
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes, panel in zip(grid, chart.panels, strict=False):
            _draw_panel(figure, axes, chart, panel, rows)
        for number, axes in enumerate(grid[: len(chart.panels)]):
            axes.set_ylabel(chart.y.label if number % columns == 0 else "")
            axes.set_xlabel(chart.x.label if number + columns >= len(chart.panels) else "")
        for axes in grid[len(chart.panels) :]:
            axes.set_axis_off()
        figure.suptitle(chart.title, fontsize=13)


def _draw_panel(figure: "Figure", axes: "Axes", chart: Chart, panel: Panel, rows: int) -> None:
    """The series of a panel, its axes and its labels."""
    if chart.band is not None:
        axes.axhspan(*chart.band, color="#000000", alpha=0.07, lw=0)
    if chart.level is not None:
        axes.axhline(chart.level, color=_GREY, lw=0.8, ls=":")
    for series in panel.series:
        if chart.marks and series.bound:
            axes.axhline(series.points[0][1], color=series.look.colour, ls=series.look.line, lw=1.2)
        elif chart.marks:
            axes.plot(
                *series.points[0], series.look.marker, color=series.look.colour, ms=1.4 * series.look.size, zorder=3
            )
        else:
            _draw_curve(axes, series)
    axes.set_title(panel.title)
    axes.grid(alpha=0.25)
    for axis, letter in ((chart.x, "x"), (chart.y, "y")):
        _set_axis(axes, axis, letter)
    if panel.limits is not None:
        axes.set_ylim(*panel.limits)
    named = [series for series in panel.series if not series.printed and (series.bound or not chart.marks)]
    label_ends(figure, axes, [(series.points[-1][1], series.label, series.look) for series in named], rows=rows)
    if chart.marks:
        _label_marks(figure, axes, panel.series)


def _draw_curve(axes: "Axes", series: Series) -> None:
    """A line with its marks, over its interval where it has one."""
    look = series.look
    marker = look.marker or ("_" if len(series.points) == 1 else "")
    style: dict[str, Any] = {"ls": look.line, "lw": look.width, "zorder": 3 if look.strong else 2}
    if series.printed:
        style = {"ls": PRINTED, "lw": 0.8, "zorder": 1, "mfc": "white", "alpha": 0.75}
    places, levels = zip(*series.points, strict=True)
    axes.plot(places, levels, color=look.colour, marker=marker, ms=look.size, markevery=series.every, **style)
    if series.interval:
        low, high = zip(*series.interval, strict=True)
        axes.fill_between(places, low, high, color=look.colour, alpha=0.08, lw=0)


def _set_axis(axes: "Axes", axis: Axis, letter: str) -> None:
    """The scale of the axis "x" or "y", its limits and ticks."""
    shown = axes.xaxis if letter == "x" else axes.yaxis
    if axis.logarithmic:
        axes.set(**{f"{letter}scale": "log"})
        shown.set_major_formatter(lambda value, _: f"{value:g}")
    if axis.ticks:
        shown.set_ticks(list(axis.ticks), [f"{tick:g}".replace("-", "−") for tick in axis.ticks])
        axes.minorticks_off()
    if axis.limits is not None:
        axes.set(**{f"{letter}lim": axis.limits})


def label_ends(figure: "Figure", axes: "Axes", ends: list[tuple[float, str, Look]], *, rows: int = 1) -> None:
    """A name at the right end of each curve, pushed apart where they would overlap, with a thin line to the curve.

    rows: of panels that share the height of the figure.
    """
    logarithmic = axes.get_yscale() == "log"
    low, high = (math.log10(end) if logarithmic else end for end in axes.get_ylim())
    size = 9.5 if len(ends) <= 16 else 8.5
    height = 0.78 * figure.get_size_inches()[1] * 72 / rows
    spacing = (high - low) * _LINE_HEIGHT * size / height
    levels = [math.log10(level) if logarithmic else level for level, _, _ in ends]
    kept = [(max(low, min(level, high)), end[1], end[2]) for level, end in zip(levels, ends, strict=True)]
    kept.sort(key=lambda end: end[0])
    places = apart([level for level, _, _ in kept], spacing, low, high)
    for (level, label, look), place in zip(kept, places, strict=True):
        at, beside = (10**level, 10**place) if logarithmic else (level, place)
        axes.annotate(
            label, xy=(1.0, at), xytext=(1.06, beside), xycoords=("axes fraction", "data"),
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


_SIDES = (
    (9, 0, "left"), (-9, 0, "right"), (0, 11, "center"), (0, -12, "center"), (7, 9, "left"), (7, -9, "left"),
    (-7, 9, "right"), (-7, -9, "right"), (8, 18, "left"), (8, -18, "left"), (-8, 18, "right"), (-8, -18, "right"),
)  # fmt: skip
"""Where the name of a mark may stand: points to the right and up, and which end of it is there."""
_DISTANCE_COST = 20.0
"""Square pixels of overlap that a label may have to be one point nearer to its mark."""


def _label_marks(figure: "Figure", axes: "Axes", series: Sequence[Series]) -> None:
    """A name beside each mark, on the side where it meets the least of other marks, names and lines across."""
    figure.draw_without_rendering()
    pixel = figure.dpi / 72
    named = [each for each in series if not each.bound]
    marks = [axes.transData.transform(each.points[0]) for each in named]
    taken = [(x - 6 * pixel, y - 6 * pixel, x + 6 * pixel, y + 6 * pixel) for x, y in marks]
    across = axes.get_window_extent()
    for each in series:
        if each.bound and named:
            height = axes.transData.transform((named[0].points[0][0], each.points[0][1]))[1]
            taken.append((across.x0, height - 3 * pixel, across.x1, height + 3 * pixel))
    for each, mark in zip(named, marks, strict=True):
        wide, tall = len(each.label) * 6.2 * pixel, 12 * pixel
        boxes = []
        for right, up, align in _SIDES:
            left = mark[0] + right * pixel - {"left": 0.0, "center": wide / 2, "right": wide}[align]
            middle = mark[1] + up * pixel
            boxes.append((left, middle - tall / 2, left + wide, middle + tall / 2))
        far = [_DISTANCE_COST * (abs(right) + abs(up)) for right, up, _ in _SIDES]
        costs = [cost + sum(_overlap(box, other) for other in taken) for cost, box in zip(far, boxes, strict=True)]
        best = costs.index(min(costs))
        taken.append(boxes[best])
        right, up, align = _SIDES[best]
        axes.annotate(
            each.label, each.points[0], (right, up), textcoords="offset points", ha=align, va="center", fontsize=9.5,
            color=each.look.colour, weight=each.look.weight,
        )  # fmt: skip


def _overlap(one: tuple[float, ...], two: tuple[float, ...]) -> float:
    """Area that two boxes (left, bottom, right, top) share."""
    across, up = min(one[2], two[2]) - max(one[0], two[0]), min(one[3], two[3]) - max(one[1], two[1])
    return max(across, 0.0) * max(up, 0.0)


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
