"""The layers of an unfolded network: how they are computed, their steps and thresholds, and where a grid search starts these.

Descent then only has to fine-tune. `greedy_layers` takes the best pair of each layer in turn, which suits a few layers.
`steady_layers` takes the one step and the one threshold, in units of the gradient, that end best when every layer has them,
which suits deep stacks: layers that do their best at once leave false entries that later layers cannot remove.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from vlista_core.estimate import Estimate
from vlista_core.linops import LinearMap
from vlista_core.models.augmentation import initialise
from vlista_core.models.base import UnfoldedModel, inverse_softplus, positive_parameter
from vlista_core.problems import Batch

STEADY_STEPS = (0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
"""Steps that deep stacks on analytic weights try."""
_LEVELS = (0.3, 0.5, 0.7, 0.9, 1.1, 1.4, 1.8, 2.3, 3.0)
"""Thresholds that are tried, in units of the root mean square of the gradient (`steady_layers`) or of a step along it."""
_LEAST = 1e-6
_LOWEST, _HIGHEST = -12.0, 8.0
"""Range of ln σ² that `NoiseScale` tells apart."""


@dataclass(frozen=True)
class Layer:
    """What a layer of x_t = η_{θ_t}(x_{t-1} + γ_t(ΦΨ_t)ᴴ(y - ΦΨ_t x_{t-1})) did: what `vlista_core.theory` examines.

    x_t [batch, b]; γ_t and θ_t, each [] or [batch]; Ψ_t, shared or one for each sample.
    """

    code: Tensor
    step: Tensor
    threshold: Tensor
    dictionary: LinearMap


class Unrolled(Protocol):
    """A model that can show its layers, the first of which starts from x_0 = 0."""

    def unroll(self, y: Tensor, phi: LinearMap, noise_var: Tensor) -> list[Layer]:
        """The layers of the run on y: [batch, m], phi: the map Φ, noise_var: [batch]."""


@dataclass(frozen=True)
class Recursion:
    """x_t = shrink(t, x_{t-1} + γ_t gradient(t, x_{t-1}), θ_t) and ŝ_t = synthesis(x_t), for one batch.

    Codes are [batch, b], signals [batch, n]; start: x_0; t counts from 0; thresholds are broadcastable.
    """

    start: Tensor
    gradient: Callable[[int, Tensor], Tensor]
    shrink: Callable[[int, Tensor, Tensor], Tensor]
    synthesis: Callable[[Tensor], Tensor]

    def codes(self, scalars: Iterable[tuple[Tensor, Tensor]]) -> list[Tensor]:
        """x_t of the layers of which γ_t and θ_t are given, each [] or [batch]."""
        code, codes = self.start, []
        for t, (step, threshold) in enumerate(scalars):
            code = self.shrink(t, code + step[..., None] * self.gradient(t, code), threshold[..., None])
            codes.append(code)
        return codes

    def error(self, code: Tensor, signal: Tensor) -> float:
        """‖ŝ - s‖², summed over the batch; Inf where that is no number, to rank last. code: [batch, b], signal: [batch, n]."""
        error = float((self.synthesis(code) - signal).abs().square().sum())
        return math.inf if math.isnan(error) else error


class NoiseScale(nn.Module):
    """Factors of γ_t and θ_t as a function of σ² alone: a small network of ln σ².

    It starts at 1 for the step and at √σ for the threshold, half way between a constant and a multiple of the noise.
    """

    def __init__(self, layers: int, *, hidden: int = 16) -> None:
        super().__init__()
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


class LayerChoice(NamedTuple):
    """What the search found for one layer: the error after it (see `Recursion.error`), its step and its threshold."""

    error: float
    step: float
    threshold: float


Search = Callable[[Recursion, int, Tensor, Sequence[float], Tensor], list[LayerChoice]]


@torch.no_grad()
def greedy_layers(
    recursion: Recursion, layers: int, signal: Tensor, steps: Sequence[float], unit: Tensor
) -> list[LayerChoice]:
    """The step and threshold of each layer that leave the least error after it, given the layers before.

    Thresholds are tried in units of a step: where steps are small, those in units of the gradient leave nothing but zeros.
    signal: s [batch, n]; steps: those to try; unit: what thresholds are multiplied with, [1, 1] or [batch, 1].
    """
    code, chosen = recursion.start, []
    for t in range(layers):
        direction = recursion.gradient(t, code)
        scale = float(direction.abs().square().mean().sqrt())
        best = LayerChoice(float("inf"), steps[0], scale)
        for step, level in product(steps, _LEVELS):
            threshold = level * step * scale
            new = recursion.shrink(t, code + step * direction, threshold * unit)
            best = min(best, LayerChoice(recursion.error(new, signal), step, threshold))
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
    for step, level in product(steps, _LEVELS):
        code, thresholds = recursion.start, []
        for t in range(layers):
            direction = recursion.gradient(t, code)
            threshold = level * direction.abs().square().mean().sqrt()
            code = recursion.shrink(t, code + step * direction, threshold * unit)
            thresholds.append(float(threshold))
        error = recursion.error(code, signal)
        if not best or error < best[-1].error:
            best = [LayerChoice(error, step, threshold) for threshold in thresholds]
    return best


class ScalarNetwork(UnfoldedModel):
    """A network with γ_t and θ_t as parameters [layers], the same for every sample unless they follow the noise level."""

    step: nn.Parameter | None
    threshold: nn.Parameter
    noise_scale: NoiseScale | None
    search: Search = staticmethod(steady_layers)

    def add_scalars(self, step: float | None, threshold: list[float], *, noise_aware: bool = False) -> None:
        """step: where every γ_t starts, None keeps them at 1; threshold: where θ_t start; noise_aware: let them follow σ²."""
        self.step = None if step is None else positive_parameter([step] * self.layers)
        self.threshold = positive_parameter(threshold)
        self.noise_scale = NoiseScale(self.layers) if noise_aware else None

    @abstractmethod
    def recursion(self, y: Tensor, phi: LinearMap) -> Recursion:
        """The layers for one batch. y: [batch, m]."""

    def steps_to_try(self, phi: LinearMap) -> Sequence[float]:
        """The steps of the grid of `start_from`."""
        return STEADY_STEPS

    def scalars(self, noise_var: Tensor) -> list[tuple[Tensor, Tensor]]:
        """γ_t and θ_t of each layer: [], or [batch] where they follow the noise. noise_var: [batch]."""
        threshold = nn.functional.softplus(self.threshold)
        step = torch.ones_like(threshold) if self.step is None else nn.functional.softplus(self.step)
        if self.noise_scale is not None:
            step_scale, threshold_scale = self.noise_scale(noise_var)
            step, threshold = step[:, None] * step_scale, threshold[:, None] * threshold_scale
        return list(zip(step, threshold, strict=True))

    def forward(self, y: Tensor, phi: LinearMap, noise_var: Tensor) -> Estimate:
        recursion = self.recursion(y, phi)
        codes = recursion.codes(self.scalars(noise_var))
        trajectory = tuple(recursion.synthesis(code) for code in codes)
        return Estimate(trajectory[-1], codes[-1], trajectory=trajectory)

    @torch.no_grad()
    def choose(self, batch: Batch) -> list[LayerChoice]:
        """The steps and thresholds that `search` finds on training data."""
        scale, noise_var = self.noise_scale, batch.noise_var
        unit = torch.ones_like(noise_var[:1, None]) if scale is None else scale(noise_var)[1][0, :, None]
        recursion = self.recursion(batch.y, batch.phi)
        return self.search(recursion, self.layers, batch.signal, self.steps_to_try(batch.phi), unit)

    def start_from(self, batch: Batch) -> None:
        """Start from the steps and thresholds of a grid that do best on training data."""
        self.start_at(self.choose(batch))

    @torch.no_grad()
    def start_at(self, chosen: Sequence[LayerChoice]) -> None:
        """Let the layers start at these steps, where they are parameters, and thresholds, each at least 1e-6."""
        for parameter, values in (
            (self.step, [layer.step for layer in chosen]),
            (self.threshold, [layer.threshold for layer in chosen]),
        ):
            if parameter is not None:
                parameter.copy_(torch.tensor([inverse_softplus(max(value, _LEAST)) for value in values]))
