"""What the rows of a link say: the SNR that a block error rate takes. For tables and figures alike."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import pandas as pd

from chanest.bounds.genie import GenieAngles
from chanest.link import BOUNDS, REFERENCES, ErrVar
from chanest.studies.common import nested
from vlista_core.study import Table
from vlista_core.study.tables import decibels, missing, number, signed

if TYPE_CHECKING:
    from chanest.studies.link import LinkStudy

TARGET = 0.1
"""The block error rate at which receivers are compared."""


class BlockErrors:
    """The finished cells of a link: block errors over the SNR by receiver."""

    def __init__(self, study: "LinkStudy", frame: pd.DataFrame) -> None:
        self.study = study
        self.rows = nested(frame, *study.err_var)
        self.snrs = sorted(set(self.rows["snr_db"]))

    def curve(self, name: str, mode: ErrVar, column: str) -> list[float]:
        """A column of a receiver by ascending SNR; NaN where the cell is not done, or was before there was such a column."""
        rows = self.rows[(self.rows["name"] == name) & (self.rows["kind"] == mode)].set_index("snr_db")
        return [float(value) for value in rows.get(column, rows["bler"] * math.nan).astype(float).reindex(self.snrs)]

    def needed_snr(self, name: str, mode: ErrVar, column: str = "bler") -> float | None:
        """The SNR in dB at which the BLER of a receiver, or an end of its interval, falls to 10 %."""
        points = zip(self.snrs, self.curve(name, mode, column), strict=True)
        known = [(snr, rate) for snr, rate in points if not missing(rate)]
        return crossing([snr for snr, _ in known], [rate for _, rate in known])

    def receivers(self, mode: ErrVar | None = None) -> list[str]:
        """Best first, then the bounds: they know what no receiver can."""
        mode = mode or self.study.err_var[0]

        def rank(name: str) -> tuple[bool, float, float]:
            needed = self.needed_snr(name, mode)
            lost = sum(rate for rate in self.curve(name, mode, "bler") if not missing(rate))
            return name in BOUNDS, math.inf if needed is None else needed, lost

        return sorted(dict.fromkeys(self.rows["name"]), key=rank)

    def headline(self) -> str:
        mode = self.study.err_var[0]
        needed = {name: snr for name in self.receivers() if (snr := self.needed_snr(name, mode)) is not None}
        best = next((name for name in needed if name not in BOUNDS), None)
        if best is None:
            return f"Block errors of no receiver pass {TARGET:.0%} between the SNRs of this run."
        beyond = [
            f"{signed(needed[best] - needed[name])} dB from {label(name)}"
            for name in (*BOUNDS[::-1], "ls")
            if name in needed and name != best
        ]
        words = f"{label(best)} needs the least SNR for {TARGET:.0%} block errors, {decibels(needed[best])} dB"
        return f"{words}{': ' if beyond else ''}{', '.join(beyond)}."

    def needed_table(self) -> Table:
        study, mode, middle = self.study, self.study.err_var[0], len(self.snrs) // 2
        genie = self.needed_snr(GenieAngles.name, mode) if GenieAngles.name in self.receivers() else None
        lines = []
        for name in self.receivers():
            needed, low, high = (self.needed_snr(name, mode, column) for column in ("bler", "bler_low", "bler_high"))
            between = "–" if low is None or high is None else f"{decibels(low)} to {decibels(high)}"
            gap = None if needed is None or genie is None else needed - genie
            level, lost = (self.curve(name, mode, column)[middle] for column in ("channel_nmse_db", "diverged"))
            nmse = decibels(level, diverged=lost)
            rates = map(_rate, self.curve(name, mode, "bler"))
            lines.append((_shown(name), decibels(needed), between, signed(gap), nmse, *rates))
        heading = ("", f"SNR for {TARGET:.0%}", "95 %", "from genie (b)", f"NMSE of G at {self.snrs[middle]:g} dB")
        blocks = f"{study.blocks:,} blocks at each SNR (dB)"
        title = f"{study.scenario.name}: BLER of {blocks}, and the SNR that {TARGET:.0%} takes"
        return Table.of(title, heading + tuple(f"{snr:g}" for snr in self.snrs), lines, bounds=self._bounds)

    def table(self, title: str, column: str) -> Table:
        """A column of all receivers over the SNR."""
        text = _rate if column == "ber" else lambda value: number(value, ".2f")
        mode = self.study.err_var[0]
        lines = [(_shown(name), *map(text, self.curve(name, mode, column))) for name in self.receivers()]
        return Table.of(title, ("", *(f"{snr:g}" for snr in self.snrs)), lines, bounds=self._bounds)

    def err_var_table(self) -> Table:
        """Blocks lost with err_var and without, at the same seeds, over all SNRs."""
        lines = []
        modes: tuple[ErrVar, ErrVar] = ("estimated", "zero")
        for name in (name for name in self.receivers() if name != "perfect"):
            rates = (self.curve(name, mode, "bler") for mode in modes)
            lost = (sum(rate * self.study.blocks for rate in each if not missing(rate)) for each in rates)
            told, blind = (self.needed_snr(name, mode) for mode in modes)
            gain = None if told is None or blind is None else blind - told
            lines.append(
                (_shown(name), *(f"{each:.0f}" for each in lost), decibels(told), decibels(blind), signed(gain))
            )
        heading = ("", "blocks lost", "with err_var 0", f"SNR for {TARGET:.0%}", "with err_var 0", "dB saved")
        blocks = f"{self.study.blocks * len(self.snrs):,} blocks"
        return Table.of(f"What err_var is worth: the same {blocks} with it and without", heading, lines)

    @property
    def _bounds(self) -> int:
        return sum(name in BOUNDS for name in self.receivers())


def label(name: str) -> str:
    """How tables and legends call a receiver."""
    return REFERENCES.get(name, name)


def crossing(snr_db: Sequence[float], bler: Sequence[float], target: float = TARGET) -> float | None:
    """The SNR at which the BLER falls to `target`, by interpolation of its logarithm; None where it is not in reach.

    snr_db ascends. The last fall through the target counts, and no errors at all count as a hundredth of it.
    """
    points = list(zip(snr_db, bler, strict=True))
    for (left, before), (right, after) in reversed(list(pairwise(points))):
        if before > target >= after:
            floor = max(after, target / 100)
            return left + (right - left) * math.log(before / target) / math.log(before / floor)
    return None


def _shown(name: str) -> str:
    return label(name) + (" (bound)" if name in BOUNDS else "")


def _rate(value: float) -> str:
    if missing(value):
        return "–"
    return f"{value:.3f}" if value >= 0.0095 else "0" if value == 0 else f"{value:.1e}"
