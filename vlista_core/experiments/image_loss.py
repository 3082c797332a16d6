"""How networks on images are trained: from the figure that the tables print and the squared error that the paper minimises."""

from pathlib import Path

import torch
from torch import Tensor, nn

from vlista_core.data.image_problem import ImageProblem
from vlista_core.estimate import Estimate, Estimator
from vlista_core.experiments.recipes import Recipe
from vlista_core.linops import LinearMap
from vlista_core.metrics import ssim
from vlista_core.models import UnfoldedModel
from vlista_core.problems import Batch
from vlista_core.training import TrainingResult

ERROR_WEIGHT = 5.0
_WINDOW, _SIGMA = 11, 1.5
_MEAN_FLOOR, _VARIANCE_FLOOR = 0.01**2, 0.03**2


class ImageTraining(nn.Module, Estimator):
    """A network with the loss 1 - SSIM + 5·mean|ŝ - s|². Everything else is the network's own."""

    def __init__(self, network: UnfoldedModel, problem: ImageProblem) -> None:
        super().__init__()
        self.network, self.problem = network, problem
        self.windows = [window_matrix(size) for size in problem.side]

    def estimate(self, y: Tensor, phi: LinearMap | Tensor, noise_var: Tensor | float) -> Estimate:
        return self.network.estimate(y, phi, noise_var)

    def training_loss(self, batch: Batch, *, generator: torch.Generator) -> Tensor:
        signal: Tensor = self.network(batch.y, batch.phi, batch.noise_var).signal
        images, truth = self.problem.images(signal), self.problem.images(batch.signal)
        structure = 1.0 - fast_ssim(images, truth, *(window.to(signal.device) for window in self.windows)).mean()
        return structure + ERROR_WEIGHT * (signal - batch.signal).square().mean()

    def parameter_groups(self) -> list[dict[str, object]]:
        own = getattr(self.network, "parameter_groups", None)
        return own() if callable(own) else [{"params": list(self.network.parameters())}]


def train(
    network: UnfoldedModel, problem: ImageProblem, recipe: Recipe[ImageProblem], seed: int, resume: Path | None = None
) -> TrainingResult:
    """Train by the recipe; the weights with the best SSIM on validation images are kept, be they those of the start."""

    def metric(signal: Tensor, batch: Batch) -> float:
        return negative_ssim(problem, signal, batch.signal)

    start = {name: value.clone() for name, value in network.state_dict().items()}
    shown = problem.sample(recipe.validation_samples, seed=seed, split="validation")
    first = metric(network.estimate(shown.y, shown.phi, shown.noise_var).signal, shown)
    learner = network if recipe.own_loss else ImageTraining(network, problem)
    trainer = recipe.trainer(problem, warmup=0.02, metric=metric)
    result = trainer.fit(learner, problem, seed=seed, checkpoint=resume, resume=resume is not None)
    if first < result.best_validation:
        network.load_state_dict(start)
    return result


def negative_ssim(problem: ImageProblem, estimate: Tensor, signal: Tensor) -> float:
    """The figure of the tables, the lower the better."""
    return -float(ssim(problem.images(estimate), problem.images(signal)).mean())


def window_matrix(size: int) -> Tensor:
    """Gaussian windows inside a line of `size` pixels, one a row: [size - 10, size]."""
    position = torch.arange(_WINDOW) - _WINDOW // 2
    window = torch.exp(-position.square() / (2 * _SIGMA**2))
    matrix = torch.zeros(size - _WINDOW + 1, size)
    for row in range(len(matrix)):
        matrix[row, row : row + _WINDOW] = window / window.sum()
    return matrix


def fast_ssim(images: Tensor, truth: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """`vlista_core.metrics.ssim` through products of small matrices: [batch, h, w] twice, windows of both sides -> [batch]."""
    squares = torch.stack([images, truth, images.square(), truth.square(), images * truth])
    mean, mean_truth, power, power_truth, product = (rows @ squares @ columns.mT).unbind(0)
    variances = power + power_truth - mean.square() - mean_truth.square()
    covariance = product - mean * mean_truth
    brightness = (2 * mean * mean_truth + _MEAN_FLOOR) / (mean.square() + mean_truth.square() + _MEAN_FLOOR)
    return (brightness * (2 * covariance + _VARIANCE_FLOOR) / (variances + _VARIANCE_FLOOR)).mean((1, 2))
