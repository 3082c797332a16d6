"""Whether variances can be trusted: coverage, calibration error, likelihood and sharpness on fresh test channels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor

from chanest.bases.estimator import ChannelEstimator
from chanest.evaluation.plan import BATCH
from chanest.problem import ChannelBatch, ChannelProblem
from chanest.uncertainty.calibrating import negative_log_likelihood
from chanest.uncertainty.estimate import ChannelEstimate
from chanest.weights import find_weights, get_estimator, weights_digest
from vlista_core.files import check_folder, read_json, write_json, write_text
from vlista_core.metrics import calibration_error, coverage, nmse_db
from vlista_core.page import figure_html, quiet, table_html
from vlista_core.problems import check_count
from vlista_core.provenance import environment, now
from vlista_core.tables import Table, decibels
from vlista_core.tensorfile import Json

LEVELS = tuple(round(0.05 * step, 2) for step in range(1, 20))
SHOWN = (0.5, 0.9, 0.95)
_INTERVAL = 0.9
_FILE, _TABLES, _FIGURE = "calibration.json", "calibration.md", "reliability.png"

Kind = Literal["calibrated", "own"]
"""The variance that `estimate` gives, or the method's own before calibration."""
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Reliability:
    """One variance of one estimator at one SNR."""

    name: str
    kind: Kind
    snr_db: float
    channels: int
    nmse_db: float
    covered: tuple[float, ...]
    """Share of entries within the Gaussian intervals of `LEVELS`."""
    calibration_error: float
    nll: float
    """Nats an entry."""
    sharpness_db: float
    """Mean variance; E|h|² = 1."""
    interval_90: float | None
    """Share of entries within the conformal 90 % intervals."""
    weights: str

    def coverage(self, level: float) -> float:
        """At one of `LEVELS`."""
        return self.covered[LEVELS.index(level)]


def measure_calibration(
    problem: ChannelProblem,
    names: Sequence[str],
    *,
    snr_db: Sequence[float] = (0.0, 10.0, 20.0),
    channels: int = 1000,
    seed: int = 1,
    progress: Progress = lambda done, total, words: None,
) -> list[Reliability]:
    """The estimators on the same test channels at each SNR: as `get_estimator` gives them, and uncalibrated where they can."""
    check_count("channels", channels)
    estimators = {name: get_estimator(name, problem) for name in names}
    cells = [(name, snr) for name in names for snr in snr_db]
    rows: list[Reliability] = []
    for done, (name, snr) in enumerate(cells):
        progress(done, len(cells), f"{name} at {snr:g} dB")
        rows += _reliabilities(estimators[name], problem, snr, channels, seed)
    progress(len(cells), len(cells), "")
    return rows


def write_calibration(problem: ChannelProblem, rows: Sequence[Reliability], folder: Path, *, seed: int) -> None:
    """calibration.json, calibration.md and reliability.png."""
    from chanest.plotting.calibration import draw_reliability

    check_folder(folder)
    content: dict[str, Json] = {
        "scenario": problem.scenario.name,
        "channel_hash": problem.scenario.channel_hash(),
        "split": "test",
        "seed": seed,
        "finished": now(),
        **environment("sionna-no-rt"),
        "levels": list(LEVELS),
        "rows": [cast(Json, asdict(row)) for row in rows],
    }
    write_json(folder / _FILE, content)
    write_text(folder / _TABLES, "\n".join(table.markdown() for table in calibration_tables(rows)))
    draw_reliability(problem.scenario.name, rows, folder / _FIGURE)


def read_calibration(folder: Path) -> list[Reliability]:
    """What `write_calibration` stored, or a ValueError."""
    content = read_json(folder / _FILE)
    try:
        rows = cast(list[dict[str, Any]], content["rows"])
        return [Reliability(**{**row, "covered": tuple(row["covered"])}) for row in rows]
    except (KeyError, TypeError) as fault:
        raise ValueError(f"{folder / _FILE} is of another version of chanest: {fault}") from None


