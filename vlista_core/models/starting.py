"""A start from data: steps and thresholds by grid search, so that descent only has to fine-tune.

`greedy_layers` takes the best pair of each layer in turn, which suits a few layers. `steady_layers` takes the one step and the
one threshold, in units of the gradient, that end best when every layer has them, which suits deep stacks: layers that do their
best at once leave false entries that later layers cannot remove.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vlista_core.models.base import inverse_softplus
from vlista_core.models.layer import Recursion

LEVELS = (0.3, 0.5, 0.7, 0.9, 1.1, 1.4, 1.8, 2.3, 3.0)
"""Thresholds that are tried, in units of the root mean square of the gradient."""
STEADY_STEPS = (0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
"""Steps that deep stacks on analytic weights try."""
_LEAST = 1e-6


class LayerChoice(NamedTuple):
    """What the search found for one layer."""

    error: float
    """‖ŝ - s‖² after the layer, summed over the batch."""
    step: float
    threshold: float


@torch.no_grad()
def greedy_layers(
    recursion: Recursion, layers: int, signal: Tensor, steps: Sequence[float], unit: Tensor
) -> list[LayerChoice]:
    """The step and threshold of each layer that leave the least error after it, given the layers before.

    signal: s [batch, n]; steps: those to try; unit: what thresholds are multiplied with, [1, 1] or [batch, 1].
    """
    code, chosen = recursion.start, []
    for t in range(layers):
        direction = recursion.gradient(t, code)
        scale = float(direction.abs().square().mean().sqrt())
        best = LayerChoice(float("inf"), steps[0], scale)
        for step in steps:
            for level in LEVELS:
                new = recursion.shrink(t, code + step * direction, level * scale * unit)
                error = float((recursion.synthesis(new) - signal).abs().square().sum())
                best = min(best, LayerChoice(error, step, level * scale))
        code = recursion.shrink(t, code + best.step * direction, best.threshold * unit)
        chosen.append(best)
    return chosen


@torch.no_grad()
def steady_layers(
    recursion: Recursion, layers: int, signal: Tensor, steps: Sequence[float], unit: Tensor
) -> list[LayerChoice]:
    """The same step and the same threshold level in every layer that leave the least error after the last one.

    Arguments as for `greedy_layers`. The thresholds of the layers are level times the root mean square of their gradients.
    """
    best: list[LayerChoice] = []
    for step in steps:
        for level in LEVELS:
            code, thresholds = recursion.start, []
            for t in range(layers):
                direction = recursion.gradient(t, code)
                threshold = level * direction.abs().square().mean().sqrt()
                code = recursion.shrink(t, code + step * direction, threshold * unit)
                thresholds.append(float(threshold))
            error = float((recursion.synthesis(code) - signal).abs().square().sum())
            if not best or error < best[-1].error:
                best = [LayerChoice(error, step, threshold) for threshold in thresholds]
    return best


def store_positive(parameter: nn.Parameter, values: Sequence[float]) -> None:
    """Set a parameter [len(values)] so that its softplus is `values`, each raised to at least 1e-6."""
    with torch.no_grad():
        parameter.copy_(torch.tensor([inverse_softplus(max(value, _LEAST)) for value in values]))


def store_choices(chosen: Sequence[LayerChoice], step: nn.Parameter, threshold: nn.Parameter) -> None:
    """Let the layers start at the steps and thresholds that were found."""
    store_positive(step, [layer.step for layer in chosen])
    store_positive(threshold, [layer.threshold for layer in chosen])
