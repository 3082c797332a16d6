"""Figures of studies: readable in grey, bounds dashed. Matplotlib is imported when one is drawn."""

import math
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from vlista_core.plotting import DOTTED, MIXED, Look, label_ends, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from chanest.studies.block_errors import BlockErrors
    from chanest.studies.coverage import CoverageStudy
    from chanest.studies.novelty import NoveltyStudy
    from chanest.studies.ranking import Ranking
    from chanest.studies.tracking import TrackingStudy

_BLUE, _ORANGE, _GREEN, _PURPLE, _GREY, _RED, _BLACK = (
    "#0072b2", "#c8500a", "#00805f", "#a8558a", "#777777", "#b00020", "#222222",
)  # fmt: skip
LOOKS = {
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
    "nomp": Look(_ORANGE, "^"),
    "bcs": Look(_PURPLE, "8", DOTTED),
    "lista": Look(_GREY, "1", MIXED),
    "alista": Look(_GREY, "2", DOTTED),
    "nalista": Look(_GREY, "3"),
    "dlista": Look(_BLUE, "^", MIXED),
    "a-dlista": Look(_BLUE, "X"),
    "a-dlista-adaptive": Look(_BLUE, "X", MIXED),
    "vlista": Look(_BLUE, "P", DOTTED),
    "atom-lmmse": Look(_BLUE, "o", strong=True),
    "gated-lmmse": Look("#00365c", "*", strong=True),
    "product-lmmse": Look(_GREEN, "P", strong=True),
    "cluster-lmmse": Look("#00365c", "D", strong=True),
    "slot-lmmse": Look(_GREEN, "X", MIXED, strong=True),
    "universal": Look("#a3005c", "*", DOTTED, strong=True),
}
"""How the registered estimators are drawn in every figure."""
_OWN = (Look(_RED, "X", strong=True), Look("#7a0046", "$+$", MIXED, strong=True))
_BOUND_LINES = ((0, (6, 2)), (0, (3, 1.5)), (0, (8, 2, 2, 2)), (0, (2, 2)), (0, (10, 4)))
_RECEIVERS = {
    "sionna-ls": Look(_RED, "+", DOTTED),
    "sionna-linear": Look(_RED, "1", DOTTED),
    "sionna-lmmse": Look(_RED, "X", MIXED),
    "perfect": Look(_BLACK, "", _BOUND_LINES[0]),
    "genie-angles": Look(_BLACK, "", _BOUND_LINES[1]),
}
_AXES = {
    "snr": "SNR (dB)", "pilots": "pilots T", "chains": "RF chains of the receiver (0: fully digital)",
    "bits": "bits of a phase shifter",
}  # fmt: skip
_TOP_DB = 3.0
"""Curves of NMSE that fail are cut here, so that those that do not can be told apart."""
End = tuple[float, str, Look]
"""Where a curve ends, what it is called and how it is drawn."""


def look_of(name: str) -> Look:
    """How an estimator, a receiver or a bound is drawn."""
    return LOOKS.get(name) or _RECEIVERS.get(name) or _OWN[0]


def _curve(
    axes: "Axes", places: Sequence[float], levels: Sequence[float], look: Look, *, marker: str | None = None,
    size: float = 1.0, every: int | None = None, band: tuple[Sequence[float], Sequence[float]] | None = None,
) -> None:  # fmt: skip
    """A line in its look, over its interval where it has one."""
    axes.plot(
        places, levels, color=look.colour, ls=look.line, lw=look.width, marker=look.marker if marker is None else marker,
        ms=size * look.size, markevery=every, zorder=3 if look.strong else 2,
    )  # fmt: skip
    if band is not None:
        axes.fill_between(places, *band, color=look.colour, alpha=0.08, lw=0)


def _finish(axes: "Axes", x: str, y: str, title: str = "", ticks: Sequence[float] | None = None) -> None:
    axes.set(xlabel=x, ylabel=y, title=title)
    axes.grid(alpha=0.25)
    if ticks is not None:
        axes.set_xticks(list(ticks))


def _looks(ranking: "Ranking") -> dict[str, Look]:
    """How each estimator and bound of a study is drawn, best first."""
    own = count()
    looks = {name: LOOKS.get(name) or _OWN[next(own) % len(_OWN)] for name in ranking.best_first("estimator")}
    for number, name in enumerate(ranking.best_first("bound")):
        looks[name] = Look(_BLACK, "", _BOUND_LINES[number % len(_BOUND_LINES)])
    return looks


