"""How each model of the synthetic experiment is made: solvers by grid search on validation draws, networks by training.

Budgets are in steps, so that a figure depends on the seed alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from vlista_core.data.synthetic import SyntheticProblem
from vlista_core.dictionaries import LearnedDictionary
from vlista_core.estimate import Estimator
from vlista_core.experiments.experiment import budget
from vlista_core.metrics import nmse_median_db
from vlista_core.models import ADLISTA, ALISTA, DLISTA, LISTA, NALISTA, VLISTA, UnfoldedModel
from vlista_core.models.analytic import averaged_weights
from vlista_core.problems import Batch
from vlista_core.solvers import BCS, FISTA, ISTA, Solver, select_hyperparameters
from vlista_core.solvers.selection import Value
from vlista_core.tensorfile import Json
from vlista_core.training import Trainer

LAYERS = 3
AVERAGED = 64
"""Matrices Φ over which ALISTA and NALISTA average their weights where Φ varies, as the paper does."""
_CALIBRATION = 10**8
"""Index of the training draws that a start is calibrated on; training never comes that far."""
_PENALTIES: tuple[Value, ...] = (0.003, 0.01, 0.03, 0.1, 0.2)
_ITERATIONS: tuple[Value, ...] = (3, 30, 300)

Build = Callable[[SyntheticProblem, int], UnfoldedModel]
"""(problem, seed) -> a network that is calibrated and untrained."""


@dataclass(frozen=True)
class Recipe:
    """How a network is trained."""

    build: Build
    steps: int
    batch_size: int
    rate: float


def fit(name: str, problem: SyntheticProblem, seed: int, checkpoint: Path) -> tuple[Estimator, dict[str, Json]]:
    """The estimator called `name`, ready for test draws, and how it was made."""
    made = MODELS[name]
    if not isinstance(made, Recipe):
        return _searched(made, problem, seed)
    model = made.build(problem, seed)
    trainer = Trainer(
        steps=made.steps,
        batch_size=made.batch_size,
        learning_rate=made.rate,
        schedule="cosine",
        clip_norm=1.0,
        validation_samples=256 if made.batch_size > 16 else 64,
        validate_every=max(1, made.steps // 8),
    )
    result = trainer.fit(model, problem, seed=seed, checkpoint=checkpoint, resume=True)
    checkpoint.unlink(missing_ok=True)
    details: dict[str, Json] = {
        "recipe": {"learning_rate": made.rate},
        "budget": budget(result, made.batch_size),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "history": [[record.step, round(record.seconds, 2), round(record.validation, 4)] for record in result.history],
    }
    return model, details


def _searched(solver: type[Solver], problem: SyntheticProblem, seed: int) -> tuple[Estimator, dict[str, Json]]:
    """The best of a grid on validation draws. BCS has its own stopping rule and nothing to search for."""
    if solver is BCS:
        return BCS(), {}
    grid = {"penalty": _PENALTIES, "iterations": _ITERATIONS}
    found = select_hyperparameters(solver, grid, problem, nmse_median_db, seed=seed)
    return found.solver, {"chosen": {key: float(str(value)) for key, value in found.scores[0][0].items()}}


def _calibration(problem: SyntheticProblem, seed: int) -> Batch:
    return problem.sample(256, seed=seed, split="train", start=_CALIBRATION)


def _identity(problem: SyntheticProblem) -> LearnedDictionary:
    return LearnedDictionary(torch.eye(problem.length))


def _lista(problem: SyntheticProblem, seed: int) -> UnfoldedModel:
    measurements = None if problem.fixed_phi_seed is None else problem.measurements
    n = problem.length
    model = LISTA(n, n, layers=LAYERS, measurements=measurements, loss="relative")
    model.calibrate(_calibration(problem, seed))
    return model


def _dlista(problem: SyntheticProblem, seed: int) -> UnfoldedModel:
    model = DLISTA(_identity(problem), layers=LAYERS, loss="relative")
    model.calibrate(_calibration(problem, seed))
    return model


def _paper(problem: SyntheticProblem, seed: int) -> ADLISTA:
    generator = torch.Generator().manual_seed(seed)
    model = ADLISTA(_identity(problem), layers=LAYERS, augmentation="paper", loss="relative", generator=generator)
    model.calibrate(_calibration(problem, seed))
    return model


def _adaptive(problem: SyntheticProblem, seed: int) -> UnfoldedModel:
    """On whitened measurements, as in the image tables; all entries of a signal have the same power."""
    model = ADLISTA(
        _identity(problem),
        layers=LAYERS,
        covariance=torch.eye(problem.length),
        loss="relative",
        generator=torch.Generator().manual_seed(seed),
    )
    model.calibrate(_calibration(problem, seed))
    return model


def _weights(problem: SyntheticProblem, seed: int) -> torch.Tensor:
    """W of the one Φ, or averaged over several."""
    fixed = problem.fixed_phi()
    if fixed is not None:
        return averaged_weights([fixed.double()]).float()
    drawn = problem.sample(AVERAGED, seed=seed, split="train", start=_CALIBRATION).phi.materialize()
    return averaged_weights(drawn.double()).float()


def _alista(problem: SyntheticProblem, seed: int, weights: torch.Tensor | None) -> UnfoldedModel:
    model = ALISTA(weights, layers=LAYERS)
    model.calibrate(_calibration(problem, seed))
    return model


def _nalista(problem: SyntheticProblem, seed: int, weights: torch.Tensor | None) -> UnfoldedModel:
    model = NALISTA(weights, layers=LAYERS, generator=torch.Generator().manual_seed(seed))
    model.calibrate(_calibration(problem, seed))
    return model


def _vlista(problem: SyntheticProblem, seed: int) -> UnfoldedModel:
    """VLISTA with its posterior anchored at the decoder and a narrow prior; its augmentation starts as A-DLISTA's does."""
    generator = torch.Generator().manual_seed(seed)
    model = VLISTA(
        _identity(problem), problem.measurements, layers=LAYERS, anchored=True, prior_width=4, generator=generator
    )
    model.augmentation.load_state_dict(_paper(problem, seed).augmentation.state_dict())
    return model


MODELS: dict[str, Recipe | type[Solver]] = {
    "a-dlista-adaptive": Recipe(_adaptive, 800, 128, 2e-4),
    "a-dlista": Recipe(_paper, 400, 32, 2e-3),
    "dlista": Recipe(_dlista, 800, 128, 2e-3),
    "lista": Recipe(_lista, 800, 128, 1e-3),
    "vlista": Recipe(_vlista, 60, 16, 3e-4),
    "alista": Recipe(lambda problem, seed: _alista(problem, seed, _weights(problem, seed)), 800, 128, 5e-3),
    "nalista": Recipe(lambda problem, seed: _nalista(problem, seed, _weights(problem, seed)), 800, 128, 1e-3),
    "alista-per-sample": Recipe(lambda problem, seed: _alista(problem, seed, None), 400, 128, 2e-3),
    "nalista-per-sample": Recipe(lambda problem, seed: _nalista(problem, seed, None), 400, 128, 1e-3),
    "ista": ISTA,
    "fista": FISTA,
    "bcs": BCS,
}
"""Every row, the most important first."""
VARYING_ONLY = ("alista-per-sample", "nalista-per-sample")
"""With one Φ the weights of a sample are those of all."""
