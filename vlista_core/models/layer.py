"""What a layer of x_t = η_{θ_t}(x_{t-1} + γ_t(ΦΨ_t)ᴴ(y - ΦΨ_t x_{t-1})) did: the data that `vlista_core.theory` examines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from vlista_core.linops import LinearMap


@dataclass(frozen=True)
class Layer:
    """One layer of a run, with x_0 = 0 before the first."""

    code: Tensor
    """x_t: [batch, b]."""
    step: Tensor
    """γ_t: [] or [batch]."""
    threshold: Tensor
    """θ_t: [] or [batch]."""
    dictionary: LinearMap
    """Ψ_t: shared or one for each sample."""


class Unrolled(Protocol):
    """A model that can show its layers."""

    def unroll(self, y: Tensor, phi: LinearMap, noise_var: Tensor) -> list[Layer]:
        """The layers of the run on y: [batch, m], phi: the map Φ, noise_var: [batch]."""
