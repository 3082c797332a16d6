"""A start from data: steps and thresholds by grid search, so that descent only has to fine-tune.

Layer t is x_t = η_θ(x_{t-1} + γ g_t(x_{t-1})). `greedy_layers` takes the best pair of each layer in turn, which suits a few
layers. `steady_layers` takes the one step and the one threshold, in units of the gradient, that end best when every layer has
them, which suits deep stacks: layers that do their best at once leave false entries that later layers cannot remove.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vlista_core.models.base import inverse_softplus

LEVELS = (0.3, 0.5, 0.7, 0.9, 1.1, 1.4, 1.8, 2.3, 3.0)
"""Thresholds that are tried, in units of the root mean square of the gradient."""
_LEAST = 1e-6


class LayerChoice(NamedTuple):
    """What the search found for one layer."""

    error: float
    """‖ŝ - s‖² after the layer, summed over the batch."""
    step: float
    threshold: float


@torch.no_grad()
def greedy_layers(
    layers: int,
    code: Tensor,
    signal: Tensor,
    *,
    gradient: Callable[[int, Tensor], Tensor],
    shrink: Callable[[int, Tensor, Tensor], Tensor],
    synthesis: Callable[[Tensor], Tensor],
    steps: Sequence[float],
) -> list[LayerChoice]:
    """The step and threshold of each layer that leave the least error after it, given the layers before.

    code: x_0 [batch, b]; signal: s [batch, n]; gradient(t, code): g_t [batch, b]; shrink(t, u, threshold): η [batch, b];
    synthesis(code): ŝ [batch, n].
    """
    chosen = []
    for t in range(layers):
        direction = gradient(t, code)
        scale = float(direction.abs().square().mean().sqrt())
        best = LayerChoice(float("inf"), steps[0], scale)
        for step in steps:
            for level in LEVELS:
                new = shrink(t, code + step * direction, direction.real.new_tensor(level * scale))
                error = float((synthesis(new) - signal).abs().square().sum())
                best = min(best, LayerChoice(error, step, level * scale))
        code = shrink(t, code + best.step * direction, direction.real.new_tensor(best.threshold))
        chosen.append(best)
    return chosen


@torch.no_grad()
def steady_layers(
    layers: int,
    code: Tensor,
    signal: Tensor,
    *,
    gradient: Callable[[int, Tensor], Tensor],
    shrink: Callable[[int, Tensor, Tensor], Tensor],
    synthesis: Callable[[Tensor], Tensor],
    steps: Sequence[float],
) -> list[LayerChoice]:
    """The same step and the same threshold level in every layer that leave the least error after the last one.

    Arguments as for `greedy_layers`. The thresholds of the layers are level times the root mean square of their gradients.
    """
    best: list[LayerChoice] = []
    for step in steps:
        for level in LEVELS:
            point, thresholds = code, []
            for t in range(layers):
                direction = gradient(t, point)
                threshold = level * direction.abs().square().mean().sqrt()
                point = shrink(t, point + step * direction, threshold)
                thresholds.append(float(threshold))
            error = float((synthesis(point) - signal).abs().square().sum())
            if not best or error < best[-1].error:
                best = [LayerChoice(error, step, threshold) for threshold in thresholds]
    return best


def store_positive(parameter: nn.Parameter, values: Sequence[float]) -> None:
    """Set a parameter [len(values)] so that its softplus is `values`, each raised to at least 1e-6."""
    with torch.no_grad():
        parameter.copy_(torch.tensor([inverse_softplus(max(value, _LEAST)) for value in values]))
