"""What the rows of an accuracy study say: who is best, by how much, and at what cost. For tables and figures alike."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from chanest.studies.common import BATCH
from vlista_core.study import Table
from vlista_core.study.tables import decibels, milliseconds, missing, number, signed

if TYPE_CHECKING:
    import pandas as pd

    from chanest.studies.accuracy import AccuracyStudy

REFERENCE = "genie-angles"
"""The bound that gaps are counted from: LMMSE with the cluster angles and orientations known, genie (b)."""
_SYMBOLS = {"snr": "SNR", "pilots": "T", "chains": "chains", "bits": "bits"}
_COSTS = ["ms_batch_1", "ms_batch", "parameters", "threads"]
Point = tuple[float, float]
"""A value of the sweep (the SNR itself where the sweep is over it) and an SNR."""


@dataclass(frozen=True)
class Ranking:
    """The finished cells of an accuracy study, estimators from best to worst, then the bounds."""

    study: AccuracyStudy
    frame: pd.DataFrame

    @cached_property
    def rows(self) -> pd.DataFrame:
        """The lines of the frame with an NMSE: all but those of costs."""
        return self.frame[self.frame["kind"] != "cost"] if len(self.frame) else self.frame

    @cached_property
    def levels(self) -> pd.DataFrame:
        """NMSE in dB: one line per estimator and bound that has some, in the order of work; one column per point."""
        return self.wide("nmse_db")

    def wide(self, column: str) -> pd.DataFrame:
        """A column of the rows: one line per estimator and bound, one column per point."""
        import pandas as pd

        points = pd.MultiIndex.from_tuples([(float(value), float(snr)) for value, snr in self.study.points()])
        if not len(self.rows):
            return pd.DataFrame(columns=points, dtype=float)
        wide = self.rows.astype({column: float}).pivot(index="name", columns=["value", "snr_db"], values=column)
        known = [name for name in (*self.study.estimators, *self.study.bounds) if name in wide.index]
        return wide.reindex(index=known, columns=points)

    @cached_property
    def gaps(self) -> pd.DataFrame:
        """How far in dB the NMSE lies above that of the reference bound; NaN without one."""
        levels = self.levels
        return levels.sub(levels.loc[REFERENCE]) if REFERENCE in levels.index else levels * math.nan

    @cached_property
    def costs(self) -> pd.DataFrame:
        """What the estimators cost, NaN where it is not known: one line per estimator and bound."""
        import pandas as pd

        names = [*self.study.estimators, *self.study.bounds]
        if not len(self.frame):
            return pd.DataFrame(index=names, columns=_COSTS, dtype=float)
        rows = self.frame[self.frame["kind"] == "cost"].set_index("name")
        return rows.reindex(index=names, columns=_COSTS).astype(float)

    @cached_property
    def labels(self) -> dict[str, str]:
        """How tables and figures call each estimator and bound."""
        said = self.frame.set_index("name")["label"].dropna().to_dict() if "label" in self.frame else {}
        return {name: str(said.get(name, name)) for name in (*self.study.estimators, *self.study.bounds)}

    def best_first(self, kind: str, snr_db: float | None = None) -> list[str]:
        """The estimators or bounds that have figures, best first at an SNR (the middle one); those without one last."""
        point = self.study.middle() if snr_db is None else self.study.points(snr_db)[-1]
        ranked = self.levels[point].sort_values(kind="stable", na_position="last")
        names = self.study.estimators if kind == "estimator" else self.study.bounds
        return [str(name) for name in ranked.index if name in names]

    def tables(self) -> list[Table]:
        """NMSE, gap and cost by panel; the gaps at every point; every row with its interval."""
        if not len(self.levels):
            return []
        panels = self.study.panels()
        gaps = [self._gap_table(snr) for snr in panels] if REFERENCE in self.levels.index else []
        return [*(self._main_table(snr) for snr in panels), *gaps, self._interval_table()]

    def _main_table(self, snr: float | None) -> Table:
        study, points = self.study, sorted(self.study.points(snr))
        estimators, bounds = self.best_first("estimator", snr), self.best_first("bound", snr)
        lines = []
        for name in (*estimators, *bounds):
            cost = self.costs.loc[name]
            label = f"{self.labels[name]} (bound)" if name in bounds else self.labels[name]
            gap = self.gaps.loc[name, points].mean(skipna=False)
            times = milliseconds(cost["ms_batch_1"]), milliseconds(cost["ms_batch"])
            shown = (decibels(self.levels.loc[name, point]) for point in points)
            lines.append((label, *shown, signed(gap), *times, number(cost["parameters"], ",.0f")))
        heading = ("estimator", *self._headings(points), "gap (dB)", "ms alone", f"ms at {self.batch}", "parameters")
        title = f"{study.scenario.name}: NMSE (dB){_at(snr)}, {study.channels:,} test channels"
        return Table.of(title, heading, lines, bounds=len(bounds))

    def _gap_table(self, snr: float | None) -> Table:
        points = sorted(self.study.points(snr))
        lines = []
        for name in self.best_first("estimator", snr):
            gaps = self.gaps.loc[name, points]
            lines.append((self.labels[name], *map(signed, gaps), signed(gaps.mean(skipna=False))))
        title = f"Gap to {self.labels[REFERENCE]} (dB){_at(snr)}"
        return Table.of(title, ("estimator", *self._headings(points), "mean"), lines)

    def _interval_table(self) -> Table:
        lines = [
            (
                self.labels[row["name"]], f"{row['value']:g}", f"{row['snr_db']:g}", decibels(row["nmse_db"], 2),
                f"{decibels(row['nmse_low_db'], 2)} … {decibels(row['nmse_high_db'], 2)}",
                decibels(row["nmse_mean_db"], 2), decibels(row["nmse_median_db"], 2), f"{row['diverged']:.0f}",
            )
            for _, row in self.rows.iterrows()
        ]  # fmt: skip
        symbol = _SYMBOLS[self.study.sweep]
        heading = ("name", symbol, "SNR (dB)", "NMSE (dB)", "95 % interval", "mean", "median", "diverged")
        title = "NMSE as a ratio of sums, with its interval; mean and median of the ratios of the channels"
        return Table.of(title, heading, lines, detail=True)

    def headline(self) -> str:
        """Who is best, how far from the bound, at what cost, and who is next."""
        names = self.best_first("estimator")
        if not names:
            return "Only bounds were evaluated." if len(self.levels) else ""
        point = value, snr = self.study.middle()
        best, *others = names
        if missing(self.levels.loc[best, point]):
            return "No estimator gave finite results."
        gap = self.gaps.loc[best, point]
        side = "above" if gap >= 0 else "below"
        bound = "" if missing(gap) else f", {abs(gap):.1f} dB {side} the bound “{self.labels[REFERENCE]}”"
        place = f"{snr:g} dB SNR" + ("" if self.study.sweep == "snr" else f" and {self.study.sweep} = {value:g}")
        level = f"{decibels(self.levels.loc[best, point])} dB NMSE at {place}"
        said = f"{self.labels[best]} is the most accurate: {level}{bound}{self._time(best)}."
        if others and not missing(self.levels.loc[others[0], point]):
            level = f"{decibels(self.levels.loc[others[0], point])} dB"
            said += f" Next is {self.labels[others[0]]} with {level}{self._time(others[0])}."
        return said

    def explanation(self) -> str:
        """How to read the tables."""
        return (
            "NMSE is the ratio of sums Σ‖ĥ − h‖² / Σ‖h‖², every estimator on the same channels, beams and noise. Gap: dB "
            "above the LMMSE that knows the angles, averaged over the columns. Times are per channel, warm, one call on a "
            f"single channel and on a batch of {self.batch}, with {number(self.costs['threads'].max(), '.0f')} torch "
            "threads. Bounds know what no estimator can."
        )

    @property
    def batch(self) -> int:
        """Channels in a call when latencies were measured."""
        return min(BATCH, self.study.channels)

    def _time(self, name: str) -> str:
        time = self.costs.loc[name, "ms_batch"]
        return "" if missing(time) else f", in {milliseconds(time)} ms per channel"

    def _headings(self, points: list[Point]) -> list[str]:
        if self.study.sweep == "snr":
            return [f"{snr:g} dB".replace("-", "−") for _, snr in points]
        return [f"{_SYMBOLS[self.study.sweep]} {value:g}" for value, _ in points]


def _at(snr: float | None) -> str:
    return " by SNR" if snr is None else f" at {snr:g} dB SNR"
