"""The paper's synthetic experiment: median NMSE by number of measurements, with a Φ for each sample and with one Φ for all.

As the paper has it: entries non-zero with probability 0.1 and then N(0, 1), Gaussian Φ, no noise, three layers, 1,000 test
samples. What it does not give and we chose: n = 256; the numbers of measurements below; Φ scaled to N(0, 1/m); fresh training
draws in place of 3,000 fixed ones; the steps of the recipes, about a minute on one core each; the loss, mean ‖ŝ - s‖/‖s‖.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import ClassVar

import pandas as pd
import torch

from vlista_core.charts import Axis
from vlista_core.data.synthetic import SyntheticProblem
from vlista_core.dictionaries import LearnedDictionary
from vlista_core.estimate import Estimator
from vlista_core.experiments.baselines import STANDSTILL, told
from vlista_core.experiments.curves import Curve, panel_chart
from vlista_core.experiments.experiment import Experiment, by_measurements, cells_of, identity, rows_by
from vlista_core.experiments.recipes import FROM, Fitted, Made, Recipe, estimate_test_draws, fit, started
from vlista_core.metrics import finite_samples, nmse_db, nmse_median_db, squared_error_ratios
from vlista_core.models import ADLISTA, ALISTA, DLISTA, LISTA, NALISTA, VLISTA, UnfoldedModel
from vlista_core.models.fixed_dictionary import averaged_weights
from vlista_core.problems import Problem
from vlista_core.solvers import BCS, FISTA, ISTA, tune_lasso, widen
from vlista_core.solvers.ista import LassoSolver
from vlista_core.study import Cell, Context, Figure, Row, Table
from vlista_core.study.measuring import finite
from vlista_core.study.tables import decibels, missing
from vlista_core.tensorfile import Json

LAYERS = 3
AVERAGED = 64
"""Matrices Φ over which ALISTA and NALISTA average their weights where Φ varies, as the paper does."""
QUANTILES = (5, 10, 25, 50, 75, 90, 95)
_WORDS = {"varying": "a Φ for each sample", "fixed": "one Φ for all samples"}
_SHOWN_DB = (-30.0, 3.0)
"""Figures end here, so that what recovers exactly, or fails, leaves room for the others."""
_QUANTILES_AT = (64, 96, 128)
"""Measurements that have a panel of quantiles."""
_LEAST_DB = -120.0
"""An error of exactly zero counts as this."""
_VALIDATION, _WORTH_DB = 128, 0.05
"""Validation draws of a search, and what is not worth a wider grid or more iterations."""
_FLOORS = tuple(10.0**power for power in range(-9, 1))
"""Noise floors of BCS that are tried first: a share of the power of y, so that 1 takes all of it for noise."""


def searched(solver: LassoSolver, problem: SyntheticProblem, seed: int) -> Fitted:
    """The solver with the penalty and the iterations, at most `COUNTS[-1]`, of the least median error on validation draws."""
    found = tune_lasso(solver, problem, nmse_median_db, worth=_WORTH_DB, count=_VALIDATION, seed=seed)
    return found.solver, {**told(found, float), "validation_samples": _VALIDATION}


def searched_bcs(problem: SyntheticProblem, seed: int) -> Fitted:
    """BCS with the noise floor of the least median error on validation draws; it has its own stopping rule."""
    batch = problem.sample(_VALIDATION, seed=seed, split="validation")

    def score(floor: float) -> float:
        estimate = BCS(noise_floor=floor).estimate(batch.y, batch.phi, batch.noise_var)
        return nmse_median_db(estimate.signal, batch.signal)

    found = widen(score, _FLOORS, worth=_WORTH_DB, limits=(1e-16, 1.0))
    tried: list[Json] = [[floor, finite(value, 4)] for floor, value in sorted(found.scores.items())]
    return BCS(noise_floor=found.value), {
        "noise_floor": found.value, "inside": {"noise_floor": found.inside}, "tried": tried,
        "validation_samples": _VALIDATION,
    }  # fmt: skip


def build(name: str, problem: SyntheticProblem, seed: int) -> UnfoldedModel:
    """The network called `name`, started and untrained.

    The adaptive A-DLISTA works on whitened measurements, as in the image tables; all entries of a signal have the same power.
    The anchored VLISTA is ours: its posterior is centred on the decoder, its prior is narrow; it starts as A-DLISTA does.
    """
    n, generator = problem.length, torch.Generator().manual_seed(seed)
    psi = LearnedDictionary(torch.eye(n))
    model: UnfoldedModel
    match name:
        case "lista":
            m = None if problem.fixed_phi_seed is None else problem.measurements
            model = LISTA(n, n, layers=LAYERS, measurements=m, loss="relative")
        case "dlista":
            model = DLISTA(psi, layers=LAYERS, loss="relative")
        case "a-dlista":
            model = ADLISTA(psi, layers=LAYERS, augmentation="paper", loss="relative", generator=generator)
        case "a-dlista-adaptive":
            model = ADLISTA(psi, layers=LAYERS, covariance=torch.eye(n), loss="relative", generator=generator)
        case "alista" | "alista-per-sample":
            model = ALISTA(_weights(name, problem, seed), layers=LAYERS)
        case "nalista" | "nalista-per-sample":
            model = NALISTA(_weights(name, problem, seed), layers=LAYERS, generator=generator)
        case "vlista-anchored":
            m = problem.measurements
            model = VLISTA(psi, m, layers=LAYERS, anchored=True, prior_width=4, generator=generator)
            sure = build("a-dlista", problem, seed)
            model.augmentation.load_state_dict(sure.get_submodule("augmentation").state_dict())
        case _:
            raise ValueError(f"unknown network {name!r}; known are {', '.join(MODELS)}")
    return started(model, problem, seed)


def _weights(name: str, problem: SyntheticProblem, seed: int) -> torch.Tensor | None:
    """W of the one Φ, or averaged over several; None where each sample has its own."""
    if name in VARYING_ONLY:
        return None
    if (fixed := problem.fixed_phi()) is not None:
        return averaged_weights([fixed.double()]).float()
    drawn = problem.sample(AVERAGED, seed=seed, split="train", start=FROM).phi.materialize()
    return averaged_weights(drawn.double()).float()


_recipe = partial(Recipe[SyntheticProblem], sharing=1, validations=8)
MODELS: dict[str, Made[SyntheticProblem]] = {
    "a-dlista-adaptive": _recipe(800, 2e-4),
    "a-dlista": _recipe(400, 2e-3, batch_size=32),
    "dlista": _recipe(800, 2e-3),
    "lista": _recipe(800, 1e-3),
    "vlista-anchored": _recipe(60, 3e-4, batch_size=16, validation_samples=64),
    "alista": _recipe(800, 5e-3),
    "nalista": _recipe(800, 1e-3),
    "alista-per-sample": _recipe(400, 2e-3),
    "nalista-per-sample": _recipe(400, 1e-3),
    "ista": partial(searched, ISTA(tolerance=STANDSTILL)),
    "fista": partial(searched, FISTA(tolerance=STANDSTILL)),
    "bcs": searched_bcs,
}
"""Every row, the most important first."""
VARYING_ONLY = ("alista-per-sample", "nalista-per-sample")
"""With one Φ the weights of a sample are those of all."""


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
        cells = cells_of(seed=[0], phi=_WORDS, measurements=self.measurements, model=self.models)
        return [cell for cell in cells if cell["model"] in self._models(str(cell["phi"]))]

    def run(self, cell: Cell, context: Context) -> Row:
        model, rows, seed = identity(cell)
        fixed = 0 if cell["phi"] == "fixed" else None
        problem = SyntheticProblem(
            length=self.length, rows=rows, unit_columns=False, fixed_phi_seed=fixed, device=self.device
        )
        weights = context.scratch / f"{self.cell_id(cell)}.safetensors"
        estimator, details = fit(MODELS[model], partial(build, model), problem, seed, weights)
        return {**measure(estimator, problem.on("cpu"), seed, self.test_samples), **details}

    def tables(self, frame: pd.DataFrame) -> list[Table]:
        level, found = self._levels(frame), rows_by(frame, "phi", "model", "measurements")

        def table(phi: str, words: str) -> Table:
            def entry(model: str, m: int) -> str:
                low, middle, high = (decibels(level(phi, model, m, share)) for share in (10, 50, 90))
                if middle == "–":
                    return decibels(None, diverged=found.get((phi, model, m), {}).get("diverged"))
                return f"{middle} ({low} … {high})"

            title = f"Synthetic, {words}: median NMSE in dB (10 % … 90 % of the samples)"
            return by_measurements(title, self._models(phi), self.measurements, entry)

        return [table(phi, words) for phi, words in _WORDS.items()]

    def figures(self, frame: pd.DataFrame, folder: Path) -> list[Figure]:
        columns, level, figures = sorted(self.measurements), self._levels(frame), list[Figure]()

        def curves(phi: str, points: list[tuple[int, int, int]]) -> list[Curve]:
            """A curve for each model through points (place on the axis, measurements, share)."""
            return [Curve(model, [(x, level(phi, model, m, share)) for x, m, share in points]) for model in self.models]

        path = folder / "synthetic_median.png"
        if chart := panel_chart(
            {words: curves(phi, [(m, m, 50) for m in columns]) for phi, words in _WORDS.items()},
            title=f"Median NMSE of {self.test_samples:,} sparse vectors, n = {self.length}, three layers",
            x=Axis("measurements m", columns), y_label="median NMSE (dB)", best=min, y_limits=_SHOWN_DB,
        ):  # fmt: skip
            caption = "ISTA, FISTA and BCS have no depth to keep to: iterations, penalties and noise floors come from a search."
            figures.append(Figure.drawn("Median NMSE by number of measurements", caption, path, chart))
        for phi, words in _WORDS.items():
            path = folder / f"synthetic_quantiles_{phi}.png"
            if chart := panel_chart(
                {f"m = {m}": curves(phi, [(share, m, share) for share in QUANTILES]) for m in _QUANTILES_AT},
                title=f"Quantiles of the NMSE of a sample, {words}", best=min,
                x=Axis("share of samples with less error (%)", QUANTILES[1:-1]), y_label="NMSE of a sample (dB)",
                y_limits=_SHOWN_DB,
            ):  # fmt: skip
                caption = "Each curve is the distribution function of a model's error, turned on its side."
                figures.append(Figure.drawn(f"Quantiles, {words}", caption, path, chart))
        return figures

    def _levels(self, frame: pd.DataFrame) -> Callable[[str, str, int, int], float | None]:
        """(phi, model, measurements, share) -> that quantile in dB; None where the cell is not there."""
        found = rows_by(frame, "phi", "model", "measurements")

        def level(phi: str, model: str, m: int, share: int) -> float | None:
            value: float | None = found.get((phi, model, m), {}).get(f"quantiles_db.{share}")
            return None if missing(value) else value

        return level

    def _models(self, phi: str) -> list[str]:
        return [model for model in self.models if phi == "varying" or model not in VARYING_ONLY]


def measure(estimator: Estimator, problem: Problem, seed: int, count: int) -> Row:
    """NMSE on test draws: the median, quantiles of single samples, and the ratio of sums.

    diverged: samples whose estimate has a NaN or Inf; the figures are None where there are any.
    """
    estimate, signal = estimate_test_draws(estimator, problem, seed, count, 250)
    ratios = squared_error_ratios(estimate, signal)
    levels = torch.quantile(ratios, torch.tensor(QUANTILES, dtype=torch.float64) / 100)
    levels_db = (10.0 * torch.log10(levels)).clamp_min(_LEAST_DB).tolist()
    found: Row = {str(share): finite(level, 4) for share, level in zip(QUANTILES, levels_db, strict=True)}
    return {
        "nmse_db": found["50"],
        "quantiles_db": found,
        "nmse_ratio_db": finite(max(nmse_db(estimate, signal), _LEAST_DB), 4),
        "diverged": int((~finite_samples(estimate)).sum()),
        "test_samples": count,
    }
