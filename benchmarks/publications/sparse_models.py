"""Our ALISTA, NALISTA and A-DLISTA (adaptive) for the sparse problems of others: how each is built and trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from publications.measuring import Method
from vlista_core.dictionaries import LearnedDictionary
from vlista_core.estimate import Estimator
from vlista_core.linalg import solve_hermitian
from vlista_core.metrics import nmse_db
from vlista_core.models import ADLISTA, ALISTA, NALISTA, UnfoldedModel
from vlista_core.models.base import inverse_softplus
from vlista_core.problems import Batch, Problem
from vlista_core.tensorfile import Json
from vlista_core.training import Trainer

Kind = Literal["alista", "nalista", "a-dlista-adaptive"]
SEED = 1
_LAYERS, _HIDDEN = 16, 128
_STARTING = 10**8
"""Training draws from here on start the models; the steps do not come so far."""
_RIDGE = 0.03
"""Of the weights for taps, whose Φ has rows that nearly depend on each other; 0.01 to 0.3 start within 1 dB of each other."""
_STEPS, _THRESHOLDS = (0.3, 0.5, 0.7, 1.0), (0.7, 1.0, 1.5, 2.0, 3.0)


@dataclass(frozen=True)
class Recipe:
    """What a model is trained with."""

    steps: int
    batch_size: int
    learning_rate: float

    def trainer(self) -> Trainer:
        return Trainer(
            steps=self.steps,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            schedule="cosine",
            clip_norm=1.0,
            validate_every=250,
        )


RECIPES: dict[Kind, dict[str, Recipe]] = {
    "alista": {
        "50": Recipe(300, 64, 3e-3), "75": Recipe(300, 64, 3e-3), "100": Recipe(300, 64, 3e-3),
        "500": Recipe(400, 64, 3e-3), "1000": Recipe(400, 64, 3e-3), "2000": Recipe(300, 64, 3e-3),
    },
    "nalista": {
        "50": Recipe(600, 64, 2e-3), "75": Recipe(900, 64, 2e-3), "100": Recipe(600, 64, 2e-3),
        "500": Recipe(2000, 64, 2e-3), "1000": Recipe(900, 64, 2e-3), "2000": Recipe(700, 64, 2e-3),
    },
    "a-dlista-adaptive": {
        "50": Recipe(200, 64, 1e-3), "75": Recipe(200, 64, 1e-3), "100": Recipe(200, 64, 1e-3),
        "500": Recipe(150, 32, 2e-4), "1000": Recipe(75, 32, 2e-4), "2000": Recipe(25, 32, 2e-4),
    },
}  # fmt: skip
"""By number of tones or length. Small, so that all take half an hour of one core; theirs had 400 epochs of 50,000 samples."""


def trained_method(
    kind: Kind, problem: Problem, matrix: Tensor, recipe: Recipe, checkpoint: Path, batch: Callable[[int], Batch]
) -> Method:
    """One of our networks, trained here, on the test draws `batch` gives by number."""
    model, spent = trained(kind, problem, matrix, recipe, checkpoint)
    shown = f"{kind}, Φ never seen" if kind == "a-dlista-adaptive" else kind
    return method_of(shown, model, batch, {"budget": spent})


def method_of(
    name: str, estimator: Estimator, batch: Callable[[int], Batch], facts: Mapping[str, Json] | None = None
) -> Method:
    """An estimator of ours on the test draws `batch` gives by number."""

    def estimate(number: int) -> Tensor:
        some = batch(number)
        return estimator.estimate(some.y, some.phi, some.noise_var).signal

    return Method(name, estimate, facts=facts or {})


def support_known(batch: Batch, power: Tensor | float) -> Tensor:
    """The LMMSE estimate of a helper that knows which entries are not zero: [batch, n]. power: theirs, one for all or [n]."""
    phi = batch.phi.materialize()
    spread = (batch.signal.abs() > 0) * power
    weighted = phi * spread[:, None, :]
    covariance = weighted @ phi.mH + batch.noise_var[:, None, None] * torch.eye(phi.shape[1], dtype=phi.dtype)
    found: Tensor = (weighted.mH @ solve_hermitian(covariance, batch.y[:, :, None]))[:, :, 0]
    return found


def trained(
    kind: Kind, problem: Problem, matrix: Tensor, recipe: Recipe, checkpoint: Path
) -> tuple[UnfoldedModel, dict[str, Json]]:
    """A trained model and what it has cost. An unfinished training goes on from `checkpoint`, a finished one is read.

    problem: draws of its Φ, one or varying; matrix: [m, n], the one Φ of the test.
    """
    torch.set_num_threads(1)
    model = built(kind, problem, matrix)
    result = recipe.trainer().fit(model, problem, seed=SEED, checkpoint=checkpoint, resume=True)
    return model, {"steps": recipe.steps, "batch_size": recipe.batch_size, "seconds": round(result.seconds)}


def built(kind: Kind, problem: Problem, matrix: Tensor) -> UnfoldedModel:
    """A model as its training starts.

    Where the energy of the samples varies much, as that of complex taps does, the mean error is what counts.
    """
    starting = problem.sample(256, seed=SEED, split="train", start=_STARTING)
    loss: Literal["mse", "relative"] = "mse" if problem.dtype.is_complex else "relative"
    if kind == "a-dlista-adaptive":
        identity = LearnedDictionary(torch.eye(problem.signal_length, dtype=problem.dtype))
        adaptive = ADLISTA(identity, layers=_LAYERS, loss=loss)
        adaptive.start_from(starting)
        return adaptive
    weights = ridge_weights(matrix, _RIDGE if matrix.is_complex() else 0.0)
    if kind == "alista":
        alista = ALISTA(weights, layers=_LAYERS, dtype=problem.dtype, loss=loss)
        alista.start_from(starting)
        return alista
    nalista = NALISTA(weights, layers=_LAYERS, hidden=_HIDDEN, dtype=problem.dtype, loss=loss)
    nalista.start_from(starting)
    _start_heads(nalista, starting)
    return nalista


def _start_heads(model: NALISTA, batch: Batch) -> None:
    """Start where one step and one threshold for all layers have the least error, which saves nine tenths of the training."""

    def tried(pair: tuple[float, float]) -> float:
        with torch.no_grad():
            model.head.bias.copy_(torch.tensor([inverse_softplus(value) for value in pair]))
        return nmse_db(model.estimate(batch.y, batch.phi, batch.noise_var).signal, batch.signal)

    tried(min(product(_STEPS, _THRESHOLDS), key=tried))


def ridge_weights(matrix: Tensor, ridge: float) -> Tensor:
    """w_i = (AAᴴ + λI)⁻¹a_i / (a_iᴴ(AAᴴ + λI)⁻¹a_i), λ = ridge·‖A‖²: [m, n]. λ = 0 gives ALISTA's analytic weights.

    Rows of A that depend on each other make the analytic weights amplify noise.
    """
    exact = matrix.to(torch.complex128 if matrix.is_complex() else torch.float64)
    gram = exact @ exact.mH
    level = ridge * torch.linalg.matrix_norm(gram, 2)
    whitened = solve_hermitian(gram + level * torch.eye(len(gram), dtype=gram.dtype), exact)
    return (whitened / (exact.conj() * whitened).sum(0, keepdim=True)).to(matrix.dtype)
