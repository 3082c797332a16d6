"""A layer of an unfolded network: how it is computed, and what it did."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from vlista_core.estimate import Estimate
from vlista_core.linops import LinearMap


@dataclass(frozen=True)
class Recursion:
    """x_t = shrink(t, x_{t-1} + γ_t gradient(t, x_{t-1}), θ_t) and ŝ_t = synthesis(x_t), for one batch."""

    start: Tensor
    """x_0: [batch, b]."""
    gradient: Callable[[int, Tensor], Tensor]
    """(t, code) -> [batch, b], for t = 0, 1, …"""
    shrink: Callable[[int, Tensor, Tensor], Tensor]
    """(t, code, threshold) -> [batch, b]; threshold: broadcastable."""
    synthesis: Callable[[Tensor], Tensor]
    """code -> ŝ: [batch, n]."""

    def run(self, scalars: Iterable[tuple[Tensor, Tensor]]) -> Estimate:
        """The estimate after the layers of which γ_t and θ_t are given, each [] or [batch]."""
        code, trajectory = self.start, []
        for t, (step, threshold) in enumerate(scalars):
            code = self.shrink(t, code + step[..., None] * self.gradient(t, code), threshold[..., None])
            trajectory.append(self.synthesis(code))
        return Estimate(trajectory[-1], code, trajectory=tuple(trajectory))


@dataclass(frozen=True)
class Layer:
    """What a layer of x_t = η_{θ_t}(x_{t-1} + γ_t(ΦΨ_t)ᴴ(y - ΦΨ_t x_{t-1})) did: what `vlista_core.theory` examines."""

    code: Tensor
    """x_t: [batch, b]."""
    step: Tensor
    """γ_t: [] or [batch]."""
    threshold: Tensor
    """θ_t: [] or [batch]."""
    dictionary: LinearMap
    """Ψ_t: shared or one for each sample."""


class Unrolled(Protocol):
    """A model that can show its layers, the first of which starts from x_0 = 0."""

    def unroll(self, y: Tensor, phi: LinearMap, noise_var: Tensor) -> list[Layer]:
        """The layers of the run on y: [batch, m], phi: the map Φ, noise_var: [batch]."""
