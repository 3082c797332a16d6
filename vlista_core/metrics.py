"""Figures of merit. Definitions are those of the README's table of units; each is stated again where it is computed.

A figure of anything that is not finite is NaN: an estimator that breaks must not look good in any of them.

torchmetrics is imported where it is used: it takes longer to import than torch.
"""

import math
from functools import partial
from typing import cast

import torch
from torch import Tensor

_WINDOW = 11
_COVERAGE_LEVELS = tuple(level / 20 for level in range(1, 20))


def finite_samples(values: Tensor) -> Tensor:
    """Which samples have neither NaN nor Inf. [batch, ...] -> [batch] bool."""
    return torch.isfinite(values).flatten(1).all(1)


def squared_error_ratios(estimate: Tensor, signal: Tensor) -> Tensor:
    """‖ŝ - s‖² / ‖s‖² of each sample; samples that are identically zero count as 0 or Inf. [batch, n] -> [batch], float64."""
    return _ratio(*_errors_and_powers(estimate, signal))


def nmse_db(estimate: Tensor, signal: Tensor) -> float:
    """NMSE as the ratio of sums, 10 log₁₀ (Σ‖ŝ - s‖² / Σ‖s‖²): the figure printed first everywhere. [batch, n]."""
    return _db(_ratio(*(value.sum() for value in _errors_and_powers(estimate, signal))))


def nmse_mean_db(estimate: Tensor, signal: Tensor) -> float:
    """NMSE as 10 log₁₀ of the mean of per-sample ratios; one diverged sample can dominate it. [batch, n]."""
    return _db(squared_error_ratios(estimate, signal).mean())


def nmse_median_db(estimate: Tensor, signal: Tensor) -> float:
    """NMSE as 10 log₁₀ of the median of per-sample ratios: the paper's figure for synthetic data. [batch, n]."""
    return _db(squared_error_ratios(estimate, signal).quantile(0.5))


def ssim(estimate: Tensor, images: Tensor) -> Tensor:
    """SSIM of each image: Gaussian window 11, sigma 1.5, data range 1. [batch, height, width] -> [batch].

    The mean is over the windows that lie inside the image. That is the paper's definition, by what the mean training image
    scores; windows that reach over a mirrored black edge would lift MNIST's figures by two tenths.
    """
    from torchmetrics.functional.image import structural_similarity_index_measure

    _check_shapes("[batch, height, width]", estimate=estimate, images=images)
    measure = partial(structural_similarity_index_measure, reduction="none", return_full_image=True)
    value = measure(estimate[:, None], images[:, None], sigma=1.5, kernel_size=_WINDOW, data_range=1.0)
    edge = _WINDOW // 2
    inside = cast(tuple[Tensor, Tensor], value)[1][:, 0, edge:-edge, edge:-edge]
    return _nan_where_broken(inside.mean((1, 2)), estimate)


def psnr_db(estimate: Tensor, images: Tensor) -> Tensor:
    """PSNR of each image for data range 1, in dB. [batch, height, width] -> [batch]."""
    _check_shapes("[batch, height, width]", estimate=estimate, images=images)
    return _nan_where_broken(-10.0 * torch.log10((estimate - images).square().flatten(1).mean(1)), estimate)


def coverage(estimate: Tensor, variance: Tensor, truth: Tensor, level: float) -> float:
    """Share of entries whose truth lies in the central Gaussian interval of probability `level` about the estimate.

    A complex entry has a disc for an interval, its variance being E|e|². All of one shape.
    """
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must lie between 0 and 1, got {level}")
    shapes = [[*tensor.shape] for tensor in (estimate, variance, truth)]
    if shapes.count(shapes[0]) != 3:
        raise ValueError(f"estimate, variance and truth must have one shape, got {', '.join(map(str, shapes))}")
    if variance.is_complex() or bool((variance < 0).any()):
        raise ValueError("variance must be real and non-negative")
    if not all(bool(torch.isfinite(tensor).all()) for tensor in (estimate, variance, truth)):
        return math.nan
    if truth.is_complex():
        radius_squared = -math.log1p(-level)
    else:
        radius_squared = 2.0 * float(torch.erfinv(torch.tensor(level, dtype=torch.float64))) ** 2
    inside = (estimate - truth).abs().square() <= radius_squared * variance
    return float(inside.double().mean())


def calibration_error(estimate: Tensor, variance: Tensor, truth: Tensor) -> float:
    """Mean |coverage - level| over the levels 5 %, 10 %, …, 95 %: 0 for intervals that cover as they say."""
    gaps = [abs(coverage(estimate, variance, truth, level) - level) for level in _COVERAGE_LEVELS]
    return sum(gaps) / len(gaps)


def auroc(scores_in: Tensor, scores_out: Tensor) -> float:
    """Probability that an out-of-distribution score exceeds an in-distribution one. [samples], [samples]."""
    from torchmetrics.functional.classification import binary_auroc

    for name, scores in (("scores_in", scores_in), ("scores_out", scores_out)):
        if scores.ndim != 1 or scores.numel() == 0:
            raise ValueError(f"{name} must be a non-empty vector, got shape {[*scores.shape]}")
    scores = torch.cat([scores_in, scores_out]).double()
    if not bool(torch.isfinite(scores).all()):
        return math.nan
    target = torch.cat([torch.zeros_like(scores_in), torch.ones_like(scores_out)]).long()
    # torchmetrics squashes scores outside [0, 1] through a sigmoid; ranks keep their order exactly.
    ranks = torch.searchsorted(scores.sort().values, scores).double() / scores.numel()
    return float(binary_auroc(ranks, target))


def _errors_and_powers(estimate: Tensor, signal: Tensor) -> tuple[Tensor, Tensor]:
    """‖ŝ - s‖² and ‖s‖² of each sample, in double precision, where a finite estimate has a finite square: [batch] each."""
    _check_shapes("[batch, n]", estimate=estimate, signal=signal)
    error, power = (value.abs().double().square().sum(1) for value in (estimate - signal, signal))
    return _nan_where_broken(error, estimate), power


def _nan_where_broken(figures: Tensor, estimate: Tensor) -> Tensor:
    """The figures of samples, NaN where the estimate has a NaN or Inf. [batch], [batch, ...] -> [batch]."""
    return figures.masked_fill(~finite_samples(estimate), math.nan)


def _ratio(error: Tensor, power: Tensor) -> Tensor:
    """error/power, and 0 where there is no error."""
    return torch.where(error == 0, 0.0, error / power)


def _db(ratio: Tensor) -> float:
    return float(10.0 * torch.log10(ratio))


def _check_shapes(shape: str, **tensors: Tensor) -> None:
    """ValueError unless all have one shape, with as many dimensions as `shape` names, as in "[batch, n]"."""
    shapes = [[*tensor.shape] for tensor in tensors.values()]
    if any(found != shapes[0] or len(found) != shape.count(",") + 1 for found in shapes):
        raise ValueError(f"{' and '.join(tensors)} must all be {shape}, got {' and '.join(map(str, shapes))}")
