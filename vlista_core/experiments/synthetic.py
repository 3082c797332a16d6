"""The paper's synthetic experiment: median NMSE by number of measurements, with a Φ for each sample and with one Φ for all.

As the paper has it: entries non-zero with probability 0.1 and then N(0, 1), Gaussian Φ, no noise, three layers, 1,000 test
samples. What it does not give and we chose: n = 256; the numbers of measurements below; Φ scaled to N(0, 1/m); fresh training
draws in place of 3,000 fixed ones; the steps of the recipes, about a minute on one core each; the loss, mean ‖ŝ - s‖/‖s‖.
"""

from __future__ import annotations

from pathlib import Path

import torch

from vlista_core.data.synthetic import SyntheticProblem
from vlista_core.estimate import Estimator
from vlista_core.experiments.base import Cell, Context, Done, Experiment, Figure, cell_id, identity, number
from vlista_core.experiments.curves import Curve, draw_panels
from vlista_core.experiments.synthetic_models import MODELS, VARYING_ONLY, fit
from vlista_core.metrics import nmse_db, squared_error_ratios
from vlista_core.problems import Problem
from vlista_core.tables import Table, decibels
from vlista_core.tensorfile import Json

LENGTH = 256
MEASUREMENTS = (32, 64, 96, 128, 160)
FIRST = (96, 128, 64, 160, 32)
"""The same, the most important first."""
QUANTILES = (5, 10, 25, 50, 75, 90, 95)
TEST_SAMPLES = 1000
_WORDS = {"varying": "a Φ for each sample", "fixed": "one Φ for all samples"}
_SHOWN_DB = (-30.0, 3.0)
"""Figures end here, so that what recovers exactly, or fails, leaves room for the others."""
_QUANTILES_AT = (64, 96, 128)
"""Measurements that have a panel of quantiles."""
_LEAST_DB = -120.0
"""An error of exactly zero counts as this."""


class Synthetic(Experiment):
    """Sparse vectors, median NMSE and its quantiles."""

    name = "synthetic"
    summary = f"Median NMSE of sparse vectors of length {LENGTH} by number of measurements, Φ varying and fixed."
    figure = "nmse_db"

    def cells(self) -> list[Cell]:
        return [
            {"experiment": self.name, "model": model, "measurements": m, "seed": 0, "phi": phi}
            for phi in _WORDS
            for m in FIRST
            for model in _models(phi)
        ]

    def run(self, cell: Cell, context: Context) -> dict[str, Json]:
        model, measurements, seed = identity(cell)
        problem = SyntheticProblem(
            length=LENGTH,
            rows=measurements,
            unit_columns=False,
            fixed_phi_seed=0 if cell["phi"] == "fixed" else None,
        )
        checkpoint = context.weights / f"{cell_id(cell)}.resume.safetensors"
        estimator, details = fit(model, problem, seed, checkpoint)
        return {**measure(estimator, problem, seed, TEST_SAMPLES), **details}

    def tables(self, done: Done) -> list[Table]:
        heading = ("model", *(f"m = {m}" for m in MEASUREMENTS))
        tables = []
        for phi, words in _WORDS.items():
            lines = tuple(
                (model, *(_entry(_find(done, phi, model, m)) for m in MEASUREMENTS)) for model in _models(phi)
            )
            title = f"Synthetic, {words}: median NMSE in dB (10 % … 90 % of the samples)"
            tables.append(Table(title, heading, lines))
        return tables

    def figures(self, done: Done, folder: Path) -> list[Figure]:
        by_m = {words: curves for phi, words in _WORDS.items() if (curves := _medians(done, phi))}
        if not by_m:
            return []
        path = folder / "synthetic_median.png"
        draw_panels(
            path, by_m, title=f"Median NMSE of {TEST_SAMPLES:,} sparse vectors, n = {LENGTH}, three layers",
            x_label="measurements m", y_label="median NMSE (dB)", x_ticks=MEASUREMENTS, y_limits=_SHOWN_DB,
        )  # fmt: skip
        caption = (
            "ISTA, FISTA and BCS have no depth to keep to: their iterations and penalties come from a grid search."
        )
        figures = [Figure("Median NMSE by number of measurements", caption, path)]
        for phi, words in _WORDS.items():
            panels = {f"m = {m}": curves for m in _QUANTILES_AT if (curves := _quantiles(done, phi, m))}
            if panels:
                path = folder / f"synthetic_quantiles_{phi}.png"
                draw_panels(
                    path, panels, title=f"Quantiles of the NMSE of a sample, {words}",
                    x_label="share of samples with less error (%)", y_label="NMSE of a sample (dB)",
                    x_ticks=QUANTILES[1:-1], y_limits=_SHOWN_DB,
                )  # fmt: skip
                caption = "Each curve is the distribution function of a model's error, turned on its side."
                figures.append(Figure(f"Quantiles, {words}", caption, path))
        return figures


def measure(estimator: Estimator, problem: Problem, seed: int, count: int) -> dict[str, Json]:
    """NMSE on test draws: the median, quantiles of single samples, and the ratio of sums."""
    estimates, signals = [], []
    for start in range(0, count, 250):
        batch = problem.sample(min(250, count - start), seed=seed, split="test", start=start)
        estimates.append(estimator.estimate(batch.y, batch.phi, batch.noise_var).signal)
        signals.append(batch.signal)
    estimate, signal = torch.cat(estimates), torch.cat(signals)
    ratios = squared_error_ratios(estimate, signal).double()
    levels = torch.quantile(ratios, torch.tensor(QUANTILES, dtype=torch.float64) / 100)
    levels_db = (10.0 * torch.log10(levels)).clamp_min(_LEAST_DB).tolist()
    found: dict[str, Json] = {str(share): round(level, 4) for share, level in zip(QUANTILES, levels_db, strict=True)}
    return {
        "nmse_db": found["50"],
        "quantiles_db": found,
        "nmse_ratio_db": round(max(nmse_db(estimate, signal), _LEAST_DB), 4),
        "test_samples": count,
    }


def _models(phi: str) -> list[str]:
    return [model for model in MODELS if phi == "varying" or model not in VARYING_ONLY]


def _find(done: Done, phi: str, model: str, m: int) -> dict[str, Json] | None:
    found = [cell for cell in done if (cell["phi"], cell["model"], cell["measurements"]) == (phi, model, m)]
    return found[0] if found else None


def _level(cell: dict[str, Json], share: int) -> float:
    quantiles = cell["quantiles_db"]
    return float(str(quantiles[str(share)])) if isinstance(quantiles, dict) else float("nan")


def _entry(cell: dict[str, Json] | None) -> str:
    if cell is None:
        return "–"
    low, high = (decibels(_level(cell, share)) for share in (10, 90))
    return f"{decibels(number(cell, 'nmse_db'))} ({low} … {high})"


def _medians(done: Done, phi: str) -> list[Curve]:
    curves = []
    for model in _models(phi):
        found = [(m, cell) for m in MEASUREMENTS if (cell := _find(done, phi, model, m)) is not None]
        if found:
            curves.append(Curve(model, [(m, _level(cell, 50)) for m, cell in found]))
    return curves


def _quantiles(done: Done, phi: str, m: int) -> list[Curve]:
    cells = {model: _find(done, phi, model, m) for model in _models(phi)}
    return [
        Curve(model, [(share, _level(cell, share)) for share in QUANTILES])
        for model, cell in cells.items()
        if cell is not None
    ]
