"""The paper's synthetic experiment: median NMSE by number of measurements, with a Φ for each sample and with one Φ for all.

As the paper has it: entries non-zero with probability 0.1 and then N(0, 1), Gaussian Φ, no noise, three layers, 1,000 test
samples. What it does not give and we chose: n = 256; the numbers of measurements below; Φ scaled to N(0, 1/m); fresh training
draws in place of 3,000 fixed ones; the steps of the recipes, about a minute on one core each; the loss, mean ‖ŝ - s‖/‖s‖.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from vlista_core.data.synthetic import SyntheticProblem
from vlista_core.estimate import Estimator
from vlista_core.experiments.curves import Curve, draw_panels
from vlista_core.experiments.experiment import Experiment, by_measurements, identity, rows_by
from vlista_core.experiments.recipes import estimate_test_draws
from vlista_core.experiments.synthetic_models import MODELS, VARYING_ONLY, fit
from vlista_core.metrics import nmse_db, squared_error_ratios
from vlista_core.problems import Problem
from vlista_core.study import Cell, Context, Figure, Row, Table
from vlista_core.study.tables import decibels

if TYPE_CHECKING:
    import pandas as pd

QUANTILES = (5, 10, 25, 50, 75, 90, 95)
_WORDS = {"varying": "a Φ for each sample", "fixed": "one Φ for all samples"}
_SHOWN_DB = (-30.0, 3.0)
"""Figures end here, so that what recovers exactly, or fails, leaves room for the others."""
_QUANTILES_AT = (64, 96, 128)
"""Measurements that have a panel of quantiles."""
_LEAST_DB = -120.0
"""An error of exactly zero counts as this."""


class Synthetic(Experiment):
    """Sparse vectors, median NMSE and its quantiles."""

    name: ClassVar[str] = "synthetic"
    summary: ClassVar[str] = "Median NMSE of sparse vectors by number of measurements, Φ varying and fixed."
    figure: ClassVar[str] = "nmse_db"
    growing: ClassVar[frozenset[str]] = frozenset({"models", "measurements"})

    models: tuple[str, ...] = tuple(MODELS)
    measurements: tuple[int, ...] = (96, 128, 64, 160, 32)
    """The most important first."""
    length: int = 256
    test_samples: int = 1000

    def cells(self) -> list[Cell]:
        return [
            {"model": model, "measurements": m, "seed": 0, "phi": phi}
            for phi in _WORDS
            for m in self.measurements
            for model in self._models(phi)
        ]

    def run(self, cell: Cell, context: Context) -> Row:
        model, rows, seed = identity(cell)
        fixed = 0 if cell["phi"] == "fixed" else None
        problem = SyntheticProblem(length=self.length, rows=rows, unit_columns=False, fixed_phi_seed=fixed)
        estimator, details = fit(model, problem, seed, context.scratch / f"{self.cell_id(cell)}.safetensors")
        return {**measure(estimator, problem, seed, self.test_samples), **details}

    def tables(self, frame: pd.DataFrame) -> list[Table]:
        found = rows_by(frame, "phi", "model", "measurements")

        def table(phi: str, words: str) -> Table:
            title = f"Synthetic, {words}: median NMSE in dB (10 % … 90 % of the samples)"
            return by_measurements(
                title, self._models(phi), self.measurements, lambda model, m: _entry(found.get((phi, model, m)))
            )

        return [table(phi, words) for phi, words in _WORDS.items()]

    def figures(self, frame: pd.DataFrame, folder: Path) -> list[Figure]:
        if frame.empty:
            return []
        path, columns = folder / "synthetic_median.png", sorted(self.measurements)
        curves = {phi: self._curves(frame, {m: (phi, m, 50) for m in columns}) for phi in _WORDS}
        draw_panels(
            path, {words: curves[phi] for phi, words in _WORDS.items() if curves[phi]},
            title=f"Median NMSE of {self.test_samples:,} sparse vectors, n = {self.length}, three layers",
            x_label="measurements m", y_label="median NMSE (dB)", x_ticks=columns, y_limits=_SHOWN_DB,
        )  # fmt: skip
        caption = (
            "ISTA, FISTA and BCS have no depth to keep to: their iterations and penalties come from a grid search."
        )
        figures = [Figure("Median NMSE by number of measurements", caption, path)]
        for phi, words in _WORDS.items():
            panels = {m: self._curves(frame, {share: (phi, m, share) for share in QUANTILES}) for m in _QUANTILES_AT}
            if any(panels.values()):
                path = folder / f"synthetic_quantiles_{phi}.png"
                draw_panels(
                    path, {f"m = {m}": curves for m, curves in panels.items() if curves},
                    title=f"Quantiles of the NMSE of a sample, {words}",
                    x_label="share of samples with less error (%)", y_label="NMSE of a sample (dB)",
                    x_ticks=QUANTILES[1:-1], y_limits=_SHOWN_DB,
                )  # fmt: skip
                caption = "Each curve is the distribution function of a model's error, turned on its side."
                figures.append(Figure(f"Quantiles, {words}", caption, path))
        return figures

    def _models(self, phi: str) -> list[str]:
        return [model for model in self.models if phi == "varying" or model not in VARYING_ONLY]

    def _curves(self, frame: pd.DataFrame, points: dict[int, tuple[str, int, int]]) -> list[Curve]:
        """A curve for each model that has some of the points: place on the axis -> (phi, measurements, share)."""
        found = rows_by(frame, "phi", "model", "measurements")
        curves = []
        for model in self.models:
            cells = {x: (found.get((phi, model, m)), share) for x, (phi, m, share) in points.items()}
            levels = [(x, float(cell[f"quantiles_db.{share}"])) for x, (cell, share) in cells.items() if cell]
            curves += [Curve(model, levels)] if levels else []
        return curves


def measure(estimator: Estimator, problem: Problem, seed: int, count: int) -> Row:
    """NMSE on test draws: the median, quantiles of single samples, and the ratio of sums."""
    estimate, signal = estimate_test_draws(estimator, problem, seed, count, 250)
    ratios = squared_error_ratios(estimate, signal).double()
    levels = torch.quantile(ratios, torch.tensor(QUANTILES, dtype=torch.float64) / 100)
    levels_db = (10.0 * torch.log10(levels)).clamp_min(_LEAST_DB).tolist()
    found: Row = {str(share): round(level, 4) for share, level in zip(QUANTILES, levels_db, strict=True)}
    return {
        "nmse_db": found["50"],
        "quantiles_db": found,
        "nmse_ratio_db": round(max(nmse_db(estimate, signal), _LEAST_DB), 4),
        "test_samples": count,
    }


def _entry(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return "–"
    return f"{decibels(cell['nmse_db'])} ({decibels(cell['quantiles_db.10'])} … {decibels(cell['quantiles_db.90'])})"
