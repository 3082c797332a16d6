"""Charts of studies: readable in grey, bounds dashed. Matplotlib is imported when one is drawn."""

import math
from collections.abc import Hashable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from vlista_core.charts import DOTTED, MIXED, Axis, Chart, Look, Panel, Point, Series, best_and_bounds
from vlista_core.plotting import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    "slot-lmmse": Look(_GREEN, "s", MIXED, strong=True),
    "delay-sbl": Look("#00365c", "v", MIXED, strong=True),
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


def look_of(name: str) -> Look:
    """How an estimator, a receiver or a bound is drawn."""
    return LOOKS.get(name) or _RECEIVERS.get(name) or _OWN[0]


def _looks(ranking: "Ranking") -> dict[str, Look]:
    """How each estimator and bound of a study is drawn, best first."""
    own = count()
    looks = {name: LOOKS.get(name) or _OWN[next(own) % len(_OWN)] for name in ranking.best_first("estimator")}
    for number, name in enumerate(ranking.best_first("bound")):
        looks[name] = Look(_BLACK, "", _BOUND_LINES[number % len(_BOUND_LINES)])
    return looks


def nmse_chart(ranking: "Ranking") -> Chart:
    """NMSE over the sweep with 95 % intervals, a panel for each SNR unless the sweep is over it."""
    study = ranking.study
    panels = [_nmse_panel(ranking, snr) for snr in study.panels()]
    places = sorted({value for value, _ in study.points()})
    span = places[-1] - places[0] or 1.0
    return Chart(
        f"{study.scenario.name}: NMSE of {study.channels:,} test channels, 95 % intervals",
        Axis(_AXES[study.sweep], places, limits=(places[0] - 0.03 * span, places[-1] + 0.02 * span)), Axis("NMSE (dB)"),
        panels, first=best_and_bounds(panels[0].series),
    )  # fmt: skip


def _nmse_panel(ranking: "Ranking", snr: float | None) -> Panel:
    points = sorted(ranking.study.points(snr))
    curves = []
    for name, look in _looks(ranking).items():
        known = [(point, level) for point in points if (level := ranking.level(name, point)) is not None]
        if not known:
            continue
        bound = name not in ranking.study.estimators
        low, high = (
            [math.nan if (end := ranking.level(name, point, key)) is None else end for point, _ in known]
            for key in ("nmse_low_db", "nmse_high_db")
        )
        ends = () if bound or any(map(math.isnan, (*low, *high))) else tuple(zip(low, high, strict=True))
        levels = [(point[0], level) for point, level in known]
        curves.append(Series(ranking.labels[name], look, levels, ends, bound=bound))
    shown = [level for each in curves for _, level in each.points]
    limits = (min([0.0, *shown]) - 1.5, min(max(shown, default=_TOP_DB), _TOP_DB) + 0.8)
    return Panel("" if snr is None else f"SNR {snr:g} dB", curves, limits)


def latency_chart(ranking: "Ranking") -> Chart:
    """NMSE at the middle SNR against milliseconds per channel in a batch; bounds are lines, for they cost nothing."""
    study, marks, bounds = ranking.study, list[Series](), list[Series]()
    for name, look in _looks(ranking).items():
        level, time = ranking.level(name, study.middle()), ranking.costs.get(name, {}).get("ms_batch")
        if level is not None and name in study.bounds:
            bounds.append(Series(ranking.labels[name], look, [(0.0, level)], bound=True))
        elif level is not None and time is not None:
            marks.append(Series(name, look, [(time, min(level, _TOP_DB))]))
    times = [x for each in marks for x, _ in each.points] or [1.0]
    levels = [y for each in (*marks, *bounds) for _, y in each.points] or [0.0]
    top = max((y for each in marks for _, y in each.points), default=0.0)
    return Chart(
        f"{study.scenario.name}: accuracy against latency (better: down and to the left)",
        Axis(
            f"time per channel in a batch of {ranking.batch} (ms, logarithmic)", logarithmic=True,
            limits=(min(times) / 2.5, max(times) * 3.5),
        ),
        Axis(f"NMSE at {study.middle()[1]:g} dB SNR (dB)"),
        [Panel("", [*marks, *bounds], (min(levels) - 1.2, top + 1.2))], marks=True, size=(8.6, 5.6),
    )  # fmt: skip


_LEAST = 0.002
"""Curves of block errors are cut here."""
_TICKS = (1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002)


def link_chart(errors: "BlockErrors") -> Chart:
    """BLER against SNR with 95 % intervals, a panel for each err_var of the study."""
    from chanest.link import BOUNDS
    from chanest.studies.block_errors import TARGET, label

    study = errors.study
    seen = [rate for rate in errors.rows["bler"] if rate > 0]
    least = min(TARGET / 10, max(_LEAST, min(seen, default=_LEAST)))
    titles = {"estimated": "err_var: the variance of the estimator's errors", "zero": "err_var 0"}
    panels = []
    for mode in study.err_var:
        curves = []
        for name in errors.receivers(mode):
            columns = (errors.curve(name, mode, column) for column in ("bler", "bler_low", "bler_high"))
            known = [line for line in zip(errors.snrs, *columns, strict=True) if not math.isnan(line[1])]
            ends = () if name in BOUNDS or any(map(math.isnan, sum(known, ()))) else known
            cut = _LEAST / 100
            curves.append(
                Series(
                    label(name),
                    look_of(name),
                    [(snr, max(rate, cut)) for snr, rate, _, _ in known],
                    [(max(low, cut), max(high, cut)) for _, _, low, high in ends],
                    bound=name in BOUNDS,
                )
            )
        panels.append(Panel(titles[mode], [each for each in curves if each.points], (0.9 * least, 1.1)))
    return Chart(
        f"{study.scenario.name}: {study.blocks:,} blocks, {study.code}, 95 % intervals",
        Axis("SNR (dB)", errors.snrs), Axis("block error rate", _TICKS, logarithmic=True), panels, level=TARGET,
        first=best_and_bounds(panels[0].series), size=(8.6 if len(panels) == 1 else 14.6, 6.2),
    )  # fmt: skip