def calibration_tables(rows: Sequence[Reliability]) -> list[Table]:
    """A table for each SNR, the likeliest variances first."""
    heading = (
        "estimator",
        "variance",
        *(f"{level:.0%}" for level in SHOWN),
        "conformal 90%",
        "ECE",
        "NLL",
        "sharpness",
        "NMSE",
    )
    tables = []
    for snr in dict.fromkeys(row.snr_db for row in rows):
        here = sorted((row for row in rows if row.snr_db == snr), key=lambda row: row.nll)
        title = f"Coverage of intervals at {snr:g} dB, {here[0].channels:,} test channels"
        tables.append(Table(title, heading, tuple(_line(row) for row in here)))
    return tables


def calibration_parts(folder: Path) -> list[str]:
    """The section of the HTML report on a folder's calibration; nothing where it has none."""
    if not (folder / _FILE).is_file():
        return []
    figure = [figure_html("Reliability", folder / _FIGURE)] if (folder / _FIGURE).is_file() else []
    tables = [table_html(table) for table in calibration_tables(read_calibration(folder))]
    return ["<h2>Calibration</h2>", *figure, *tables, quiet(EXPLANATION)]


EXPLANATION = (
    "Coverage: share of the entries of h that lie in the Gaussian interval of that level, ĥ and its variance being given; "
    "conformal: in the interval that needs no Gaussian errors. ECE: mean gap between coverage and level, 5 % to 95 %. "
    "NLL: mean of −log CN(h; ĥ, v) in nats an entry, lower is better. Sharpness: mean variance in dB, to be compared with "
    "the NMSE. “own”: the method's variance before calibration."
)


def _reliabilities(
    estimator: ChannelEstimator, problem: ChannelProblem, snr: float, channels: int, seed: int
) -> list[Reliability]:
    """The calibrated variance and the method's own, of those that there are."""
    signals, truths, inside = [], [], []
    variances: dict[Kind, list[Tensor]] = {"calibrated": [], "own": []}
    for start in range(0, channels, BATCH):
        batch = problem.sample(min(BATCH, channels - start), seed=seed, split="test", start=start, snr_db=snr)
        found = estimator.estimate(batch.y, batch.phi, batch.noise_var)
        if found.variance is None:
            scenario = problem.scenario.name
            raise ValueError(
                f"{estimator.name} has no variance for {scenario}; fit one: chanest calibrate {scenario} -e {estimator.name}"
            )
        own = _own_variance(estimator, batch, found)
        if own is not None:
            variances["own"].append(own)
        if estimator.calibration is not None:
            variances["calibrated"].append(found.variance)
            inside.append((found.signal - batch.signal).abs() <= found.interval(_INTERVAL))
        signals.append(found.signal)
        truths.append(batch.signal)
    signal, truth = torch.cat(signals), torch.cat(truths)
    weights = weights_digest(estimator, find_weights(estimator.name, problem.scenario.name))
    rows = []
    for kind, parts in variances.items():
        if parts:
            variance = torch.cat(parts)
            errors = (signal - truth).abs().square()
            rows.append(
                Reliability(
                    name=estimator.name,
                    kind=kind,
                    snr_db=snr,
                    channels=channels,
                    nmse_db=nmse_db(signal, truth),
                    covered=tuple(coverage(signal, variance, truth, level) for level in LEVELS),
                    calibration_error=calibration_error(signal, variance, truth),
                    nll=negative_log_likelihood(errors, variance.clamp_min(torch.finfo(variance.dtype).tiny)),
                    sharpness_db=10 * float(variance.mean(dtype=torch.float64).log10()),
                    interval_90=float(torch.cat(inside).double().mean()) if kind == "calibrated" else None,
                    weights=weights,
                )
            )
    return rows


def _own_variance(estimator: ChannelEstimator, batch: ChannelBatch, found: ChannelEstimate) -> Tensor | None:
    """Before calibration: [batch, n]; not worked out a second time where calibration only scales it."""
    calibration = estimator.calibration
    if calibration is None or not calibration.uses_raw or found.variance is None:
        return found.own_variance
    measured = estimator.checked(batch.y, batch.phi, batch.noise_var)
    return found.variance / calibration.scale(measured, found)[:, None]


def _line(row: Reliability) -> tuple[str, ...]:
    covered = (_percent(row.coverage(level)) for level in SHOWN)
    conformal = "–" if row.interval_90 is None else _percent(row.interval_90)
    error = f"{row.calibration_error:.3f}"
    return (
        row.name, row.kind, *covered, conformal, error, decibels(row.nll, 3), decibels(row.sharpness_db),
        decibels(row.nmse_db),
    )  # fmt: skip


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"
