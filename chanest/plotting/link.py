"""The figure of a link: block error rate against SNR. Readable in grey, bounds dashed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from chanest.link.plan import BOUNDS, ErrVar
from chanest.link.results import TARGET, LinkResults, label
from chanest.plotting.evaluation import look_of
from vlista_core.plotting import DOTTED, MIXED, Look, label_ends, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_RED = "#b00020"
_REFERENCE_LOOKS = {
    "sionna-ls": Look(_RED, "+", DOTTED),
    "sionna-lmmse": Look(_RED, "X", MIXED),
    "perfect": Look("#222222", "", (0, (6, 2))),
    "genie-angles": Look("#222222", "", (0, (3, 1.5))),
}


def draw_link(results: LinkResults, path: Path) -> None:
    """BLER against SNR with 95 % intervals, err_var as estimated; a panel of its own for err_var 0, where it was run."""
    plan = results.plan
    with new_figure(path, (8.6 if len(plan.err_var) == 1 else 14.6, 6.2)) as figure:
        panels = figure.subplots(1, len(plan.err_var), squeeze=False, sharey=True)[0]
        least = TARGET / 10
        for axes, mode in zip(panels, plan.err_var, strict=True):
            least = min(least, _draw_panel(axes, results, mode))
        for axes, mode in zip(panels, plan.err_var, strict=True):
            axes.set_ylim(math.log10(least) - 0.05, 0.05)
            ends = [
                (_level(results.curve(name, mode)[-1].bler, least), label(name, "estimated"), _look(name))
                for name, each in results.receivers()
                if each == mode
            ]
            label_ends(figure, axes, ends)
        code = f"{plan.modulation}, rate {plan.rate:g}, {plan.streams} stream{'s' if plan.streams > 1 else ''}"
        figure.suptitle(
            f"{plan.scenario.name}: block error rate, {code}, {plan.blocks:,} blocks, 95 % intervals", fontsize=13
        )


def _draw_panel(axes: Axes, results: LinkResults, mode: ErrVar) -> float:
    """The curves of one mode; returns the least BLER that the panel must show. The axis is of log10 BLER."""
    blocks = results.plan.blocks
    least = max(0.5 / blocks, 1e-4)
    for name, each in results.receivers():
        if each != mode:
            continue
        rows, look = results.curve(name, mode), _look(name)
        places = [row.snr_db for row in rows]
        axes.plot(
            places, [_level(row.bler, least) for row in rows], color=look.colour, ls=look.line, marker=look.marker,
            lw=1.6 if name in BOUNDS else look.width, ms=look.size, zorder=3 if look.strong else 2,
        )  # fmt: skip
        if name not in BOUNDS:
            low, high = ([_level(getattr(row, key), least) for row in rows] for key in ("bler_low", "bler_high"))
            axes.fill_between(places, low, high, color=look.colour, alpha=0.08, lw=0)
    axes.axhline(math.log10(TARGET), color="#777777", lw=0.8, ls=":")
    axes.set_xlabel("SNR (dB)")
    axes.set_xticks(sorted(results.plan.snr_db))
    ticks = [1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001]
    axes.set_yticks([math.log10(tick) for tick in ticks], [f"{tick:g}" for tick in ticks])
    axes.set_ylabel("block error rate")
    axes.set_title({"estimated": "err_var: variance of the estimator's errors", "zero": "err_var 0"}[mode])
    axes.grid(alpha=0.25)
    seen = [row.bler for row in results.rows if row.err_var == mode and row.bler > 0]
    return max(least, min(seen, default=least))


def _level(rate: float, least: float) -> float:
    return math.log10(max(rate, least))


def _look(name: str) -> Look:
    return _REFERENCE_LOOKS.get(name) or look_of(name)
