"""Whether variances can be trusted: coverage, calibration error, likelihood and sharpness on fresh test channels."""

import shlex
from pathlib import Path
from typing import ClassVar

import pandas as pd
import torch
from torch import Tensor

from chanest.bases.estimator import ChannelEstimator
from chanest.problem import ChannelBatch
from chanest.studies.common import ChannelStudy, draws, level_of, load, nested, planned_files, values_of
from chanest.uncertainty.calibrating import negative_log_likelihood
from chanest.uncertainty.estimate import ChannelEstimate
from chanest.weights import get_estimator
from vlista_core.metrics import calibration_error, coverage, finite_samples, nmse_db
from vlista_core.problems import check_count
from vlista_core.study import Cell, Context, Figure, Row, Table
from vlista_core.study.measuring import finite
from vlista_core.study.tables import decibels, missing, number

LEVELS = tuple(round(0.05 * step, 2) for step in range(1, 20))
KINDS = ("calibrated", "own")
"""The variance that `estimate` gives, and the method's own before calibration."""
_SHOWN = (0.5, 0.9, 0.95)
_INTERVAL = 0.9
_AXES = ("by_symbol", "by_subcarrier")


class CoverageStudy(ChannelStudy):
    """The estimators on the same test channels at each SNR: as `get_estimator` gives them, and uncalibrated."""

    name: ClassVar[str] = "coverage"
    heading: ClassVar[str] = "what intervals cover"
    summary: ClassVar[str] = (
        "Coverage: share of the entries of h that lie in the Gaussian interval of that level, ĥ and its variance being given; "
        "conformal: in the interval that needs no Gaussian errors. ECE: mean gap between coverage and level, 5 % to 95 %. "
        "NLL: mean of −log CN(h; ĥ, v) in nats per entry, lower is better. Sharpness: mean variance in dB, to be compared "
        "with the NMSE. “own”: the method's variance before calibration."
    )
    growing: ClassVar[frozenset[str]] = frozenset({"estimators", "snr_db"})

    estimators: tuple[str, ...]
    channels: int = 1000

    def cells(self) -> list[Cell]:
        self.check()
        check_count("channels", self.channels)
        common: Cell = {"scenario": self.scenario.name, "channels": self.channels, "seed": self.seed}
        files: dict[str, Cell] = {}
        for name in self.estimators:
            files[name] = planned_files(name, self.problem)
            if files[name]["calibration"] is None and not self._has_variance(name):
                given = shlex.quote(self.scenario.given_as or "SCENARIO.toml")
                fit = f"fit one: chanest calibrate {given} -e {name}"
                raise ValueError(f"{name} has no variance for {self.scenario.name}; {fit}")
        return [
            {"name": name, "snr_db": snr, **common, **files[name]} for name in self.estimators for snr in self.snr_db
        ]

    def without_variance(self) -> list[str]:
        """The estimators that have neither a calibration nor a variance of their own."""
        return [name for name in self.estimators if not self._has_variance(name)]

    def _has_variance(self, name: str) -> bool:
        one = self.problem.sample(1, seed=self.seed, split="validation", snr_db=self.snr_db[0])
        estimator = get_estimator(name, self.problem, substitute=False)
        return estimator.estimate(one.y, one.phi, one.noise_var).variance is not None

    def run(self, cell: Cell, context: Context) -> Row:
        """The calibrated variance and the method's own, of those that there are."""
        estimator, facts = load(cell, self.problem)
        signals, truths, inside = [], [], []
        seen: Tensor | None = None
        variances: dict[str, list[Tensor]] = {kind: [] for kind in KINDS}
        for batch in draws(self.problem, self.channels, seed=self.seed, snr_db=level_of(cell)):
            found = estimator.estimate(batch.y, batch.phi, batch.noise_var)
            seen = batch.phi.column_norms()[0] > 0 if seen is None else seen
            own = _own_variance(estimator, batch, found)
            if own is not None:
                variances["own"].append(own)
            if estimator.calibration is not None and found.variance is not None:
                variances["calibrated"].append(found.variance)
                inside.append((found.signal - batch.signal).abs() <= found.interval(_INTERVAL))
            signals.append(found.signal)
            truths.append(batch.signal)
        signal, truth = torch.cat(signals), torch.cat(truths)
        row: Row = {"nmse_db": finite(nmse_db(signal, truth)), **facts}
        for kind, parts in variances.items():
            if parts:
                figures = _figures(signal, torch.cat(parts), truth)
                shares: Row = {"interval_90": None}
                if kind == "calibrated" and not figures["diverged"] and seen is not None:
                    shares = self._inside(torch.cat(inside), seen)
                row[kind] = {**figures, **shares}
        return row

    def _inside(self, inside: Tensor, seen: Tensor) -> Row:
        """The share of entries within their interval, [channels, n], also by what they are on the resource grid.

        seen: whether a pilot shows the entry itself, [n].
        """
        by_entry, problem = inside.mean(0, dtype=torch.float64), self.problem
        figures: Row = {"interval_90": float(by_entry.mean())}
        if problem.subcarriers > 1:
            grid = by_entry.reshape(problem.snapshots, problem.subcarriers, -1)
            figures["by_symbol"], figures["by_subcarrier"] = grid.mean((1, 2)).tolist(), grid.mean((0, 2)).tolist()
        if not bool(seen.all()):
            figures |= {"at_pilots": float(by_entry[seen].mean()), "between": float(by_entry[~seen].mean())}
        return figures

    def variances(self, frame: pd.DataFrame) -> pd.DataFrame:
        """One line per estimator, SNR and kind of variance."""
        return nested(frame, *KINDS) if len(frame) else frame

    def tables(self, frame: pd.DataFrame) -> list[Table]:
        """A table for each SNR, the likeliest variances first."""
        found, tables = self.variances(frame), []
        shown = tuple(f"{level:.0%}" for level in _SHOWN)
        heading = ("estimator", "variance", *shown, "conformal 90%", "ECE", "NLL", "sharpness", "NMSE")
        for snr in values_of(found, "snr_db"):
            lines = []
            for _, row in found[found["snr_db"] == snr].sort_values("nll", kind="stable").iterrows():
                shares = [*(row["covered"][LEVELS.index(level)] for level in _SHOWN), row["interval_90"]]
                error, nll = number(row["calibration_error"], ".3f"), decibels(row["nll"], 3)
                nmse = decibels(row["nmse_db"], diverged=row.get("diverged"))
                levels = decibels(row["sharpness_db"]), nmse
                lines.append((row["name"], row["kind"], *map(_percent, shares), error, nll, *levels))
            title = f"Coverage of intervals at {snr:g} dB, {self.channels:,} test channels"
            tables.append(Table.of(title, heading, lines))
        return tables + self._grid_tables(found)

    def _grid_tables(self, found: pd.DataFrame) -> list[Table]:
        """What conformal intervals cover at the pilots and between them, and by symbol and subcarrier."""
        if "by_subcarrier" not in found:
            return []
        lines = []
        for _, row in found[found["by_subcarrier"].notna()].sort_values(["name", "snr_db"]).iterrows():
            apart = (None if missing(row.get(where)) else row[where] for where in ("at_pilots", "between"))
            ends = (f"{_percent(min(row[axis]))} to {_percent(max(row[axis]))}" for axis in _AXES)
            lines.append(
                (row["name"], f"{row['snr_db']:g}", _percent(row["interval_90"]), *map(_percent, apart), *ends)
            )
        heading = (
            "estimator",
            "SNR (dB)",
            "all",
            "at pilots",
            "between",
            "symbol by symbol",
            "subcarrier by subcarrier",
        )
        return [Table.of("What conformal 90 % intervals cover over the resource grid (%)", heading, lines)]

    def headline(self, frame: pd.DataFrame) -> str:
        """What the conformal intervals cover over all estimators and SNRs, and which strays furthest."""
        found = self.variances(frame)
        known = found[found["interval_90"].notna()] if len(found) else found
        if not len(known):
            return "No estimator of this run has a calibration, and so no interval; chanest calibrate makes one."
        shares = known["interval_90"].astype(float)
        worst = known.iloc[int((shares - _INTERVAL).abs().to_numpy().argmax())]
        spans = " to ".join(dict.fromkeys(f"{_percent(share)}%" for share in (shares.min(), shares.max())))
        return (
            f"Conformal intervals of {_INTERVAL:.0%} cover {spans} of the entries; furthest off is {worst['name']} at "
            f"{worst['snr_db']:g} dB with {_percent(worst['interval_90'])}%."
        )

    def figures(self, frame: pd.DataFrame, folder: Path) -> list[Figure]:
        from chanest.plotting.studies import grid_coverage_chart, reliability_chart

        found = self.variances(frame)
        drawn = [Figure.drawn("Reliability", "", folder / "reliability.png", reliability_chart(self, found))]
        if "by_subcarrier" in found:
            path = folder / "grid.png"
            drawn.append(Figure.drawn("Over the resource grid", "", path, grid_coverage_chart(self, found)))
        return drawn


