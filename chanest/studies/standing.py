"""What the rows of a bench say of every source: who is best, how far from the bound, and by how much ours lead or lose."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pandas as pd

from chanest.studies.common import values_of
from chanest.studies.ranking import SYMBOLS, Entry
from vlista_core.study import Table
from vlista_core.study.tables import decibels, milliseconds, missing, signed

if TYPE_CHECKING:
    from chanest.studies.bench import BenchStudy

OURS = ("universal", "gated-lmmse")
"""Estimators of this project that are to lead on every source."""
FAR_DB = 12.0
"""Gaps of this size and more are darkest."""
LENT = "†"
"""Marks figures with weights of another scenario."""
Place = tuple[str, float | None]
"""A line of tables: a scenario and a value of the sweep, None where the sweep is over the SNR."""


@dataclass(frozen=True)
class Standing:
    """The finished cells of a bench. An SNR of None stands for the mean over all, in dB."""

    study: "BenchStudy"
    frame: pd.DataFrame

    @cached_property
    def rows(self) -> dict[tuple[Place, str, float], Entry]:
        """By place, name and SNR: the errors of estimators and bounds."""
        return {(self._place(row), row["name"], row["snr_db"]): row for row in self.frame.to_dict("records")}

    @cached_property
    def places(self) -> list[Place]:
        """In the order of the study."""
        order = {scenario.name: number for number, scenario in enumerate(self.study.scenarios)}
        found = dict.fromkeys(place for place, _, _ in self.rows)
        return sorted(found, key=lambda place: (order[place[0]], place[1] or 0.0))

    @cached_property
    def names(self) -> list[str]:
        """The estimators that have figures, in the order of the study."""
        found = {name for _, name, _ in self.rows}
        return [name for name in self.study.estimators if name in found]

    @cached_property
    def snrs(self) -> list[float]:
        """Ascending."""
        return values_of(self.frame, "snr_db")

    def bound(self, place: Place) -> str | None:
        """The name of the bound that gaps are counted from; None where the source has none."""
        return next(
            (name for (where, name, _), row in self.rows.items() if (where, row["kind"]) == (place, "bound")), None
        )

    def level(self, place: Place, name: str | None, snr: float | None) -> float | None:
        """NMSE in dB; None where a cell is not done or a figure not finite."""
        if name is None:
            return None
        if snr is None:
            levels = [self.level(place, name, each) for each in self.snrs]
            known = [level for level in levels if level is not None]
            return sum(known) / len(known) if known and len(known) == len(levels) else None
        value: float | None = self.rows.get((place, name, snr), {}).get("nmse_db")
        return None if missing(value) else value

    def gap(self, place: Place, name: str, snr: float | None = None) -> float | None:
        """How far in dB an estimator lies above the bound; None without one."""
        mine, bound = self.level(place, name, snr), self.level(place, self.bound(place), snr)
        return None if mine is None or bound is None else mine - bound

    def best(self, place: Place, snr: float | None, *, ours: bool | None = None) -> str | None:
        """The most accurate estimator, of ours alone (True) or of the others alone (False); None where none has a figure."""
        levels = {
            name: level
            for name in self.names
            if ours in (None, name in OURS) and (level := self.level(place, name, snr)) is not None
        }
        return min(levels, key=lambda name: levels[name], default=None)

    def lead(self, place: Place, snr: float | None) -> float | None:
        """By how many dB the best of ours is better than the best other estimator; negative for a loss."""
        mine = self.level(place, self.best(place, snr, ours=True), snr)
        other = self.level(place, self.best(place, snr, ours=False), snr)
        return None if mine is None or other is None else other - mine

    def time(self, place: Place, name: str) -> float | None:
        """Milliseconds per channel at the SNR at which they were fewest: other work ran beside it."""
        found: list[float | None] = [self.rows.get((place, name, snr), {}).get("ms_in_passing") for snr in self.snrs]
        return min((time for time in found if time is not None and not missing(time)), default=None)

    def lent(self, place: Place, name: str) -> bool:
        """Whether the figures are with weights of another scenario."""
        return not missing(self.rows.get((place, name, self.snrs[0]), {}).get("lent_by"))

    def label(self, place: Place) -> str:
        """How tables and figures call a place."""
        scenario, value = place
        return scenario if value is None else f"{scenario}, {SYMBOLS[self.study.sweep]} = {value:g}"

    def tables(self) -> list[Table]:
        """The mean gaps; NMSE at every SNR; times; every row with its interval."""
        if not self.names:
            return []
        levels = [self._level_table(snr) for snr in self.snrs]
        return [self._gap_table(), *levels, self._time_table(), self._interval_table()]

    def _gap_table(self) -> Table:
        lines = [
            [
                self.label(place),
                *(self._marked_lent(place, name, signed(self.gap(place, name))) for name in self.names),
                signed(self.lead(place, None)),
                self.bound(place) or "none",
            ]
            for place in self.places
        ]
        heading = ("scenario", *self.names, "lead of ours", "bound")
        title = f"Gap to the best bound (dB), {self._snrs_in_words()}"
        gaps = {
            (line, column): min(max(gap, 0.0) / FAR_DB, 1.0)
            for line, place in enumerate(self.places)
            for column, name in enumerate(self.names, start=1)
            if (gap := self.gap(place, name)) is not None
        }
        return Table.of(title, heading, lines, marked=self._best_entries(None), shades=gaps)

    def _level_table(self, snr: float) -> Table:
        lines = []
        for place in self.places:
            rows = (self.rows.get((place, name, snr), {}) for name in self.names)
            shown = (decibels(row.get("nmse_db"), diverged=row.get("diverged")) for row in rows)
            levels = (self._marked_lent(place, name, text) for name, text in zip(self.names, shown, strict=True))
            bound = decibels(self.level(place, self.bound(place), snr))
            lines.append([self.label(place), *levels, signed(self.lead(place, snr)), bound])
        heading = ("scenario", *self.names, "lead of ours", "bound")
        return Table.of(f"NMSE (dB) at {snr:g} dB SNR", heading, lines, marked=self._best_entries(snr))

    def _time_table(self) -> Table:
        lines = [
            [self.label(place), *(milliseconds(self.time(place, name)) for name in self.names)] for place in self.places
        ]
        return Table.of("Milliseconds per channel, one thread, in passing", ("scenario", *self.names), lines)

    def _interval_table(self) -> Table:
        lines = []
        for (place, name, snr), row in self.rows.items():
            level = decibels(row["nmse_db"], 2, diverged=row["diverged"])
            interval = f"{decibels(row['nmse_low_db'], 2)} … {decibels(row['nmse_high_db'], 2)}"
            gap, time = signed(self.gap(place, name, snr)), milliseconds(row.get("ms_in_passing"))
            lender = "" if missing(row.get("lent_by")) else str(row["lent_by"])
            lines.append(
                (self.label(place), name, f"{snr:g}", level, interval, gap, time, f"{row['channels']:,}", lender)
            )
        heading = (
            "scenario",
            "name",
            "SNR (dB)",
            "NMSE (dB)",
            "95 % interval",
            "gap (dB)",
            "ms",
            "channels",
            "weights of",
        )
        return Table.of("NMSE as a ratio of sums, with its interval", heading, lines, detail=True)

    def headline(self) -> str:
        """On how many sources ours lead, by how much, and where they lose."""
        leads = {self.label(place): lead for place in self.places if (lead := self.lead(place, None)) is not None}
        if not leads:
            return self._closest()
        ahead = [lead for lead in leads.values() if lead >= 0]
        ours = " or ".join(name for name in self.names if name in OURS)
        sizes = list(dict.fromkeys(f"{size:.1f}" for size in (min(ahead), max(ahead)))) if ahead else []
        by = f", by {' to '.join(sizes)} dB" if sizes else ""
        lines = "scenarios" if self.study.sweep == "snr" else f"scenarios and {self.study.sweep}"
        said = f"{ours} leads on {len(ahead)} of {len(leads)} {lines}{by}, {self._snrs_in_words()}."
        behind = [f"{label} ({decibels(-lead)} dB)" for label, lead in leads.items() if lead < 0]
        return f"{said} Behind the best other estimator: {', '.join(behind)}." if behind else said

    def _closest(self) -> str:
        """Which estimator comes closest to the bounds on average; empty where no gap is known."""
        gaps = {
            name: [gap for place in self.places if (gap := self.gap(place, name)) is not None] for name in self.names
        }
        means = {name: sum(known) / len(known) for name, known in gaps.items() if known}
        if not means:
            return ""
        best = min(means, key=lambda name: means[name])
        return f"{best} comes closest to the bound: {signed(means[best])} dB, {self._snrs_in_words()}."

    def explanation(self) -> str:
        """How to read the tables."""
        said = (
            "Every estimator sees the same test channels, beams and noise. Lead of ours: the best of "
            f"{' and '.join(OURS)} against the best other estimator, positive where ours is better. Gap: dB above the LMMSE "
            "that knows the angles of the clusters, the covariance or the rays, whichever the source has. In bold: the best."
        )
        return f"{said} {words}" if (words := self._lent_in_words()) else said

    def caption(self) -> str:
        """Of the heat map."""
        said = f"Gap in dB, {self._snrs_in_words()}. Bold: the best of a line."
        whole = all(self.gap(place, name) is not None for place in self.places for name in self.names)
        hatched = "" if whole else "Hatched: no weights, no bound or no finite figure."
        return " ".join(filter(None, (said, hatched, self._lent_in_words())))

    def _lent_in_words(self) -> str:
        lenders = sorted({str(row["lent_by"]) for row in self.rows.values() if not missing(row.get("lent_by"))})
        return f"{LENT}: with the weights of {' and '.join(lenders)}." if lenders else ""

    def _snrs_in_words(self) -> str:
        levels = ", ".join(f"{snr:g}".replace("-", "−") for snr in self.snrs)
        return f"{'at' if len(self.snrs) == 1 else 'mean over'} {levels} dB SNR"

    def _marked_lent(self, place: Place, name: str, text: str) -> str:
        return f"{text} {LENT}" if self.lent(place, name) else text

    def _best_entries(self, snr: float | None) -> frozenset[tuple[int, int]]:
        """(line, column) of the best estimator of every place."""
        found = ((line, self.best(place, snr)) for line, place in enumerate(self.places))
        return frozenset((line, 1 + self.names.index(name)) for line, name in found if name is not None)

    def _place(self, row: Entry) -> Place:
        return row["scenario"], None if self.study.sweep == "snr" else row["value"]
