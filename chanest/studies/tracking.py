"""Tracking on test tracks: NMSE snapshot by snapshot, with what earlier snapshots have shown and without, beside the bound."""

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pandas as pd
import torch
from torch import Tensor

from chanest.bounds import get_bound
from chanest.problem import ChannelBatch
from chanest.scenario import CdlSection
from chanest.studies.common import ChannelStudy, draws, level_of, load, planned_weights, values_of
from chanest.studies.ranking import REFERENCE
from chanest.tracking import Tracker, track
from chanest.weights import get_estimator
from vlista_core.metrics import finite_samples
from vlista_core.problems import check_count
from vlista_core.study import Cell, Context, Figure, Row, Table
from vlista_core.study.measuring import finite
from vlista_core.study.tables import decibels

_TRACKS_AT_ONCE = 25


class TrackingStudy(ChannelStudy):
    """Estimators with and without tracking on test tracks of a moving scenario, and the bound that knows the angles."""

    name: ClassVar[str] = "tracking"
    heading: ClassVar[str] = "snapshots over time"
    summary: ClassVar[str] = (
        "NMSE by snapshot of a track: dotted and plain names each snapshot by itself, solid and “tracked” with what earlier "
        "snapshots have shown of the angles. The bound is told the angles."
    )
    growing: ClassVar[frozenset[str]] = frozenset({"estimators", "snr_db"})

    estimators: tuple[str, ...] = ("gated-lmmse", "gmm")
    tracks: int = 100
    memory: float = 1.0
    """What a snapshot still counts after one more, 0 to 1."""
    trained_on: str | None = None
    """The scenario whose weights to take; None takes those of `scenario`."""

    @property
    def snapshots(self) -> int:
        """Of a track."""
        return self.scenario.channel.snapshots if isinstance(self.scenario.channel, CdlSection) else 1

    def check(self) -> None:
        super().check()
        check_count("tracks", self.tracks)
        if self.snapshots < 2:
            fault = f"its channel.snapshots must be 2 or more, got {self.snapshots}"
            raise ValueError(f"{self.scenario.name} has no tracks: {fault}")
        for name in self.estimators:
            Tracker(
                get_estimator(name, self.problem, trained_on=self.trained_on, guarded=False, substitute=False),
                memory=self.memory,
            )

    def cells(self) -> list[Cell]:
        self.check()
        weights = {name: planned_weights(name, self.problem, self.trained_on) for name in self.estimators}
        kinds = [(name, kind) for name in self.estimators for kind in ("alone", "tracked")] + [(REFERENCE, "bound")]
        common: Cell = {"scenario": self.scenario.name, "tracks": self.tracks, "seed": self.seed}
        return [
            {"name": name, "kind": kind, "snr_db": snr, **common, "weights": weights.get(name)}
            for snr in self.snr_db
            for name, kind in kinds
        ]

    def cell_id(self, cell: Cell) -> str:
        return f"{cell['name']}.{cell['kind']}.snr_{cell['snr_db']:g}"

    def run(self, cell: Cell, context: Context) -> Row:
        if cell["kind"] == "bound":
            bound = get_bound(REFERENCE, self.problem)
            return {"label": bound.label, **self._levels(lambda batch: bound.bound(batch).signal, cell)}
        estimator, facts = load(cell, self.problem, self.trained_on)
        if cell["kind"] == "tracked":
            label = f"{cell['name']}, tracked"
            found = self._levels(lambda batch: track(estimator, batch, self.snapshots, memory=self.memory), cell)
        else:
            label = str(cell["name"])
            found = self._levels(lambda batch: estimator.estimate(batch.y, batch.phi, batch.noise_var).signal, cell)
        return {"label": label, **found, **facts}

    def _levels(self, estimate: Callable[[ChannelBatch], Tensor], cell: Cell) -> Row:
        """NMSE of each snapshot and of all, in dB: ratios of sums. estimate: ĥ of whole tracks.

        diverged: how many estimates of each snapshot have a NaN or Inf; its NMSE is None where there are any.
        """
        error, power, diverged = (torch.zeros(self.snapshots, dtype=torch.float64) for _ in range(3))
        count, at_once = self.tracks * self.snapshots, _TRACKS_AT_ONCE * self.snapshots
        for batch in draws(self.problem, count, seed=self.seed, snr_db=level_of(cell), batch=at_once):
            found = estimate(batch)
            for total, value in ((error, found - batch.signal), (power, batch.signal)):
                total += value.abs().square().sum(1, dtype=torch.float64).reshape(-1, self.snapshots).sum(0)
            diverged += (~finite_samples(found)).reshape(-1, self.snapshots).sum(0)
        levels, over_all = 10 * torch.log10(error / power), 10 * torch.log10(error.sum() / power.sum())
        return {
            "nmse_db": [finite(level, 3) for level in levels.tolist()],
            "all_db": finite(float(over_all), 3),
            "diverged": [int(count) for count in diverged],
        }

    def tables(self, frame: pd.DataFrame) -> list[Table]:
        """A table for each SNR: snapshots across."""
        tables = []
        heading = ("estimator", *map(str, range(1, self.snapshots + 1)), "all")
        for snr in values_of(frame, "snr_db"):
            rows = frame[frame["snr_db"] == snr]
            lines = []
            for _, row in rows.iterrows():
                counts = row["diverged"] if isinstance(row.get("diverged"), list) else [0] * self.snapshots
                levels = (decibels(level, 2, diverged=n) for level, n in zip(row["nmse_db"], counts, strict=True))
                lines.append((row["label"], *levels, decibels(row["all_db"], 2, diverged=sum(counts))))
            title = f"NMSE (dB) by snapshot of a track, SNR {snr:g} dB"
            tables.append(Table.of(title, heading, lines, bounds=int((rows["kind"] == "bound").sum())))
        return tables

    def headline(self, frame: pd.DataFrame) -> str:
        """What tracking gains on the last snapshot at the middle SNR, for the estimator that is then the best."""
        snr = sorted(self.snr_db)[len(self.snr_db) // 2]
        found = frame[frame["snr_db"] == snr] if len(frame) else frame
        last = {
            (row["name"], row["kind"]): row["nmse_db"][-1]
            for _, row in found.iterrows()
            if row["nmse_db"][-1] is not None
        }
        tracked = {name: level for (name, kind), level in last.items() if kind == "tracked" and (name, "alone") in last}
        if not tracked:
            return ""
        best = min(tracked, key=lambda name: tracked[name])
        bound = last.get((REFERENCE, "bound"))
        words = (
            f"Tracking takes {best} from {decibels(last[best, 'alone'])} to {decibels(tracked[best])} dB NMSE on snapshot "
            f"{self.snapshots} at {snr:g} dB SNR"
        )
        return (
            f"{words}."
            if bound is None
            else f"{words}; {get_bound(REFERENCE, self.problem).label}: {decibels(bound)} dB."
        )

    def figures(self, frame: pd.DataFrame, folder: Path) -> list[Figure]:
        from chanest.plotting.studies import tracking_chart

        path = folder / "nmse_by_snapshot.png"
        return [Figure.drawn("NMSE by snapshot", "", path, tracking_chart(self, frame))]
