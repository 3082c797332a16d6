"""The heat map of a bench: sources against estimators, light where close to the bound. Matplotlib is imported when drawn."""

import math
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

from chanest.studies.standing import FAR_DB, LENT, OURS, Place, Standing
from vlista_core.plotting import new_figure
from vlista_core.study.tables import signed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DARK = 0.6
"""The share of it from which on the text of a field is white."""
_LEAD, _LOSS = "#0072b2", "#b04000"


def draw_gaps(standing: Standing, path: Path) -> None:
    """A field for every place and estimator with the gap to the bound in dB, the lead of ours beside each line."""
    places, names = standing.places, standing.names
    with new_figure(path, (3.6 + 0.95 * (len(names) + 1), 1.6 + 0.38 * len(places))) as figure:
        axes = figure.subplots()
        gaps = [[standing.gap(place, name) for name in names] for place in places]
        fields = [[math.nan if gap is None else max(gap, 0.0) for gap in line] for line in gaps]
        image = axes.imshow(fields, cmap="Blues", vmin=0.0, vmax=FAR_DB, aspect="auto")
        for y, place in enumerate(places):
            _draw_line(axes, standing, place, y, gaps[y])
        axes.hlines([y + 0.5 for y in range(len(places) - 1)], -0.5, len(names) - 0.5, color="white", lw=1.5)
        axes.vlines([x + 0.5 for x in range(len(names) - 1)], -0.5, len(places) - 0.5, color="white", lw=1.5)
        axes.set_xlim(-0.5, len(names) + 0.5)
        axes.set_xticks(range(len(names) + 1), [*names, "lead\nof ours"])
        axes.set_yticks(range(len(places)), [standing.label(place) for place in places])
        axes.xaxis.tick_top()
        for text, name in zip(axes.get_xticklabels(), names, strict=False):
            text.set_fontweight("bold" if name in OURS else "normal")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        bar = figure.colorbar(image, ax=axes, pad=0.01, fraction=0.03, extend="max")
        bar.set_label("dB above the bound")
        bar.outline.set_visible(False)
        axes.set_xlabel("\n".join(wrap(standing.caption(), 18 * (len(names) + 1))), fontsize=9.5)
        figure.suptitle("NMSE of estimators on every source: gap to the bound", fontsize=13)


def _draw_line(axes: "Axes", standing: Standing, place: Place, y: int, gaps: list[float | None]) -> None:
    """The numbers of a place, the best in bold, and hatches where there is none."""
    from matplotlib.patches import Rectangle

    best = standing.best(place, None)
    for x, (name, gap) in enumerate(zip(standing.names, gaps, strict=True)):
        if gap is None:
            axes.add_patch(
                Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor="#ffffff", edgecolor="#c8c8c8", hatch="///", lw=0)
            )
            continue
        colour, weight = "white" if gap > _DARK * FAR_DB else "black", "bold" if name == best else "normal"
        text = f"{gap:.1f}".replace("-", "−") + (LENT if standing.lent(place, name) else "")
        axes.text(x, y, text, ha="center", va="center", color=colour, weight=weight, fontsize=10)
    lead = standing.lead(place, None)
    colour = "black" if lead is None else _LEAD if lead >= 0 else _LOSS
    axes.text(len(gaps), y, signed(lead, 1), ha="center", va="center", color=colour, weight="bold", fontsize=10)