def draw_curves(ranking: "Ranking", path: Path) -> None:
    """NMSE over the sweep with 95 % intervals, a panel for each SNR unless the sweep is over it; labels at the curves."""
    study, panels = ranking.study, ranking.study.panels()
    with new_figure(path, (8.6 if len(panels) == 1 else 5.6 * len(panels) + 0.5, 6.2)) as figure:
        for axes, snr in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            _draw_nmse(figure, axes, ranking, snr)
        figure.suptitle(f"{study.scenario.name}: NMSE of {study.channels:,} test channels, 95 % intervals", fontsize=13)


def _draw_nmse(figure: "Figure", axes: "Axes", ranking: "Ranking", snr: float | None) -> None:
    points = sorted(ranking.study.points(snr))
    bottom, top, ends = 0.0, -100.0, list[End]()
    for name, look in _looks(ranking).items():
        known = [(point, level) for point in points if (level := ranking.level(name, point)) is not None]
        if not known:
            continue
        levels = [level for _, level in known]
        low, high = (
            [math.nan if (end := ranking.level(name, point, key)) is None else end for point, _ in known]
            for key in ("nmse_low_db", "nmse_high_db")
        )
        band = (low, high) if name in ranking.study.estimators else None
        marker = look.marker or ("_" if len(points) == 1 else "")
        _curve(axes, [point[0] for point, _ in known], levels, look, marker=marker, band=band)
        ends.append((levels[-1], ranking.labels[name], look))
        bottom, top = min(bottom, *levels), max(top, *levels)
    axes.set_ylim(bottom - 1.5, min(top, _TOP_DB) + 0.8)
    places = [value for value, _ in points]
    span = places[-1] - places[0] or 1.0
    axes.set_xlim(places[0] - 0.03 * span, places[-1] + 0.02 * span)
    _finish(axes, _AXES[ranking.study.sweep], "NMSE (dB)", "" if snr is None else f"SNR {snr:g} dB", places)
    label_ends(figure, axes, ends)


def draw_accuracy_against_latency(ranking: "Ranking", path: Path) -> None:
    """NMSE at the middle SNR against milliseconds per channel in a batch; bounds are lines, for they cost nothing."""
    study, looks = ranking.study, _looks(ranking)
    points, lines = list[tuple[float, float, str, Look]](), list[End]()
    for name, look in looks.items():
        level, time = ranking.level(name, study.middle()), ranking.costs.get(name, {}).get("ms_batch")
        if level is not None and name in study.bounds:
            lines.append((level, ranking.labels[name], look))
        elif level is not None and time is not None:
            points.append((time, min(level, _TOP_DB), name, look))
    with new_figure(path, (8.6, 5.6)) as figure:
        axes = figure.subplots()
        for x, y, _, look in points:
            axes.plot(x, y, look.marker, color=look.colour, ms=1.4 * look.size, zorder=3)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda time, _: f"{time:g}")
        if points:
            axes.set_xlim(min(x for x, *_ in points) / 2.5, max(x for x, *_ in points) * 3.5)
        for level, _, look in lines:
            axes.axhline(level, color=look.colour, ls=look.line, lw=1.2)
        bottom = min([y for _, y, *_ in points] + [level for level, *_ in lines], default=0.0)
        axes.set_ylim(bottom - 1.2, max((y for _, y, *_ in points), default=0.0) + 1.2)
        label_ends(figure, axes, lines)
        title = f"{study.scenario.name}: accuracy against latency (better: down and to the left)"
        time = f"time per channel in a batch of {ranking.batch} (ms, logarithmic)"
        _finish(axes, time, f"NMSE at {study.middle()[1]:g} dB SNR (dB)", title)
        _label_points(figure, axes, points, [level for level, *_ in lines])


_SIDES = (
    (9, 0, "left"), (-9, 0, "right"), (0, 11, "center"), (0, -12, "center"), (7, 9, "left"), (7, -9, "left"),
    (-7, 9, "right"), (-7, -9, "right"), (8, 18, "left"), (8, -18, "left"), (-8, 18, "right"), (-8, -18, "right"),
)  # fmt: skip
"""Where the name of a point may stand: points to the right and up, and which end of it is there."""
_DISTANCE_COST = 20.0
"""Square pixels of overlap that a label may have to be one point nearer to its mark."""


