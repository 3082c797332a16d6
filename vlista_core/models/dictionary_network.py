"""What DLISTA and A-DLISTA share: a learned dictionary for each layer, the output tied to the last one."""

from __future__ import annotations

import copy
from abc import abstractmethod

import torch
from torch import Tensor, nn

from vlista_core.dictionaries import LearnedMap
from vlista_core.estimate import Estimate, Measurement
from vlista_core.linops import LinearMap
from vlista_core.models.base import UnfoldedModel
from vlista_core.models.layer import Layer
from vlista_core.problems import check_count


class DictionaryNetwork(UnfoldedModel):
    """Layers with dictionaries Ψ_1 … Ψ_T; the signal after layer t is Ψ_t x_t. A subclass says what a layer does."""

    def __init__(self, dictionary: LearnedMap, layers: int) -> None:
        """dictionary: where every Ψ_t starts."""
        super().__init__()
        check_count("layers", layers)
        if not isinstance(dictionary, LearnedMap):
            raise ValueError(
                f"dictionary must be a LearnedMap such as LearnedDictionary, got {type(dictionary).__name__}"
            )
        self.dictionaries = nn.ModuleList(copy.deepcopy(dictionary) for _ in range(layers))

    @property
    def layers(self) -> int:
        """T."""
        return len(self.dictionaries)

    @property
    def dtype(self) -> torch.dtype:
        return self.dictionary(0).dtype

    def dictionary(self, t: int) -> LinearMap:
        """Ψ_{t+1} as a plain map."""
        module = self.dictionaries[t]
        if not isinstance(module, LearnedMap):
            raise TypeError(f"dictionaries must hold LearnedMaps, got {type(module).__name__}")
        return module.frozen()

    @abstractmethod
    def unroll(self, y: Tensor, phi: LinearMap, noise_var: Tensor) -> list[Layer]:
        """What each layer did."""

    def forward(self, y: Tensor, phi: LinearMap, noise_var: Tensor, *, every_layer: bool = False) -> Estimate:
        """Signals of the layers before the last cost a product each: they are given where asked for, here or by the loss."""
        layers = self.unroll(y, phi, noise_var)
        wanted = layers if every_layer or self.early_weight > 0 else layers[-1:]
        trajectory = tuple(layer.dictionary.apply(layer.code) for layer in wanted)
        return Estimate(trajectory[-1], layers[-1].code, trajectory=trajectory if len(wanted) == len(layers) else None)

    def infer(self, measured: Measurement) -> Estimate:
        out: Estimate = self(measured.y, measured.phi, measured.noise_var, every_layer=True)
        return out

    def _check_fit(self, measured: Measurement) -> None:
        super()._check_fit(measured)
        check_length(self.dictionary(0), measured.phi)


def check_length(dictionary: LinearMap, phi: LinearMap) -> None:
    """ValueError where Φ acts on signals of another length than the atoms have."""
    if phi.shape[1] != dictionary.shape[0]:
        raise ValueError(
            f"phi must have {dictionary.shape[0]} columns, the length of the model's atoms, got {phi.shape[1]}"
        )
