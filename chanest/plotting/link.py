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

_LEAST = 0.002
"""Curves are cut here."""
_TICKS = (1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002)
_RED = "#b00020"
_REFERENCE_LOOKS = {
    "sionna-ls": Look(_RED, "+", DOTTED),
    "sionna-lmmse": Look(_RED, "X", MIXED),
    "perfect": Look("#222222", "", (0, (6, 2))),
    "genie-angles": Look("#222222", "", (0, (3, 1.5))),
}


def draw_link(results: LinkResults, path: Path) -> None:
    """BLER against SNR with 95 % intervals, a panel for each err_var of the plan; labels at the curves."""
    plan = results.plan
    seen = [row.bler for row in results.rows if row.bler > 0]
    least = min(TARGET / 10, max(_LEAST, min(seen, default=_LEAST)))
    with new_figure(path, (8.6 if len(plan.err_var) == 1 else 14.6, 6.2)) as figure:
        for axes, mode in zip(figure.subplots(1, len(plan.err_var), squeeze=False)[0], plan.err_var, strict=True):
            _draw_panel(axes, results, mode, least)
            ends = [
                (_level(results.curve(name, mode)[-1].bler), label(name), _look(name))
                for name in results.receivers(mode)
            ]
            label_ends(figure, axes, ends)
        code = f"{plan.modulation}, rate {plan.rate:g}, {plan.streams} stream{'s' if plan.streams > 1 else ''}"
        figure.suptitle(f"{plan.scenario.name}: {plan.blocks:,} blocks, {code}, 95 % intervals", fontsize=13)


def _draw_panel(axes: Axes, results: LinkResults, mode: ErrVar, least: float) -> None:
    """The curves of one mode. The axis is of log10 BLER, from `least` up."""
    for name in results.receivers(mode):
        rows, look = results.curve(name, mode), _look(name)
        places = [row.snr_db for row in rows]
        axes.plot(
            places, [_level(row.bler) for row in rows], color=look.colour, ls=look.line, marker=look.marker,
            lw=1.6 if name in BOUNDS else look.width, ms=look.size, zorder=3 if look.strong else 2,
        )  # fmt: skip
        if name not in BOUNDS:
            low, high = ([_level(getattr(row, key)) for row in rows] for key in ("bler_low", "bler_high"))
            axes.fill_between(places, low, high, color=look.colour, alpha=0.08, lw=0)
    axes.axhline(math.log10(TARGET), color="#777777", lw=0.8, ls=":")
    axes.set_xlabel("SNR (dB)")
    axes.set_xticks(sorted(results.plan.snr_db))
    axes.set_yticks([math.log10(tick) for tick in _TICKS], [f"{tick:g}" for tick in _TICKS])
    axes.set_ylim(math.log10(least) - 0.05, 0.05)
    axes.set_ylabel("block error rate")
    axes.set_title({"estimated": "err_var: the variance of the estimator's errors", "zero": "err_var 0"}[mode])
    axes.grid(alpha=0.25)


def _level(rate: float) -> float:
    return math.log10(max(rate, _LEAST / 100))


def _look(name: str) -> Look:
    return _REFERENCE_LOOKS.get(name) or look_of(name)
