"""The outcome of an evaluation: one row a cell, what it was run with, and where both are stored."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self, cast

from chanest.evaluation.plan import BATCH, Plan
from chanest.evaluation.stored import digest, read_rows, write_rows
from vlista_core.provenance import environment, now
from vlista_core.tensorfile import Json

REFERENCE = "genie-angles"
"""The bound that gaps are counted from: LMMSE with the cluster angles and orientations known, genie (b)."""


@dataclass(frozen=True)
class Row:
    """An estimator or a bound at one point of the sweep; NMSE in dB, None where it is not finite."""

    kind: str
    name: str
    label: str
    sweep: str
    value: float
    snr_db: float
    channels: int
    nmse_db: float | None
    nmse_low_db: float | None
    nmse_high_db: float | None
    nmse_mean_db: float | None
    nmse_median_db: float | None
    diverged: int
    seconds: float
    ms_batch_1: float | None = None
    """Milliseconds a channel, warm, of an estimator."""
    ms_batch: float | None = None
    batch: int | None = None
    """Channels in a call for `ms_batch`: 256, or all of them if fewer."""
    parameters: int | None = None
    trained_on: str | None = None
    weights: str | None = None
    """Hash of the weights file."""


@dataclass(frozen=True)
class Results:
    """All rows of a plan and the manifest they were made with."""

    plan: Plan
    rows: tuple[Row, ...]
    manifest: dict[str, Json]

    def names(self, kind: str, snr_db: float | None = None) -> list[str]:
        """The estimators or bounds, best first at an SNR (the middle one) and the last value of the sweep."""
        snr = self.plan.middle_snr() if snr_db is None else snr_db
        last = [point[0] for point in self.plan.points() if point[1] == snr][-1]
        known = dict.fromkeys(row.name for row in self.rows if row.kind == kind)
        return sorted(known, key=lambda name: _or_infinity(self.row(name, last, snr).nmse_db))

    def row(self, name: str, value: float, snr_db: float) -> Row:
        """The row of a point."""
        return next(row for row in self.rows if (row.name, row.value, row.snr_db) == (name, value, snr_db))

    def gap(self, name: str, value: float, snr_db: float) -> float | None:
        """How far in dB the NMSE lies above that of the reference bound; None without one."""
        if all(row.name != REFERENCE for row in self.rows):
            return None
        mine, bound = (self.row(each, value, snr_db).nmse_db for each in (name, REFERENCE))
        return None if mine is None or bound is None else mine - bound

    @property
    def batch(self) -> int:
        """Channels in a call when latencies were measured."""
        return min(BATCH, self.plan.channels)

    def mean_gap(self, name: str, snr_db: float | None = None) -> float | None:
        """The gap averaged over the points of the sweep, or over those of one SNR."""
        points = [point for point in self.plan.points() if snr_db in (None, point[1])]
        gaps = [self.gap(name, *point) for point in points]
        known = [gap for gap in gaps if gap is not None]
        return sum(known) / len(known) if known and len(known) == len(gaps) else None

    def write(self, folder: Path) -> None:
        """results.json, results.csv and manifest.json."""
        write_rows(folder, self.plan, Row, self.rows, self.manifest)

    @classmethod
    def read(cls, folder: Path | str) -> Self:
        """The results stored in a folder, or a ValueError."""
        return cls(*read_rows(folder, Plan, Row, what="evaluation (see chanest evaluate)"))


def new_manifest(plan: Plan) -> dict[str, Json]:
    """What the figures depend on: plan, scenario, versions, seeds, machine, commit, date."""
    scenario = cast(Json, plan.scenario.model_dump(mode="json"))
    return {
        "plan_hash": plan.hash(),
        "scenario_hash": digest(scenario),
        "channel_hash": plan.scenario.channel_hash(),
        "started": now(),
        "finished": None,
        "seed": plan.seed,
        "split": "test",
        **environment("sionna-no-rt"),
        "notes": [],
        "weights": {},
        "plan": plan.to_json(),
    }


def finished_manifest(manifest: dict[str, Json], weights: dict[str, Json], notes: list[str]) -> dict[str, Json]:
    """The manifest of a completed run. weights: provenance of each estimator's file."""
    return {**manifest, "finished": now(), "weights": weights, "notes": cast(Json, notes)}


def _or_infinity(value: float | None) -> float:
    return float("inf") if value is None else value
