"""Figures of experiments: a curve for each model, a panel for each setting; what the paper prints is hollow and dashed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vlista_core.plotting import DOTTED, MIXED, Look, label_ends, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
    "vlista": Look(_PURPLE, "P", MIXED),
    "dlista": Look(_BLUE, "^", MIXED),
    "a-dlista": Look(_BLUE, "o", strong=True),
    "a-dlista-adaptive": Look("#00365c", "*", strong=True),
}
BAYESIAN = {"vlista": _PURPLE, "bcs": _GREY}
"""Colours where these two are alone."""
_OTHER = Look("#b00020", "$+$")


@dataclass(frozen=True)
class Curve:
    """A model over the horizontal axis; `printed` are figures of the paper."""

    model: str
    points: Sequence[tuple[float, float]]
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
) -> None:
    """A PNG with a panel for each of `panels` (its title -> its curves), side by side, all on one vertical scale."""
    low, high = y_limits or (-float("inf"), float("inf"))
    levels = [min(max(y, low), high) for curves in panels.values() for curve in curves for _, y in curve.points]
    margin = 0.05 * (max(levels) - min(levels)) or 1.0
    with new_figure(path, (8.6 if len(panels) == 1 else 5.4 * len(panels) + 0.5, 6.2)) as figure:
        for axes, (name, curves) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
            axes.set_ylim(min(levels) - margin, max(levels) + margin)
            if log_x:
                axes.set_xscale("log")
            axes.set_xticks(x_ticks, [f"{tick:g}" for tick in x_ticks], minor=False)
            axes.minorticks_off()
            axes.set(xlabel=x_label, ylabel=y_label, title=name)
            axes.grid(alpha=0.25)
            _draw(figure, axes, curves)
        figure.suptitle(title, fontsize=13)


def _draw(figure: Figure, axes: Axes, curves: Sequence[Curve]) -> None:
    ends: list[tuple[float, str, Look]] = []
    for curve in curves:
        look = LOOKS.get(curve.model, _OTHER)
        x, y = zip(*curve.points, strict=True)
        if curve.printed:
            axes.plot(
                x, y, color=look.colour, ls=(0, (5, 3)), lw=0.8, marker=look.marker, ms=look.size,
                mfc="white", alpha=0.75, zorder=1,
            )  # fmt: skip
            continue
        axes.plot(
            x, y, color=look.colour, ls=look.line, lw=look.width, marker=look.marker, ms=look.size,
            zorder=3 if look.strong else 2,
        )  # fmt: skip
        ends.append((y[-1], curve.model, look))
    label_ends(figure, axes, ends)
