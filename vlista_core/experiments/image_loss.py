"""What networks on images learn from: the figure that the tables print, and the squared error that the paper minimises."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vlista_core.data.image_problem import ImageProblem
from vlista_core.estimate import Estimate, Estimator
from vlista_core.linops import LinearMap
from vlista_core.models import UnfoldedModel
from vlista_core.problems import Batch

ERROR_WEIGHT = 5.0
_WINDOW, _SIGMA = 11, 1.5
_MEAN_FLOOR, _VARIANCE_FLOOR = 0.01**2, 0.03**2


class ImageTraining(nn.Module, Estimator):
    """A network with the loss 1 - SSIM + 5·mean|ŝ - s|². Everything else is the network's own."""

    def __init__(self, network: UnfoldedModel, problem: ImageProblem) -> None:
        super().__init__()
        self.network, self.problem = network, problem
        self.windows = [window_matrix(size) for size in problem.side]

    def forward(self, y: Tensor, phi: LinearMap, noise_var: Tensor) -> Estimate:
        out: Estimate = self.network(y, phi, noise_var)
        return out

    def estimate(self, y: Tensor, phi: LinearMap | Tensor, noise_var: Tensor | float) -> Estimate:
        return self.network.estimate(y, phi, noise_var)

    def training_loss(self, batch: Batch, *, generator: torch.Generator) -> Tensor:
        signal = self.forward(batch.y, batch.phi, batch.noise_var).signal
        images, truth = self.problem.images(signal), self.problem.images(batch.signal)
        structure = 1.0 - fast_ssim(images, truth, *(window.to(signal.device) for window in self.windows)).mean()
        return structure + ERROR_WEIGHT * (signal - batch.signal).square().mean()

    def parameter_groups(self) -> list[dict[str, object]]:
        own = getattr(self.network, "parameter_groups", None)
        return own() if callable(own) else [{"params": list(self.network.parameters())}]


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
