"""Tracking on test tracks: NMSE snapshot by snapshot, with what earlier snapshots have shown and without, beside the bound."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self, cast

import torch
from torch import Tensor

from chanest.bases.estimator import ChannelEstimator
from chanest.bounds import get_bound
from chanest.evaluation.results import REFERENCE
from chanest.problem import ChannelBatch, ChannelProblem
from chanest.scenario import CdlSection, Scenario
from chanest.tracking import track
from chanest.weights import get_estimator
from vlista_core.files import check_folder, read_json, write_json, write_text
from vlista_core.page import figure_html, page_html, quiet, table_html
from vlista_core.problems import check_count
from vlista_core.provenance import environment, now
from vlista_core.tables import Table, decibels
from vlista_core.tensorfile import Json

_TRACKS_AT_ONCE = 25


@dataclass(frozen=True)
class Curve:
    """NMSE in dB of each snapshot of the tracks, a ratio of sums, and of all of them."""

    name: str
    """Of the estimator or bound."""
    kind: str
    """"alone", "tracked" or "bound"."""
    snr_db: float
    nmse_db: list[float]
    all_db: float

    @property
    def label(self) -> str:
        """For tables and legends."""
        return f"{self.name}, tracked" if self.kind == "tracked" else self.name


@dataclass(frozen=True)
class Tracking:
    """The curves of all estimators at all SNRs, and what they were made with."""

    curves: tuple[Curve, ...]
    manifest: dict[str, Json]

    def tables(self) -> list[Table]:
        """A table for each SNR: snapshots across."""
        return [self._table(snr) for snr in dict.fromkeys(curve.snr_db for curve in self.curves)]

    def _table(self, snr_db: float) -> Table:
        curves = [curve for curve in self.curves if curve.snr_db == snr_db]
        snapshots = range(1, len(curves[0].nmse_db) + 1)
        lines = [
            (curve.label, *(decibels(level, 2) for level in curve.nmse_db), decibels(curve.all_db, 2))
            for curve in curves
        ]
        bounds = sum(curve.kind == "bound" for curve in curves)
        title = f"NMSE (dB) by snapshot of a track, SNR {snr_db:g} dB"
        return Table(title, ("estimator", *map(str, snapshots), "all"), tuple(lines), bounds)

    def write(self, folder: Path | str) -> Path:
        """tracking.json, table.md, the figure and report.html into `folder`; returns the path of the page."""
        from chanest.plotting.tracking import draw_tracking

        folder = Path(folder)
        check_folder(folder)
        content = {"manifest": self.manifest, "curves": [asdict(curve) for curve in self.curves]}
        write_json(folder / "tracking.json", cast(dict[str, Json], content))
        write_text(folder / "table.md", "\n".join(table.markdown() for table in self.tables()))
        figure = folder / "nmse_by_snapshot.png"
        draw_tracking(self, figure)
        page = folder / "report.html"
        write_text(page, page_html("Tracking", ["<h1>Snapshots over time</h1>", *self.parts(figure)]))
        return page

    def parts(self, figure: Path) -> list[str]:
        """The section of a page."""
        words = (
            "Snapshots of a track share their rays; tracked estimates carry the posterior over covariances from snapshot to "
            "snapshot. Every curve on the same channels, beams and noise; the bound knows the angles."
        )
        settings = json.dumps(self.manifest, indent=1, ensure_ascii=False)
        tables = [table_html(table) for table in self.tables()]
        return [figure_html("NMSE by snapshot", figure), quiet(words), *tables, f"<pre>{settings}</pre>"]

    @classmethod
    def read(cls, folder: Path | str) -> Self:
        """What `write` has stored, or a ValueError."""
        path = Path(folder) / "tracking.json"
        if not path.is_file():
            raise ValueError(f"{folder} holds no tracking.json; see chanest track")
        content = read_json(path)
        try:
            curves = tuple(Curve(**curve) for curve in cast("list[dict[str, object]]", content["curves"]))  # type: ignore[arg-type]
            return cls(curves, cast(dict[str, Json], content["manifest"]))
        except (KeyError, TypeError) as fault:
            raise ValueError(f"{path} was not written by chanest track: {fault}") from None


def evaluate_tracking(
    scenario: Scenario,
    estimators: list[str],
    *,
    trained_on: str | None = None,
    snr_db: tuple[float, ...] = (0.0, 10.0, 20.0),
    tracks: int = 100,
    seed: int = 1,
    memory: float = 1.0,
    progress: Callable[[int, int, str], None] = lambda done, total, words: None,
) -> Tracking:
    """Estimators with and without tracking on test tracks of a moving scenario, and the bound that knows the angles."""
    check_count("tracks", tracks)
    snapshots = scenario.channel.snapshots if isinstance(scenario.channel, CdlSection) else 1
    if snapshots < 2:
        raise ValueError(f"{scenario.name} has no tracks: its channel.snapshots must be 2 or more, got {snapshots}")
    problem = ChannelProblem(scenario)
    rows: dict[tuple[str, str], Callable[[ChannelBatch], Tensor]] = {}
    for name in estimators:
        estimator = get_estimator(name, problem, trained_on=trained_on)
        track(estimator, problem.sample(snapshots, seed=0, split="validation"), snapshots, memory=memory)
        rows[name, "alone"] = _alone(estimator)
        rows[name, "tracked"] = lambda batch, own=estimator: track(own, batch, snapshots, memory=memory)  # type: ignore[misc]
    bound = get_bound(REFERENCE, problem)
    rows[bound.label, "bound"] = lambda batch: bound.bound(batch).signal
    curves, done = [], 0
    for snr in snr_db:
        for (name, kind), run in rows.items():
            progress(done, len(rows) * len(snr_db), f"{name} at {snr:g} dB")
            levels = _levels(problem, run, snapshots, snr, tracks, seed)
            curves.append(Curve(name, kind, snr, *levels))
            done += 1
    manifest: dict[str, Json] = {
        "scenario": scenario.model_dump(mode="json"), "trained_on": trained_on, "tracks": tracks, "seed": seed,
        "split": "test", "memory": memory, "finished": now(), **environment(),
    }  # fmt: skip
    return Tracking(tuple(curves), manifest)


def _alone(estimator: ChannelEstimator) -> Callable[[ChannelBatch], Tensor]:
    return lambda batch: estimator.estimate(batch.y, batch.phi, batch.noise_var).signal


def _levels(
    problem: ChannelProblem, run: Callable[[ChannelBatch], Tensor], snapshots: int, snr: float, tracks: int, seed: int
) -> tuple[list[float], float]:
    """NMSE of each snapshot and of all, in dB."""
    error, power = torch.zeros(snapshots, dtype=torch.float64), torch.zeros(snapshots, dtype=torch.float64)
    for first in range(0, tracks, _TRACKS_AT_ONCE):
        count = min(_TRACKS_AT_ONCE, tracks - first)
        batch = problem.sample(count * snapshots, seed=seed, split="test", start=first * snapshots, snr_db=snr)
        for total, value in ((error, run(batch) - batch.signal), (power, batch.signal)):
            total += value.abs().square().sum(1, dtype=torch.float64).reshape(count, snapshots).sum(0)
    levels = 10 * torch.log10(error / power)
    return [round(float(level), 3) for level in levels], round(float(10 * torch.log10(error.sum() / power.sum())), 3)
