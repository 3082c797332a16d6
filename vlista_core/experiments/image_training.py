"""How a network of the image tables is trained: a recipe, and the weights with the best SSIM on validation images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from vlista_core.data.image_problem import ImageProblem
from vlista_core.estimate import Estimator
from vlista_core.experiments.image_loss import ImageTraining
from vlista_core.experiments.image_solvers import negative_ssim
from vlista_core.models import UnfoldedModel
from vlista_core.problems import Batch
from vlista_core.tensorfile import Json
from vlista_core.training import Trainer
from vlista_core.training.result import TrainingResult

Build = Callable[[ImageProblem, int], UnfoldedModel]
"""(problem, seed) -> a network that is calibrated and untrained."""
Learner = Callable[[UnfoldedModel, ImageProblem], nn.Module]


@dataclass(frozen=True)
class Recipe:
    """How a network is trained."""

    build: Build
    steps: int
    rate: float | Callable[[ImageProblem], float]
    batch_size: int = 128
    sharing: int = 16
    """Training images in a row that share a Φ."""
    validations: int = 20
    validation_images: int = 256
    learner: Learner = ImageTraining
    """What is trained: the network with the loss of images, or with its own."""

    def rate_for(self, problem: ImageProblem) -> float:
        """The learning rate on the images of a problem."""
        return self.rate(problem) if callable(self.rate) else self.rate

    def told(self, problem: ImageProblem) -> dict[str, Json]:
        """For the row of a table."""
        return {
            "learning_rate": self.rate_for(problem),
            "sharing": self.sharing,
            "validations": self.validations,
            "validation_images": self.validation_images,
            "loss": "own" if self.learner is own_loss else "image",
        }


def train(model: nn.Module, problem: ImageProblem, recipe: Recipe, seed: int, resume: Path | None) -> TrainingResult:
    """Train by the recipe; the weights with the best SSIM on validation images are kept, be they those of the start."""

    def metric(signal: Tensor, batch: Batch) -> float:
        return negative_ssim(problem, signal, batch.signal)

    if not isinstance(model, Estimator):
        raise ValueError(f"model must be an Estimator, got {type(model).__name__}")
    start = {name: value.clone() for name, value in model.state_dict().items()}
    shown = problem.sample(recipe.validation_images, seed=seed, split="validation")
    first = metric(model.estimate(shown.y, shown.phi, shown.noise_var).signal, shown)
    trainer = Trainer(
        steps=recipe.steps,
        batch_size=recipe.batch_size,
        learning_rate=recipe.rate_for(problem),
        schedule="cosine",
        warmup=0.02,
        clip_norm=1.0,
        validation_samples=recipe.validation_images,
        validate_every=max(1, recipe.steps // recipe.validations),
        metric=metric,
    )
    result = trainer.fit(model, problem, seed=seed, checkpoint=resume, resume=resume is not None)
    if first < result.best_validation:
        model.load_state_dict(start)
    if resume is not None:
        resume.unlink(missing_ok=True)
    return result


def own_loss(network: UnfoldedModel, problem: ImageProblem) -> nn.Module:
    """The network as it is: VLISTA learns from its ELBO."""
    return network
