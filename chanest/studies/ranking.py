"""What the rows of an accuracy study say: who is best, by how much, and at what cost. For tables and figures alike."""

import math
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pandas as pd

from chanest.bounds import BOUNDS
from chanest.studies.common import BATCH
from vlista_core.study import Table
from vlista_core.study.tables import decibels, milliseconds, missing, number, signed

if TYPE_CHECKING:
    from chanest.studies.accuracy import AccuracyStudy

REFERENCE = "genie-angles"
"""The bound that gaps are counted from: LMMSE with the cluster angles and orientations known, genie (b)."""
SYMBOLS = {"snr": "SNR", "pilots": "T", "chains": "chains", "bits": "bits"}
"""Of what is swept, in tables."""
Point = tuple[float, float]
"""A value of the sweep (the SNR itself where the sweep is over it) and an SNR."""
Entry = dict[Hashable, Any]
"""A line of a frame."""


@dataclass(frozen=True)
class Ranking:
    """The finished cells of an accuracy study, estimators from best to worst, then the bounds."""

    study: "AccuracyStudy"
    frame: pd.DataFrame

    @cached_property
    def rows(self) -> dict[tuple[str, Point], Entry]:
        """By name and point: the errors of an estimator or a bound."""
        entries = (row for row in self.frame.to_dict("records") if row["kind"] != "cost")
        return {(row["name"], (row["value"], row["snr_db"])): row for row in entries}

    @cached_property
    def costs(self) -> dict[str, Entry]:
        """By name: what an estimator costs."""
        return {row["name"]: row for row in self.frame.to_dict("records") if row["kind"] == "cost"}

    @cached_property
    def labels(self) -> dict[str, str]:
        """How tables and figures call each estimator and bound."""
        bounds = {name: str(row["label"]) for (name, _), row in self.rows.items() if row["kind"] == "bound"}
        return {name: bounds.get(name, name) for name, _ in self.rows}

    def level(self, name: str, point: Point, column: str = "nmse_db") -> float | None:
        """In dB; None where the cell is not done or the figure not finite."""
        value: float | None = self.rows.get((name, point), {}).get(column)
        return None if missing(value) else value

    def shown(self, name: str, point: Point, digits: int = 1) -> str:
        """The NMSE as tables print it."""
        row = self.rows.get((name, point), {})
        return decibels(row.get("nmse_db"), digits, diverged=row.get("diverged"))

    def gap(self, name: str, point: Point) -> float | None:
        """How far in dB the NMSE lies above that of the reference bound; None without one."""
        mine, bound = self.level(name, point), self.level(REFERENCE, point)
        return None if mine is None or bound is None else mine - bound

    def mean_gap(self, name: str, points: list[Point]) -> float | None:
        """Over all points; None where one is missing."""
        known = [gap for point in points if (gap := self.gap(name, point)) is not None]
        return sum(known) / len(known) if known and len(known) == len(points) else None

    def best_first(self, kind: str, snr_db: float | None = None) -> list[str]:
        """The estimators or bounds that have figures, best first at an SNR (the middle one); those without one last."""
        point = self.study.middle() if snr_db is None else self.study.points(snr_db)[-1]
        names = self.study.estimators if kind == "estimator" else self.study.bounds
        levels = {name: self.level(name, point) for name in names if name in self.labels}
        return sorted(levels, key=lambda name: math.inf if (level := levels[name]) is None else level)

    def tables(self) -> list[Table]:
        """NMSE, gap and cost by panel; the gaps at every point; every row with its interval."""
        if not self.rows:
            return []
        panels = self.study.panels()
        gaps = [self._gap_table(snr) for snr in panels] if REFERENCE in self.labels else []
        return [*(self._main_table(snr) for snr in panels), *gaps, self._interval_table()]

    def _main_table(self, snr: float | None) -> Table:
        study, points = self.study, sorted(self.study.points(snr))
        estimators, bounds = self.best_first("estimator", snr), self.best_first("bound", snr)
        lines = []
        for name in (*estimators, *bounds):
            cost = self.costs.get(name, {})
            label = f"{self.labels[name]} ({BOUNDS[name].word()})" if name in bounds else self.labels[name]
            levels = (self.shown(name, point) for point in points)
            times = (milliseconds(cost.get(key)) for key in ("ms_batch_1", "ms_batch"))
            parameters = number(cost.get("parameters"), ",.0f")
            lines.append((label, *levels, signed(self.mean_gap(name, points)), *times, parameters))
        heading = ("estimator", *self._headings(points), "gap (dB)", "ms alone", f"ms at {self.batch}", "parameters")
        title = f"{study.scenario.name}: NMSE (dB){_at(snr)}, {study.channels:,} test channels"
        return Table.of(title, heading, lines, bounds=len(bounds))

    def _gap_table(self, snr: float | None) -> Table:
        points = sorted(self.study.points(snr))
        lines = [
            (name, *(signed(self.gap(name, point)) for point in points), signed(self.mean_gap(name, points)))
            for name in self.best_first("estimator", snr)
        ]
        title = f"Gap to {self.labels[REFERENCE]} (dB){_at(snr)}"
        return Table.of(title, ("estimator", *self._headings(points), "mean"), lines)

    def _interval_table(self) -> Table:
        lines = [
            (
                self.labels[name], f"{row['value']:g}", f"{row['snr_db']:g}", self.shown(name, point, 2),
                f"{decibels(row['nmse_low_db'], 2)} … {decibels(row['nmse_high_db'], 2)}",
                decibels(row["nmse_mean_db"], 2), decibels(row["nmse_median_db"], 2), f"{row['diverged']:.0f}",
            )
            for (name, point), row in self.rows.items()
        ]  # fmt: skip
        symbol = SYMBOLS[self.study.sweep]
        heading = ("name", symbol, "SNR (dB)", "NMSE (dB)", "95 % interval", "mean", "median", "diverged")
        title = "NMSE as a ratio of sums, with its interval; mean and median of the ratios of the channels"
        return Table.of(title, heading, lines, detail=True)

    def headline(self) -> str:
        """Who is best, how far from the bound, at what cost, and who is next."""
        names = self.best_first("estimator")
        if not names:
            return "Only bounds and references were evaluated." if self.rows else ""
        point = value, snr = self.study.middle()
        best, *others = names
        if self.level(best, point) is None:
            return "No estimator gave finite results."
        gap, bound = self.gap(best, point), ""
        if gap is not None:
            side = "above" if gap >= 0 else "below"
            bound = f", {abs(gap):.1f} dB {side} the bound “{self.labels[REFERENCE]}”"
        place = f"{snr:g} dB SNR" + ("" if self.study.sweep == "snr" else f" and {self.study.sweep} = {value:g}")
        level = f"{decibels(self.level(best, point))} dB NMSE at {place}"
        said = f"{best} is the most accurate: {level}{bound}{self._time(best)}."
        if others and self.level(others[0], point) is not None:
            said += f" Next is {others[0]} with {decibels(self.level(others[0], point))} dB{self._time(others[0])}."
        return said

    def explanation(self) -> str:
        """How to read the tables."""
        threads = " or ".join(sorted({f"{cost['threads']:.0f}" for cost in self.costs.values()})) or "–"
        return (
            "NMSE is the ratio of sums Σ‖ĥ − h‖² / Σ‖h‖², every estimator on the same channels, beams and noise. Gap: dB "
            "above the LMMSE that knows the angles, averaged over the columns. Times are per channel, warm, one call on a "
            f"single channel and on a batch of {self.batch}, with {threads} torch threads. Bounds know what no "
            "estimator can; a reference is no bound: an estimator that adapts to the channel at hand may pass it."
        )

    @property
    def batch(self) -> int:
        """Channels in a call when latencies were measured."""
        return min(BATCH, self.study.channels)

    def _time(self, name: str) -> str:
        time = self.costs.get(name, {}).get("ms_batch")
        return "" if missing(time) else f", in {milliseconds(time)} ms per channel"

    def _headings(self, points: list[Point]) -> list[str]:
        if self.study.sweep == "snr":
            return [f"{snr:g} dB".replace("-", "−") for _, snr in points]
        return [f"{SYMBOLS[self.study.sweep]} {value:g}" for value, _ in points]


def _at(snr: float | None) -> str:
    return " by SNR" if snr is None else f" at {snr:g} dB SNR"