def _figures(signal: Tensor, variance: Tensor, truth: Tensor) -> Row:
    """What one variance [channels, n] is worth; nats per entry, and E|h|² = 1 for the sharpness.

    diverged: channels whose estimate or variance has a NaN or Inf; the figures are None where there are any.
    """
    errors = (signal - truth).abs().square()
    return {
        "covered": [finite(coverage(signal, variance, truth, level)) for level in LEVELS],
        "calibration_error": finite(calibration_error(signal, variance, truth)),
        "nll": finite(negative_log_likelihood(errors, variance.clamp_min(torch.finfo(variance.dtype).tiny))),
        "sharpness_db": finite(10 * float(variance.mean(dtype=torch.float64).log10())),
        "diverged": int((~(finite_samples(signal) & finite_samples(variance))).sum()),
    }


def _own_variance(estimator: ChannelEstimator, batch: ChannelBatch, found: ChannelEstimate) -> Tensor | None:
    """Before calibration: [batch, n]; not worked out a second time where calibration only scales it."""
    calibration = estimator.calibration
    if calibration is None or not calibration.uses_raw or found.variance is None:
        return found.own_variance
    measured = estimator.checked(batch.y, batch.phi, batch.noise_var)
    return found.variance / calibration.scale(measured, found)[:, None]


def _percent(share: float | None) -> str:
    return number(None if share is None else 100 * share, ".1f")