_BAND = 2.0
"""Points to either side within which intervals count as right: the grey band."""


def reliability_chart(study: "CoverageStudy", variances: pd.DataFrame) -> Chart:
    """Coverage minus level over the level, in points, a panel for each SNR: calibrated variances above, the own below."""
    from chanest.studies.coverage import KINDS, LEVELS

    snrs = sorted(set(variances["snr_db"]))
    panels = []
    for kind in (kind for kind in KINDS if (variances["kind"] == kind).any()):
        line = []
        for snr in snrs:
            rows = variances[(variances["kind"] == kind) & (variances["snr_db"] == snr)]
            curves = [
                Series(name, look_of(name), _gaps(covered, LEVELS), every=3)
                for name, covered in zip(rows["name"], rows["covered"], strict=True)
                if None not in covered
            ]
            line.append(Panel(f"{snr:g} dB, {'calibrated' if kind == 'calibrated' else 'before calibration'}", curves))
        panels += _on_one_scale(line)
    said = f"what intervals cover beyond what they say, {study.channels:,} test channels"
    return Chart(
        f"{study.scenario.name}: {said}", Axis("level of the interval (%)"), Axis("coverage − level (points)"), panels,
        columns=len(snrs), level=0.0, band=(-_BAND, _BAND),
    )  # fmt: skip


def grid_coverage_chart(study: "CoverageStudy", variances: pd.DataFrame) -> Chart:
    """What conformal 90 % intervals cover by symbol (above) and by subcarrier (below), a panel for each SNR."""
    known = variances[variances["by_subcarrier"].notna()]
    snrs, panels = sorted(set(known["snr_db"])), []
    for axis, words in (("by_symbol", "symbol by symbol"), ("by_subcarrier", "subcarrier by subcarrier")):
        line = []
        for snr in snrs:
            rows = known[known["snr_db"] == snr]
            curves = [
                Series(name, look_of(name), [(place, 100 * share - 90) for place, share in enumerate(shares)], every=9)
                for name, shares in zip(rows["name"], rows[axis], strict=True)
            ]
            line.append(Panel(f"{snr:g} dB, {words}", curves))
        panels += _on_one_scale(line)
    return Chart(
        f"{study.scenario.name}: what 90 % intervals cover over the grid, {study.channels:,} test samples",
        Axis("number of the symbol or subcarrier"), Axis("coverage − 90 % (points)"), panels,
        columns=len(snrs), level=0.0, band=(-_BAND, _BAND),
    )  # fmt: skip


def _gaps(covered: list[float], levels: tuple[float, ...]) -> list[Point]:
    """(level, what is covered beyond it) in points of a per cent."""
    return [(100 * level, 100 * (share - level)) for share, level in zip(covered, levels, strict=True)]


def _on_one_scale(panels: list[Panel]) -> list[Panel]:
    """The panels with the limits that hold all of them."""
    levels = [y for panel in panels for each in panel.series for _, y in each.points] or [0.0]
    margin = 0.05 * (max(levels) - min(levels)) + 0.1
    return [panel._replace(limits=(min(levels) - margin, max(levels) + margin)) for panel in panels]


def tracking_chart(study: "TrackingStudy", frame: pd.DataFrame) -> Chart:
    """NMSE by snapshot, a panel for each SNR: tracked (solid), each by itself (dotted), and the bound (dashed)."""
    panels = []
    for snr in sorted(set(frame["snr_db"])):
        rows = frame[frame["snr_db"] == snr].to_dict("records")
        panels.append(Panel(f"SNR {snr:g} dB", [each for each in map(_track, rows) if each.points]))
    title = f"What earlier snapshots are worth: {study.tracks} test tracks"
    snapshots = range(1, study.snapshots + 1)
    size = (4.9 * len(panels) + 0.4, 5.0)
    return Chart(title, Axis("snapshot of the track", snapshots), Axis("NMSE (dB)"), panels, size=size)


def _track(row: dict[Hashable, Any]) -> Series:
    """The levels of an estimator snapshot by snapshot."""
    own, kind = look_of(row["name"]), row["kind"]
    line = DOTTED if kind == "alone" else "-" if kind == "tracked" else _BOUND_LINES[0]
    look = Look(own.colour, own.marker, line, strong=kind == "tracked")
    levels = [(float(number), level) for number, level in enumerate(row["nmse_db"], start=1) if level is not None]
    return Series(row["label"], look, levels, bound=kind not in ("alone", "tracked"))


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
