"""The reliability figure: what intervals cover against what they say, a panel for each SNR."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from chanest.plotting.evaluation import look_of
from vlista_core.plotting import Look, label_ends, new_figure

if TYPE_CHECKING:
    from chanest.evaluation.calibration import Reliability

_BAND = 0.02


def draw_reliability(scenario: str, rows: Sequence[Reliability], path: Path) -> None:
    """Coverage minus level over the level, in percentage points; the method's own variances beside it, thin and dotted.

    The grey band is two points to either side, within which 90 % intervals count as right.
    """
    from chanest.evaluation.calibration import LEVELS

    snrs = list(dict.fromkeys(row.snr_db for row in rows))
    percent = [100 * level for level in LEVELS]
    with new_figure(path, (4.6 * len(snrs) + 1.0, 7.2)) as figure:
        grid = figure.subplots(2, len(snrs), squeeze=False, sharey="row", sharex=True)
        for number, snr in enumerate(snrs):
            for axes, kind, title in zip(grid[:, number], ("calibrated", "own"), ("calibrated", "own"), strict=True):
                ends: list[tuple[float, str, Look]] = []
                axes.axhspan(-100 * _BAND, 100 * _BAND, color="#000000", alpha=0.07, lw=0)
                axes.axhline(0.0, color="#222222", lw=0.8)
                for row in (row for row in rows if (row.snr_db, row.kind) == (snr, kind)):
                    look = look_of(row.name)
                    gap = [100 * (share - level) for share, level in zip(row.covered, LEVELS, strict=True)]
                    axes.plot(
                        percent, gap, color=look.colour, ls=look.line, lw=look.width, marker=look.marker, ms=look.size,
                        markevery=3,
                    )  # fmt: skip
                    ends.append((gap[-1], row.name, look))
                axes.set_title(f"{title} variance, {snr:g} dB")
                axes.grid(alpha=0.25)
                if number == 0:
                    axes.set_ylabel("coverage − level (points)")
                if kind == "own":
                    axes.set_xlabel("level of the interval (%)")
                label_ends(figure, axes, ends)
        channels = rows[0].channels
        figure.suptitle(
            f"{scenario}: what intervals cover beyond what they say, {channels:,} test channels", fontsize=13
        )