def _label_points(
    figure: "Figure", axes: "Axes", points: list[tuple[float, float, str, Look]], lines: list[float]
) -> None:
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
    across, up = min(one[2], two[2]) - max(one[0], two[0]), min(one[3], two[3]) - max(one[1], two[1])
    return max(across, 0.0) * max(up, 0.0)


_LEAST = 0.002
"""Curves of block errors are cut here."""
_TICKS = (1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002)


def draw_link(errors: "BlockErrors", path: Path) -> None:
    """BLER against SNR with 95 % intervals, a panel for each err_var of the study; labels at the curves."""
    from chanest.link import BOUNDS
    from chanest.studies.block_errors import TARGET, label

    study, modes = errors.study, errors.study.err_var
    seen = [rate for rate in errors.rows["bler"] if rate > 0]
    least = min(TARGET / 10, max(_LEAST, min(seen, default=_LEAST)))
    titles = {"estimated": "err_var: the variance of the estimator's errors", "zero": "err_var 0"}
    with new_figure(path, (8.6 if len(modes) == 1 else 14.6, 6.2)) as figure:
        for axes, mode in zip(figure.subplots(1, len(modes), squeeze=False)[0], modes, strict=True):
            ends = list[End]()
            for name in errors.receivers(mode):
                level, low, high = (
                    [math.log10(max(rate, _LEAST / 100)) for rate in errors.curve(name, mode, column)]
                    for column in ("bler", "bler_low", "bler_high")
                )
                _curve(axes, errors.snrs, level, look_of(name), band=None if name in BOUNDS else (low, high))
                ends.append((level[-1], label(name), look_of(name)))
            axes.axhline(math.log10(TARGET), color=_GREY, lw=0.8, ls=":")
            _finish(axes, "SNR (dB)", "block error rate", titles[mode], errors.snrs)
            axes.set_yticks([math.log10(tick) for tick in _TICKS], [f"{tick:g}" for tick in _TICKS])
            axes.set_ylim(math.log10(least) - 0.05, 0.05)
            label_ends(figure, axes, [end for end in ends if not math.isnan(end[0])])
        title = f"{study.scenario.name}: {study.blocks:,} blocks, {study.code}, 95 % intervals"
        figure.suptitle(title, fontsize=13)


_BAND = 2.0
"""Points to either side within which intervals count as right: the grey band."""


def draw_reliability(study: "CoverageStudy", variances: pd.DataFrame, path: Path) -> None:
    """Coverage minus level over the level, in points, a panel for each SNR: calibrated variances above, the own below."""
    from chanest.studies.coverage import KINDS, LEVELS

    snrs = sorted(set(variances["snr_db"]))
    kinds = [kind for kind in KINDS if (variances["kind"] == kind).any()]
    with new_figure(path, (4.6 * len(snrs) + 1.0, 3.6 * len(kinds))) as figure:
        grid = figure.subplots(len(kinds), len(snrs), squeeze=False, sharey="row", sharex=True)
        for kind, line in zip(kinds, grid, strict=True):
            drawn = []
            for axes, snr in zip(line, snrs, strict=True):
                axes.axhspan(-_BAND, _BAND, color="#000000", alpha=0.07, lw=0)
                axes.axhline(0.0, color=_BLACK, lw=0.8)
                rows = variances[(variances["kind"] == kind) & (variances["snr_db"] == snr)]
                ends = list[End]()
                for name, covered in zip(rows["name"], rows["covered"], strict=True):
                    if None in covered:
                        continue
                    gap = [100 * (share - level) for share, level in zip(covered, LEVELS, strict=True)]
                    _curve(axes, [100 * level for level in LEVELS], gap, look_of(name), every=3)
                    ends.append((gap[-1], name, look_of(name)))
                drawn.append((axes, snr, ends))
            for axes, snr, ends in drawn:  # After all curves: the panels of a line share their axis.
                title = f"{snr:g} dB, {'calibrated' if kind == 'calibrated' else 'before calibration'}"
                _finish(axes, "level of the interval (%)" if kind == kinds[-1] else "", "", title)
                label_ends(figure, axes, ends, rows=len(kinds))
            line[0].set_ylabel("coverage − level (points)")
        said = f"what intervals cover beyond what they say, {study.channels:,} test channels"
        figure.suptitle(f"{study.scenario.name}: {said}", fontsize=13)


