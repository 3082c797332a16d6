"""What DLISTA and A-DLISTA share: a learned dictionary for each layer, the output tied to the last one."""

from __future__ import annotations

import copy
from abc import abstractmethod

from torch import Tensor, nn

from vlista_core.dictionaries import LearnedMap
from vlista_core.estimate import Estimate, Measurement
from vlista_core.linops import LinearMap
from vlista_core.models.base import Loss, UnfoldedModel
from vlista_core.models.layer import Layer, Recursion
from vlista_core.prox import soft_threshold

_RATE = 2e-3
"""Learning rate of everything but the dictionaries."""


class DictionaryNetwork(UnfoldedModel):
    """Layers with dictionaries Ψ_1 … Ψ_T; the signal after layer t is Ψ_t x_t. A subclass says what a layer does."""

    def __init__(self, dictionary: LearnedMap, layers: int, *, loss: Loss, early_weight: float) -> None:
        """dictionary: where every Ψ_t starts."""
        if not isinstance(dictionary, LearnedMap):
            raise ValueError(
                f"dictionary must be a LearnedMap such as LearnedDictionary, got {type(dictionary).__name__}"
            )
        length, dtype = dictionary.shape[0], dictionary.dtype
        super().__init__(layers, dtype, length=length, loss=loss, early_weight=early_weight)
        self.dictionaries = nn.ModuleList(copy.deepcopy(dictionary) for _ in range(layers))

    def dictionary(self, t: int) -> LinearMap:
        """Ψ_{t+1} as a plain map."""
        module = self.dictionaries[t]
        if not isinstance(module, LearnedMap):
            raise TypeError(f"dictionaries must hold LearnedMaps, got {type(module).__name__}")
        return module.frozen()

    @abstractmethod
    def unroll(self, y: Tensor, phi: LinearMap, noise_var: Tensor) -> list[Layer]:
        """What each layer did."""

    def ista(self, y: Tensor, phi: LinearMap) -> Recursion:
        """ISTA with the dictionaries of the layers, before they are trained: all still equal the first one."""

        def gradient(t: int, code: Tensor) -> Tensor:
            psi = self.dictionary(t)
            return psi.adjoint(phi.adjoint(y - phi.apply(psi.apply(code))))

        first = self.dictionary(0)
        zero = y.new_zeros(len(y), first.shape[1])
        return Recursion(zero, gradient, lambda t, code, threshold: soft_threshold(code, threshold), first.apply)

    def forward(self, y: Tensor, phi: LinearMap, noise_var: Tensor, *, every_layer: bool = False) -> Estimate:
        """Signals of the layers before the last cost a product each: they are given where asked for, here or by the loss."""
        layers = self.unroll(y, phi, noise_var)
        wanted = layers if every_layer or self.early_weight > 0 else layers[-1:]
        trajectory = tuple(layer.dictionary.apply(layer.code) for layer in wanted)
        return Estimate(trajectory[-1], layers[-1].code, trajectory=trajectory if len(wanted) == len(layers) else None)

    def parameter_groups(self) -> list[dict[str, object]]:
        """The dictionaries at the trainer's rate, all else at a faster one: Adam moves every entry of Ψ at once."""
        others = [value for name, value in self.named_parameters() if not name.startswith("dictionaries.")]
        return [
            {"name": "dictionaries", "params": list(self.dictionaries.parameters())},
            {"name": "others", "params": others, "lr": _RATE},
        ]

    def infer(self, measured: Measurement) -> Estimate:
        out: Estimate = self(measured.y, measured.phi, measured.noise_var, every_layer=True)
        return out
