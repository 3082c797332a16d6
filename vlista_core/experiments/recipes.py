"""How the networks of the experiments start and are trained, and what a row says of it.

Budgets are in steps, so that a figure depends on the seed alone.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar, cast

import torch
from torch import Tensor

from vlista_core import checkpoint
from vlista_core.estimate import Estimator
from vlista_core.files import read_json, write_json
from vlista_core.models import VLISTA, UnfoldedModel
from vlista_core.problems import Batch, Problem
from vlista_core.study import Row
from vlista_core.tensorfile import Json
from vlista_core.training import Trainer, TrainingResult

FROM = 10**8
"""Index of the training draws that starts and dictionaries are made from; training never comes that far."""
AnyModel = TypeVar("AnyModel", bound=UnfoldedModel)
AnyProblem = TypeVar("AnyProblem", bound=Problem)
Metric = Callable[[Tensor, Batch], float]
Fitted = tuple[Estimator, Row]
"""An estimator that is ready for test draws, and how it was made."""


@dataclass(frozen=True)
class Recipe(Generic[AnyProblem]):
    """How a network of ours is trained: a fixed number of steps, the rate falling along a cosine."""

    steps: int
    rate: float | Callable[[AnyProblem], float]
    """The learning rate, or what it is for a problem."""
    batch_size: int = 128
    sharing: int = 16
    """Training images in a row that share a Φ."""
    validations: int = 20
    validation_samples: int = 256
    own_loss: bool = False
    """Whether the network learns from its own loss where the others have that of the experiment: VLISTA from its ELBO."""
    slices: int = 1
    """Parts of a batch that are computed one after another."""

    def trainer(self, problem: AnyProblem, *, warmup: float = 0.0, metric: Metric | None = None) -> Trainer:
        """metric: of validation draws, the lower the better; the loss if None."""
        return Trainer(
            steps=self.steps, batch_size=self.batch_size, schedule="cosine", warmup=warmup, clip_norm=1.0,
            learning_rate=self.rate(problem) if callable(self.rate) else self.rate, metric=metric, slices=self.slices,
            validation_samples=self.validation_samples, validate_every=max(1, self.steps // self.validations),
            accelerator=str(problem.device),
        )  # fmt: skip

    def told(self, problem: AnyProblem) -> Row:
        """What a row says of the recipe."""
        noted = ("sharing", "validations", "validation_samples", "own_loss")
        return {"learning_rate": self.trainer(problem).learning_rate, **{key: getattr(self, key) for key in noted}}


Made = Recipe[AnyProblem] | Callable[[AnyProblem, int], Fitted]
"""How a model is made: a network by its recipe, another estimator by a function of (problem, seed)."""


def started(model: AnyModel, problem: Problem, seed: int) -> AnyModel:
    """The model with its start from training draws."""
    model.start_from(problem.sample(model.start_samples, seed=seed, split="train", start=FROM))
    return model


def train(
    network: UnfoldedModel, problem: AnyProblem, recipe: Recipe[AnyProblem], seed: int, resume: Path
) -> TrainingResult:
    """Train by the recipe and the network's own loss. resume: the file to resume from."""
    return recipe.trainer(problem).fit(network, problem, seed=seed, checkpoint=resume, resume=True)


def fit(
    made: Made[AnyProblem],
    build: Callable[[AnyProblem, int], UnfoldedModel],
    problem: AnyProblem,
    seed: int,
    weights: Path,
    train: Callable[[UnfoldedModel, AnyProblem, Recipe[AnyProblem], int, Path], TrainingResult] = train,
    figure: Callable[[float], float] = float,
) -> Fitted:
    """The estimator that `made` describes, ready for test draws, and how it was made.

    build: (problem, seed) -> the network of a recipe, which has its start and is untrained. weights: a file that keeps a
    trained network, and gives it back in place of a second training; how it was trained is in a file beside it. train: as the
    function of that name. figure: of a validation, for the history. Training alone is done on the problem's device.
    """
    home = problem.on("cpu")
    if not isinstance(made, Recipe):
        return made(home, seed)
    beside, resume = weights.with_suffix(".json"), weights.with_suffix(".resume.safetensors")
    if weights.is_file():
        resume.unlink(missing_ok=True)
        network = checkpoint.load(weights, expected=UnfoldedModel)  # type: ignore[type-abstract]
        return network, read_json(beside) if beside.is_file() else {}
    start = time.perf_counter()
    network = build(home, seed)
    before = time.perf_counter() - start
    result = train(network.to(problem.device), problem, made, seed, resume)
    network.to("cpu")
    spent: Row = {"steps": result.steps, "batch_size": made.batch_size, "samples": result.steps * made.batch_size}
    details: Row = {
        "training": made.told(home),
        "budget": {**spent, "seconds": round(before + result.seconds, 2), "ended": result.ended},
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "history": [[r.step, round(before + r.seconds, 2), round(figure(r.validation), 4)] for r in result.history],
        **(
            {"trace": cast(Json, [r.details for r in result.history])} if any(r.details for r in result.history) else {}
        ),
    }
    write_json(beside, details)
    checkpoint.save(network, weights)
    resume.unlink(missing_ok=True)
    return network, details


def estimate_test_draws(
    estimator: Estimator, problem: Problem, seed: int, count: int, batch: int
) -> tuple[Tensor, Tensor]:
    """Estimates and true signals of the first `count` test draws, [count, n] each. batch: draws at once.

    The paper's VLISTA draws one dictionary per layer, as its Algorithm 2 does; ours, the anchored one, takes the means.
    """
    sampled = isinstance(estimator, VLISTA) and not estimator.anchored
    sampling = {"n_samples": 1, "seed": seed} if sampled else {}
    estimates, signals = [], []
    for start in range(0, count, batch):
        drawn = problem.sample(min(batch, count - start), seed=seed, split="test", start=start)
        estimates.append(estimator.estimate(drawn.y, drawn.phi, drawn.noise_var, **sampling).signal)
        signals.append(drawn.signal)
    return torch.cat(estimates), torch.cat(signals)
