"""Figure of a novelty experiment: how well changes are told from home by the number of frames, and by SNR."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from chanest.novelty.changes import CHANGES
from chanest.novelty.experiment import HOME, Experiment
from chanest.novelty.tables import middle
from vlista_core.plotting import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BAR = 0.95
"""AUROC that a change should reach; bold from there."""
_DARK = 0.8
"""Where the text of a field turns white."""


def draw_novelty(experiment: Experiment, path: Path) -> None:
    """Fields of AUROC, a line for each change: over the frames of a stream at one SNR, and over the SNR for one length.

    One row of panels for each score; a sweep of one value is drawn only where there is no other.
    """
    snr_db, length = middle(experiment)
    snrs, lengths = experiment.values(lambda row: row.snr_db), experiment.values(lambda row: row.frames)
    scores = experiment.values(lambda row: row.score)
    by_frames, by_snr = [(snr_db, each) for each in lengths], [(each, length) for each in snrs]
    sweeps = [points for points in (by_frames, by_snr) if len(points) > 1] or [by_frames]
    names = [name for name in experiment.values(lambda row: row.change) if name != HOME]
    size = (3.2 + 0.85 * sum(map(len, sweeps)) + 0.6 * len(sweeps), (0.36 * len(names) + 1.5) * len(scores) + 0.4)
    with new_figure(path, size) as figure:
        ratios = [len(points) for points in sweeps]
        grid = figure.subplots(len(scores), len(sweeps), squeeze=False, width_ratios=ratios)
        for line, score in zip(grid, scores, strict=True):
            for axes, points in zip(line, sweeps, strict=True):
                _draw_panel(axes, experiment, score, names, points)
                axes.set_yticks(range(len(names)), [CHANGES[name].words for name in names] if axes is line[0] else [])
        figure.suptitle(f"{experiment.settings['scenario']}: AUROC of streams, changed against not", fontsize=13)


def _draw_panel(
    axes: Axes, experiment: Experiment, score: str, names: list[str], points: list[tuple[float, int]]
) -> None:
    rows = [[experiment.row(score, name, *point) for point in points] for name in names]
    values = [[math.nan if row is None or row.auroc is None else row.auroc for row in line] for line in rows]
    axes.imshow(values, cmap="Blues", vmin=0.4, vmax=1.0, aspect="auto")
    for y, line in enumerate(values):
        for x, value in enumerate(line):
            colour, weight = "white" if value > _DARK else "black", "bold" if value >= _BAR else "normal"
            text = "–" if math.isnan(value) else f"{value:.3f}"
            axes.text(x, y, text, ha="center", va="center", color=colour, weight=weight, fontsize=9.5)
    over_snr = len({snr for snr, _ in points}) > 1
    if over_snr:
        axes.set(xlabel="SNR (dB)", title=f"{score}, {points[0][1]} frames")
    else:
        axes.set(xlabel="frames of a stream", title=f"{score}, {points[0][0]:g} dB SNR")
    axes.set_xticks(
        range(len(points)), [f"{snr if over_snr else length:g}".replace("-", "−") for snr, length in points]
    )
    axes.tick_params(length=0)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
