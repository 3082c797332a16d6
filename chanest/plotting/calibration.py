"""The reliability figure: what intervals cover beyond what they say, a panel for each SNR."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from chanest.plotting.evaluation import look_of
from vlista_core.plotting import Look, label_ends, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from chanest.evaluation.calibration import Reliability

_BAND = 2.0
"""Points to either side within which intervals count as right: the grey band."""


def draw_reliability(scenario: str, rows: Sequence[Reliability], path: Path) -> None:
    """Coverage minus level over the level, in points: calibrated variances above, the methods' own below."""
    snrs = list(dict.fromkeys(row.snr_db for row in rows))
    kinds = [kind for kind in ("calibrated", "own") if any(row.kind == kind for row in rows)]
    with new_figure(path, (4.6 * len(snrs) + 1.0, 3.6 * len(kinds))) as figure:
        grid = figure.subplots(len(kinds), len(snrs), squeeze=False, sharey="row", sharex=True)
        for kind, line in zip(kinds, grid, strict=True):
            drawn = [
                _draw_panel(axes, [row for row in rows if (row.kind, row.snr_db) == (kind, snr)])
                for axes, snr in zip(line, snrs, strict=True)
            ]
            for axes, snr, ends in zip(line, snrs, drawn, strict=True):
                label_ends(figure, axes, ends, rows=len(kinds))
                axes.set_title(f"{snr:g} dB, {'calibrated' if kind == 'calibrated' else 'before calibration'}")
            line[0].set_ylabel("coverage − level (points)")
        for axes in grid[-1]:
            axes.set_xlabel("level of the interval (%)")
        channels = rows[0].channels
        figure.suptitle(
            f"{scenario}: what intervals cover beyond what they say, {channels:,} test channels", fontsize=13
        )


def _draw_panel(axes: Axes, rows: Sequence[Reliability]) -> list[tuple[float, str, Look]]:
    """The curves of one SNR; returns where they end."""
    from chanest.evaluation.calibration import LEVELS

    axes.axhspan(-_BAND, _BAND, color="#000000", alpha=0.07, lw=0)
    axes.axhline(0.0, color="#222222", lw=0.8)
    axes.grid(alpha=0.25)
    ends = []
    for row in rows:
        look = look_of(row.name)
        gap = [100 * (share - level) for share, level in zip(row.covered, LEVELS, strict=True)]
        axes.plot(
            [100 * level for level in LEVELS], gap, color=look.colour, ls=look.line, lw=look.width, marker=look.marker,
            ms=look.size, markevery=3,
        )  # fmt: skip
        ends.append((gap[-1], row.name, look))
    return ends
