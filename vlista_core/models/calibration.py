"""A start from data: the best step and threshold of each layer in turn, by grid search.

Layer t is x_t = η_θ(x_{t-1} + γ g_t(x_{t-1})). Each layer costs one gradient and a few dozen shrinkages; descent then only has
to fine-tune. Without it deep stacks start diverged.
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


def store_positive(parameter: nn.Parameter, values: Sequence[float]) -> None:
    """Set a parameter [len(values)] so that its softplus is `values`, each raised to at least 1e-6."""
    with torch.no_grad():
        parameter.copy_(torch.tensor([inverse_softplus(max(value, _LEAST)) for value in values]))
