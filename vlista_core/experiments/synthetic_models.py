"""How each model of the synthetic experiment is made: solvers by grid search on validation draws, networks by training."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

from vlista_core.data.synthetic import SyntheticProblem
from vlista_core.dictionaries import LearnedDictionary
from vlista_core.experiments.recipes import FROM, Fitted, Recipe, fit_network, started
from vlista_core.metrics import nmse_median_db
from vlista_core.models import ADLISTA, ALISTA, DLISTA, LISTA, NALISTA, VLISTA, UnfoldedModel
from vlista_core.models.analytic import averaged_weights
from vlista_core.solvers import BCS, FISTA, ISTA, Solver, select_hyperparameters
from vlista_core.solvers.selection import Value
from vlista_core.training import TrainingResult

LAYERS = 3
AVERAGED = 64
"""Matrices Φ over which ALISTA and NALISTA average their weights where Φ varies, as the paper does."""
_PENALTIES: tuple[Value, ...] = (0.003, 0.01, 0.03, 0.1, 0.2)
_ITERATIONS: tuple[Value, ...] = (3, 30, 300)


def fit(name: str, problem: SyntheticProblem, seed: int, weights: Path) -> Fitted:
    """The estimator called `name`, ready for test draws, and how it was made. weights: see `fit_network`."""
    made = MODELS[name]
    if not isinstance(made, Recipe):
        return _searched(made, problem, seed)

    def train(network: UnfoldedModel, resume: Path) -> TrainingResult:
        result = made.trainer(problem).fit(network, problem, seed=seed, checkpoint=resume, resume=True)
        resume.unlink(missing_ok=True)
        return result

    return fit_network(made, problem, seed, weights, train)


def _searched(solver: type[Solver], problem: SyntheticProblem, seed: int) -> Fitted:
    """The best of a grid on validation draws. BCS has its own stopping rule and nothing to search for."""
    if solver is BCS:
        return BCS(), {}
    grid = {"penalty": _PENALTIES, "iterations": _ITERATIONS}
    found = select_hyperparameters(solver, grid, problem, nmse_median_db, seed=seed)
    return found.solver, {"chosen": {key: float(str(value)) for key, value in found.scores[0][0].items()}}


def _identity(problem: SyntheticProblem) -> LearnedDictionary:
    return LearnedDictionary(torch.eye(problem.length))


def _lista(problem: SyntheticProblem, seed: int) -> UnfoldedModel:
    measurements = None if problem.fixed_phi_seed is None else problem.measurements
    n = problem.length
    return started(LISTA(n, n, layers=LAYERS, measurements=measurements, loss="relative"), problem, seed)


def _dlista(problem: SyntheticProblem, seed: int) -> UnfoldedModel:
    return started(DLISTA(_identity(problem), layers=LAYERS, loss="relative"), problem, seed)


def _paper(problem: SyntheticProblem, seed: int) -> ADLISTA:
    generator = torch.Generator().manual_seed(seed)
    model = ADLISTA(_identity(problem), layers=LAYERS, augmentation="paper", loss="relative", generator=generator)
    return started(model, problem, seed)


def _adaptive(problem: SyntheticProblem, seed: int) -> UnfoldedModel:
    """On whitened measurements, as in the image tables; all entries of a signal have the same power."""
    model = ADLISTA(
        _identity(problem),
        layers=LAYERS,
        covariance=torch.eye(problem.length),
        loss="relative",
        generator=torch.Generator().manual_seed(seed),
    )
    return started(model, problem, seed)


def _weights(problem: SyntheticProblem, seed: int) -> torch.Tensor:
    """W of the one Φ, or averaged over several."""
    fixed = problem.fixed_phi()
    if fixed is not None:
        return averaged_weights([fixed.double()]).float()
    drawn = problem.sample(AVERAGED, seed=seed, split="train", start=FROM).phi.materialize()
    return averaged_weights(drawn.double()).float()


def _alista(problem: SyntheticProblem, seed: int, weights: torch.Tensor | None) -> UnfoldedModel:
    return started(ALISTA(weights, layers=LAYERS), problem, seed)


def _nalista(problem: SyntheticProblem, seed: int, weights: torch.Tensor | None) -> UnfoldedModel:
    model = NALISTA(weights, layers=LAYERS, generator=torch.Generator().manual_seed(seed))
    return started(model, problem, seed)


def _vlista(problem: SyntheticProblem, seed: int) -> UnfoldedModel:
    """VLISTA with its posterior anchored at the decoder and a narrow prior; its augmentation starts as A-DLISTA's does."""
    generator = torch.Generator().manual_seed(seed)
    model = VLISTA(
        _identity(problem), problem.measurements, layers=LAYERS, anchored=True, prior_width=4, generator=generator
    )
    model.augmentation.load_state_dict(_paper(problem, seed).augmentation.state_dict())
    return model


_recipe = partial(Recipe[SyntheticProblem], sharing=1, validations=8)
MODELS: dict[str, Recipe[SyntheticProblem] | type[Solver]] = {
    "a-dlista-adaptive": _recipe(_adaptive, 800, 2e-4),
    "a-dlista": _recipe(_paper, 400, 2e-3, batch_size=32),
    "dlista": _recipe(_dlista, 800, 2e-3),
    "lista": _recipe(_lista, 800, 1e-3),
    "vlista": _recipe(_vlista, 60, 3e-4, batch_size=16, validation_samples=64),
    "alista": _recipe(lambda problem, seed: _alista(problem, seed, _weights(problem, seed)), 800, 5e-3),
    "nalista": _recipe(lambda problem, seed: _nalista(problem, seed, _weights(problem, seed)), 800, 1e-3),
    "alista-per-sample": _recipe(lambda problem, seed: _alista(problem, seed, None), 400, 2e-3),
    "nalista-per-sample": _recipe(lambda problem, seed: _nalista(problem, seed, None), 400, 1e-3),
    "ista": ISTA,
    "fista": FISTA,
    "bcs": BCS,
}
"""Every row, the most important first."""
VARYING_ONLY = ("alista-per-sample", "nalista-per-sample")
"""With one Φ the weights of a sample are those of all."""
