"""Figures of experiments: a curve for each model, a panel for each setting; what the paper prints is hollow and dashed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vlista_core.plotting import DOTTED, MIXED, Look, label_ends, new_figure

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


def draw_panels(
    path: Path,
    panels: Mapping[str, Sequence[Curve]],
    *,
    title: str,
    x_label: str,
    y_label: str,
    x_ticks: Sequence[float],
    log_x: bool = False,
    y_limits: tuple[float, float] | None = None,
) -> bool:
    """A PNG with panels (title -> curves) side by side, on one vertical scale; False, and no file, where there is no point."""
    low, high = y_limits or (-float("inf"), float("inf"))
    known = {
        name: [(curve, points) for curve in curves if (points := [(x, y) for x, y in curve.points if y is not None])]
        for name, curves in panels.items()
    }
    known = {name: curves for name, curves in known.items() if curves}
    levels = [min(max(y, low), high) for curves in known.values() for _, points in curves for _, y in points]
    if not levels:
        return False
    margin = 0.05 * (max(levels) - min(levels)) or 1.0
    with new_figure(path, (8.6 if len(known) == 1 else 5.4 * len(known) + 0.5, 6.2)) as figure:
        for axes, (name, curves) in zip(figure.subplots(1, len(known), squeeze=False)[0], known.items(), strict=True):
            axes.set_ylim(min(levels) - margin, max(levels) + margin)
            if log_x:
                axes.set_xscale("log")
            axes.set_xticks(x_ticks, [f"{tick:g}" for tick in x_ticks], minor=False)
            axes.minorticks_off()
            axes.set(xlabel=x_label, ylabel=y_label, title=name)
            axes.grid(alpha=0.25)
            ends: list[tuple[float, str, Look]] = []
            for curve, points in curves:
                look = LOOKS.get(curve.model, _OTHER)
                style: dict[str, Any] = {"ls": look.line, "lw": look.width, "zorder": 3 if look.strong else 2}
                if curve.printed:
                    style = {"ls": (0, (5, 3)), "lw": 0.8, "zorder": 1, "mfc": "white", "alpha": 0.75}
                else:
                    ends.append((points[-1][1], curve.model, look))
                axes.plot(*zip(*points, strict=True), color=look.colour, marker=look.marker, ms=look.size, **style)
            label_ends(figure, axes, ends)
        figure.suptitle(title, fontsize=13)
    return True