def draw_tracking(study: "TrackingStudy", frame: pd.DataFrame, path: Path) -> None:
    """NMSE by snapshot, a panel for each SNR: tracked (solid), each by itself (dotted), and the bound (dashed)."""
    snrs, snapshots = sorted(set(frame["snr_db"])), range(1, study.snapshots + 1)
    with new_figure(path, (4.9 * len(snrs) + 0.4, 5.0)) as figure:
        for axes, snr in zip(figure.subplots(1, len(snrs), squeeze=False)[0], snrs, strict=True):
            ends = list[End]()
            for _, row in frame[frame["snr_db"] == snr].iterrows():
                own, kind = look_of(row["name"]), row["kind"]
                line = DOTTED if kind == "alone" else "-" if kind == "tracked" else _BOUND_LINES[0]
                look = Look(own.colour, own.marker, line, strong=kind == "tracked")
                levels = [math.nan if level is None else level for level in row["nmse_db"]]
                _curve(axes, snapshots, levels, look, size=0.7)
                if not math.isnan(levels[-1]):
                    ends.append((levels[-1], row["label"], look))
            _finish(axes, "snapshot of the track", "NMSE (dB)", f"SNR {snr:g} dB", snapshots)
            label_ends(figure, axes, ends)
        figure.suptitle(f"What earlier snapshots are worth: {study.tracks} test tracks", fontsize=13)


_GOOD, _DARK = 0.95, 0.8
"""AUROC that a change should reach, bold from there; and where the text of a field turns white."""


def draw_novelty(study: "NoveltyStudy", streams: pd.DataFrame, path: Path) -> None:
    """Fields of AUROC, a line for each change: over the frames of a stream at one SNR, and over the SNR for one length.

    One row of panels for each score; a sweep of one value is drawn only where there is no other.
    """
    from chanest.novelty.changes import CHANGES
    from chanest.studies.novelty import HOME

    snr_db, length = study.middle()
    by_frames = [(snr_db, each) for each in study.lengths]
    by_snr = [(snr, length) for snr in sorted(set(streams["snr_db"]))]
    sweeps = [points for points in (by_frames, by_snr) if len(points) > 1] or [by_frames]
    scores = list(dict.fromkeys(streams["score"]))
    names = [name for name in dict.fromkeys(streams["change"]) if name != HOME]
    size = (3.2 + 0.85 * sum(map(len, sweeps)) + 0.6 * len(sweeps), (0.36 * len(names) + 1.5) * len(scores) + 0.4)
    with new_figure(path, size) as figure:
        ratios = [len(points) for points in sweeps]
        grid = figure.subplots(len(scores), len(sweeps), squeeze=False, width_ratios=ratios)
        for line, score in zip(grid, scores, strict=True):
            own = streams[streams["score"] == score].astype({"auroc": float})
            wide = own.pivot(index="change", columns=["snr_db", "frames"], values="auroc").reindex(index=names)
            for axes, points in zip(line, sweeps, strict=True):
                _draw_fields(axes, [wide[point].tolist() for point in points], points, score)
                axes.set_yticks(range(len(names)), [CHANGES[name].words for name in names] if axes is line[0] else [])
        figure.suptitle(f"{study.scenario.name}: AUROC of streams, changed against not", fontsize=13)


def _draw_fields(axes: "Axes", columns: list[list[float]], points: list[tuple[float, int]], score: str) -> None:
    """A field per change and point. columns: AUROC of all changes, one list per point."""
    axes.imshow([list(line) for line in zip(*columns, strict=True)], cmap="Blues", vmin=0.4, vmax=1.0, aspect="auto")
    for x, column in enumerate(columns):
        for y, value in enumerate(column):
            colour, weight = "white" if value > _DARK else "black", "bold" if value >= _GOOD else "normal"
            text = "–" if math.isnan(value) else f"{value:.3f}"
            axes.text(x, y, text, ha="center", va="center", color=colour, weight=weight, fontsize=9.5)
    over_snr = len({snr for snr, _ in points}) > 1
    if over_snr:
        axes.set(xlabel="SNR (dB)", title=f"{score}, {points[0][1]} frames")
    else:
        axes.set(xlabel="frames of a stream", title=f"{score}, {points[0][0]:g} dB SNR")
    shown = [f"{snr if over_snr else length:g}".replace("-", "−") for snr, length in points]
    axes.set_xticks(range(len(points)), shown)
    axes.tick_params(length=0)
    axes.spines[["left", "bottom"]].set_visible(False)
