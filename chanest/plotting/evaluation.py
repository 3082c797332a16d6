"""Figures of an evaluation: NMSE over a sweep, and NMSE against latency. Readable in grey, bounds dashed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from chanest.evaluation.results import Results
from vlista_core.plotting import DOTTED, MIXED, Look, label_ends, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TOP_DB = 3.0
"""Curves that fail are cut here, so that those that do not can be told apart."""
_SIDES = (
    (9, 0, "left"), (-9, 0, "right"), (0, 11, "center"), (0, -12, "center"), (7, 9, "left"), (7, -9, "left"),
    (-7, 9, "right"), (-7, -9, "right"), (8, 18, "left"), (8, -18, "left"), (-8, 18, "right"), (-8, -18, "right"),
)  # fmt: skip
"""Where the name of a point may stand: points to the right and up, and which end of it is there."""
_DISTANCE_COST = 20.0
"""Square pixels of overlap that a label may have to be one point nearer to its mark."""
_AXIS = {
    "snr": "SNR (dB)",
    "pilots": "pilots T",
    "chains": "RF chains of the receiver (0: fully digital)",
    "bits": "bits of a phase shifter",
}


_BLUE, _ORANGE, _GREEN, _PURPLE, _GREY = "#0072b2", "#c8500a", "#00805f", "#a8558a", "#777777"
_LOOKS = {
    "ls": Look(_GREY, "x"),
    "lmmse": Look(_GREEN, "s"),
    "gmm": Look(_GREEN, "D", MIXED),
    "omp": Look(_ORANGE, "v"),
    "somp": Look(_ORANGE, "<", MIXED),
    "sw-omp": Look(_ORANGE, ">", DOTTED),
    "fista": Look(_ORANGE, "p", MIXED),
    "amp": Look(_PURPLE, "h", DOTTED),
    "vamp": Look(_PURPLE, "H", MIXED),
    "sbl": Look(_PURPLE, "d"),
    "ray-sbl": Look(_PURPLE, "d", MIXED),
    "bcs": Look(_PURPLE, "8", DOTTED),
    "lista": Look(_GREY, "1", MIXED),
    "alista": Look(_GREY, "2", DOTTED),
    "nalista": Look(_GREY, "3"),
    "dlista": Look(_BLUE, "^", MIXED),
    "a-dlista-scalar": Look(_BLUE, "X", MIXED),
    "vlista": Look(_BLUE, "P", DOTTED),
    "a-dlista": Look(_BLUE, "o", strong=True),
    "a-dlista+": Look("#00365c", "*", strong=True),
}
_OWN = (Look("#b00020", "X", strong=True), Look("#7a0046", "$+$", MIXED, strong=True))
_BOUND_LINES = ((0, (6, 2)), (0, (3, 1.5)), (0, (8, 2, 2, 2)), (0, (2, 2)), (0, (10, 4)))


def draw_curves(results: Results, path: Path) -> None:
    """NMSE over the sweep with 95 % intervals, a panel for each SNR unless the sweep is over it; labels at the curves."""
    plan = results.plan
    panels: list[float | None] = [None] if plan.sweep == "snr" else list(plan.snr_db)
    with new_figure(path, (8.6 if len(panels) == 1 else 5.6 * len(panels) + 0.5, 6.2)) as figure:
        for axes, snr in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            _draw_panel(figure, axes, results, snr)
        figure.suptitle(f"{plan.scenario.name}: NMSE of {plan.channels:,} test channels, 95 % intervals", fontsize=13)


def _draw_panel(figure: Figure, axes: Axes, results: Results, snr: float | None) -> None:
    plan = results.plan
    points = sorted(point for point in plan.points() if snr in (None, point[1]))
    lone, bottom, top = len(points) == 1, 0.0, -100.0
    ends: list[tuple[float, str, Look]] = []
    for name, look in _looks(results).items():
        rows = [results.row(name, *point) for point in points]
        known = [row for row in rows if row.nmse_db is not None]
        if not known:
            continue
        level = [row.nmse_db or 0.0 for row in known]
        axes.plot(
            [row.value for row in known], level, color=look.colour, ls=look.line, lw=look.width,
            marker=look.marker or ("_" if lone else ""), ms=look.size, zorder=3 if look.strong else 2,
        )  # fmt: skip
        if known[0].kind == "estimator":
            low, high = ([getattr(row, key) for row in known] for key in ("nmse_low_db", "nmse_high_db"))
            axes.fill_between([row.value for row in known], low, high, color=look.colour, alpha=0.08, lw=0)
        ends.append((level[-1], known[0].label, look))
        bottom, top = min(bottom, *level), max(top, *level)
    axes.set_ylim(bottom - 1.5, min(top, _TOP_DB) + 0.8)
    places = [point[0] for point in points]
    span = places[-1] - places[0] or 1.0
    axes.set_xlim(places[0] - 0.03 * span, places[-1] + 0.02 * span)
    axes.set_xticks(places)
    axes.set_xlabel(_AXIS[plan.sweep])
    axes.set_ylabel("NMSE (dB)")
    axes.grid(alpha=0.25)
    if snr is not None:
        axes.set_title(f"SNR {snr:g} dB")
    label_ends(figure, axes, ends)


def draw_accuracy_against_latency(results: Results, path: Path) -> None:
    """NMSE at the middle SNR against milliseconds a channel in a batch; bounds are lines, for they cost nothing."""
    plan = results.plan
    snr = plan.middle_snr()
    value = [point[0] for point in plan.points() if point[1] == snr][-1]
    rows = [results.row(name, value, snr) for name in _looks(results)]
    with new_figure(path, (8.6, 5.6)) as figure:
        axes = figure.subplots()
        shown = [(row.ms_batch, row.nmse_db, row) for row in rows if row.kind == "estimator"]
        points = [(x, min(y, _TOP_DB), row) for x, y, row in shown if x is not None and y is not None]
        looks = _looks(results)
        for x, y, row in points:
            look = looks[row.name]
            axes.plot(x, y, look.marker, color=look.colour, ms=1.4 * look.size, zorder=3)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda time, _: f"{time:g}")
        if points:
            axes.set_xlim(min(x for x, _, _ in points) / 2.5, max(x for x, _, _ in points) * 3.5)
        levels = [
            (row.nmse_db, row.label, looks[row.name]) for row in rows if row.kind == "bound" and row.nmse_db is not None
        ]
        for level, _, look in levels:
            axes.axhline(level, color=look.colour, ls=look.line, lw=1.2)
        bottom = min([y for _, y, _ in points] + [level for level, _, _ in levels], default=0.0)
        axes.set_ylim(bottom - 1.2, max((y for _, y, _ in points), default=0.0) + 1.2)
        label_ends(figure, axes, levels)
        axes.set_xlabel(f"time a channel in a batch of {results.batch} (ms, logarithmic)")
        axes.set_ylabel(f"NMSE at {snr:g} dB SNR (dB)")
        axes.grid(alpha=0.25)
        axes.set_title(f"{plan.scenario.name}: accuracy against latency (better: down and to the left)")
        _label_points(
            figure, axes, [(x, y, row.label, looks[row.name]) for x, y, row in points], [y for y, _, _ in levels]
        )


def _label_points(figure: Figure, axes: Axes, points: list[tuple[float, float, str, Look]], lines: list[float]) -> None:
    """A name beside each point, on the side where it meets the least of other points, names and level lines."""
    figure.draw_without_rendering()
    pixel = figure.dpi / 72
    marks = [axes.transData.transform((x, y)) for x, y, _, _ in points]
    taken = [(x - 6 * pixel, y - 6 * pixel, x + 6 * pixel, y + 6 * pixel) for x, y in marks]
    across = axes.get_window_extent()
    for level in lines:
        height = axes.transData.transform((points[0][0], level))[1] if points else 0.0
        taken.append((across.x0, height - 3 * pixel, across.x1, height + 3 * pixel))
    for (x, y, label, look), mark in zip(points, marks, strict=True):
        wide, tall = len(label) * 6.2 * pixel, 12 * pixel
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
            label, (x, y), (right, up), textcoords="offset points", ha=align, va="center", fontsize=9.5,
            color=look.colour, weight=look.weight,
        )  # fmt: skip


def _overlap(one: tuple[float, ...], two: tuple[float, ...]) -> float:
    """Area that two boxes (left, bottom, right, top) share."""
    across = min(one[2], two[2]) - max(one[0], two[0])
    up = min(one[3], two[3]) - max(one[1], two[1])
    return max(across, 0.0) * max(up, 0.0)


def look_of(name: str) -> Look:
    """How a registered estimator is drawn in every figure."""
    return _LOOKS.get(name) or _OWN[0]


def _looks(results: Results) -> dict[str, Look]:
    """How each estimator and bound is drawn; an estimator looks the same in every figure."""
    looks: dict[str, Look] = {}
    own = 0
    for name in results.names("estimator"):
        if name not in _LOOKS:
            own += 1
        looks[name] = _LOOKS.get(name) or _OWN[(own - 1) % len(_OWN)]
    for number, name in enumerate(results.names("bound")):
        looks[name] = Look("#222222", "", _BOUND_LINES[number % len(_BOUND_LINES)])
    return looks
