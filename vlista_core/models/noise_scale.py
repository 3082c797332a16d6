"""How steps and thresholds follow the noise level, for networks whose scalars are otherwise the same for every sample."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vlista_core.models.augmentation import initialise

_LOWEST, _HIGHEST = -12.0, 8.0


class NoiseScale(nn.Module):
    """Factors of γ_t and θ_t as a function of σ² alone: a small network of ln σ².

    It starts at 1 for the step and at √σ for the threshold, half way between a constant and a multiple of the noise.
    """

    def __init__(self, layers: int, *, hidden: int = 16) -> None:
        super().__init__()
        self.layers = layers
        with torch.random.fork_rng(devices=[]):
            self.body = nn.Linear(1, hidden)
            self.head = nn.Linear(hidden, 2 * layers)
        initialise(self, torch.Generator().manual_seed(0))
        with torch.no_grad():
            self.body.bias.copy_(torch.linspace(-2.0, 2.0, hidden))
            self.head.weight.zero_()

    def forward(self, noise_var: Tensor) -> tuple[Tensor, Tensor]:
        """noise_var: [batch] -> the factors of the steps and of the thresholds, each [layers, batch]."""
        level = torch.log(noise_var.clamp_min(torch.finfo(noise_var.dtype).tiny)).clamp(_LOWEST, _HIGHEST)
        level = level.to(self.head.weight.dtype)
        step, threshold = self.head(torch.tanh(self.body(level[:, None] / 4.0))).mT.chunk(2)
        return torch.exp(step), torch.exp(threshold + level / 4.0)


def layer_scalars(
    step: Tensor | None, threshold: Tensor, scale: NoiseScale | None, noise_var: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """γ_t and θ_t of each layer from their parameters: scalars, or [batch] where they follow the noise.

    step, threshold: [layers], before the softplus that makes them positive; a step of None is 1.
    """
    threshold = nn.functional.softplus(threshold)
    step = torch.ones_like(threshold) if step is None else nn.functional.softplus(step)
    if scale is None:
        return list(zip(step, threshold, strict=True))
    step_scale, threshold_scale = scale(noise_var)
    return list(zip(step[:, None] * step_scale, threshold[:, None] * threshold_scale, strict=True))


def threshold_unit(scale: NoiseScale | None, noise_var: Tensor) -> Tensor:
    """What a network multiplies its thresholds with before it has learned anything: [1, 1] or [batch, 1]."""
    return torch.ones_like(noise_var[:1, None]) if scale is None else scale(noise_var)[1][0, :, None]
