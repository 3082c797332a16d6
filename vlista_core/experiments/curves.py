"""Figures of experiments: a curve for each model, a panel for each setting; what the paper prints is hollow and dashed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from vlista_core.charts import DOTTED, MIXED, Axis, Chart, Look, Panel, Point, Series, best_and_bounds

_BLUE, _ORANGE, _GREEN, _PURPLE, _GREY = "#0072b2", "#c8500a", "#00805f", "#a8558a", "#777777"
LOOKS = {
    "canonical": Look(_GREEN, "X"),
    "wavelet": Look(_GREEN, "H", MIXED),
    "spca": Look(_GREEN, "8", DOTTED),
    "ista": Look(_GREEN, "s"),
    "fista": Look(_GREEN, "D", MIXED),
    "lista": Look(_GREY, "v"),
    "alista": Look(_ORANGE, "<", DOTTED),
    "alista-per-sample": Look(_ORANGE, "p"),
    "nalista": Look(_ORANGE, ">", MIXED),
    "nalista-per-sample": Look(_ORANGE, "h", DOTTED),
    "bcs": Look(_PURPLE, "d"),
    "alista-12": Look(_ORANGE, "1"),
    "nalista-12": Look(_ORANGE, "2", MIXED),
    "vlista": Look(_PURPLE, "P", MIXED),
    "vlista-constant": Look(_PURPLE, "x", DOTTED),
    "vlista-anchored": Look(_PURPLE, "P"),
    "dlista": Look(_BLUE, "^", MIXED),
    "a-dlista": Look(_BLUE, "o", strong=True),
    "a-dlista-adaptive": Look("#00365c", "*", strong=True),
}
BAYESIAN = {"vlista": _PURPLE, "vlista-constant": _ORANGE, "bcs": _GREY}
"""Colours where these are alone."""
_OTHER = Look("#b00020", "$+$")


class Curve(NamedTuple):
    """A model over the horizontal axis; `printed` are figures of the paper."""

    model: str
    points: Sequence[tuple[float, float | None]]
    """(x, y); a point whose y is None is left out."""
    printed: bool = False


def panel_chart(
    panels: Mapping[str, Sequence[Curve]],
    *,
    title: str,
    x: Axis,
    y_label: str,
    best: Callable[[Iterable[float]], float],
    y_limits: Point | None = None,
) -> Chart | None:
    """A chart with panels (title -> curves) side by side, on one vertical scale; None where there is no point.

    best: `max` where high figures are good, `min` where low ones are: a page shows the three best models to begin with.
    """
    low, high = y_limits or (-float("inf"), float("inf"))
    known = {name: [each for curve in curves if (each := _series(curve)).points] for name, curves in panels.items()}
    known = {name: curves for name, curves in known.items() if curves}
    levels = [min(max(y, low), high) for curves in known.values() for each in curves for _, y in each.points]
    if not levels:
        return None
    margin = 0.05 * (max(levels) - min(levels)) or 1.0
    limits = (min(levels) - margin, max(levels) + margin)
    shown = [Panel(name, curves, limits) for name, curves in known.items()]
    sign = -1 if best is max else 1
    ranked = sorted(
        (each for panel in shown for each in panel.series), key=lambda each: sign * best(y for _, y in each.points)
    )
    return Chart(title, x, Axis(y_label), shown, first=best_and_bounds(ranked))


def _series(curve: Curve) -> Series:
    points = [(float(x), y) for x, y in curve.points if y is not None]
    look = LOOKS.get(curve.model, _OTHER)
    return Series(f"{curve.model}, printed" if curve.printed else curve.model, look, points, printed=curve.printed)
