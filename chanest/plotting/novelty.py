"""Figure of a novelty experiment: how well changes are told from home by the number of frames, and by SNR."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from chanest.novelty.experiment import HOME, Experiment
from chanest.novelty.tables import middle
from vlista_core.plotting import DOTTED, MIXED, Look, label_ends, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BLUE, _ORANGE, _GREEN, _PURPLE = "#0072b2", "#c8500a", "#00805f", "#a8558a"
_LOOKS = {
    "cdl-a": Look(_BLUE, "^"),
    "cdl-b": Look(_BLUE, "v", MIXED),
    "cdl-c": Look(_BLUE, "s", DOTTED),
    "cdl-d": Look(_BLUE, "D", DOTTED),
    "cdl-e": Look(_BLUE, "o", MIXED),
    "tilt": Look(_GREEN, "h"),
    "spacing": Look(_GREEN, "P", MIXED),
    "blocked-bs": Look(_ORANGE, "X"),
    "phase-bs": Look(_ORANGE, "<", MIXED),
    "blocked-ue": Look(_PURPLE, "x"),
    "phase-ue": Look(_PURPLE, ">", MIXED),
}
_BAR = 0.95
"""AUROC that a change should reach."""


def draw_novelty(experiment: Experiment, path: Path) -> None:
    """A panel for each score over the frames of a stream at one SNR, and one over the SNR where there are several."""
    snr_db, length = middle(experiment)
    snrs = experiment.values(lambda row: row.snr_db)
    lengths = experiment.values(lambda row: row.frames)
    scores = experiment.values(lambda row: row.score)
    by_frames = [[(snr_db, each) for each in lengths]] if len(lengths) > 1 or len(snrs) == 1 else []
    sweeps = by_frames + ([[(each, length) for each in snrs]] if len(snrs) > 1 else [])
    with new_figure(path, (5.6 * len(sweeps) + 0.6, 4.8 * len(scores) + 0.3)) as figure:
        grid = figure.subplots(len(scores), len(sweeps), squeeze=False)
        for line, score in zip(grid, scores, strict=True):
            for axes, points in zip(line, sweeps, strict=True):
                _draw_panel(figure, axes, experiment, score, points)
        figure.suptitle(f"{experiment.settings['scenario']}: changes told from home, by score", fontsize=13)


def _draw_panel(
    figure: Figure, axes: Axes, experiment: Experiment, score: str, points: list[tuple[float, int]]
) -> None:
    over_snr = len({snr for snr, _ in points}) > 1
    places = [snr if over_snr else float(length) for snr, length in points]
    ends: list[tuple[float, str, Look]] = []
    lowest = 0.5
    for name in experiment.values(lambda row: row.change):
        rows = [experiment.row(score, name, *point) for point in points]
        known = [
            (x, row.auroc) for x, row in zip(places, rows, strict=True) if row is not None and row.auroc is not None
        ]
        if name == HOME or not known:
            continue
        look = _LOOKS[name]
        level = [value for _, value in known]
        axes.plot(
            [x for x, _ in known], level, color=look.colour, ls=look.line, lw=1.4, marker=look.marker, ms=look.size
        )
        ends.append((level[-1], name, look))
        lowest = min(lowest, *level)
    axes.axhline(_BAR, color="#777777", lw=0.8, zorder=0)
    axes.set_ylim(lowest - 0.02, 1.01)
    if over_snr:
        axes.set(xlabel="SNR (dB)", title=f"{score}: streams of {points[0][1]} frames")
    else:
        axes.set(xscale="log", xlabel="frames of a stream", title=f"{score}: at {points[0][0]:g} dB SNR")
        axes.minorticks_off()
    axes.set_xticks(places, [f"{place:g}".replace("-", "−") for place in places])
    axes.set_ylabel("AUROC")
    axes.grid(alpha=0.25)
    label_ends(figure, axes, ends)
