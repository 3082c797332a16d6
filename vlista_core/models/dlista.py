"""DLISTA: x_t = η_{θ_t}(x_{t-1} + γ_t(ΦΨ_t)ᴴ(y - ΦΨ_t x_{t-1})) with Ψ_t, θ_t and γ_t learned (the paper's Eq. 4).

Φ differs for every sample; the output is s = Ψ_T x_T, tied to the last dictionary, which gives the paper's parameter count.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlista_core.dictionaries import LearnedMap
from vlista_core.linops import LinearMap
from vlista_core.models.base import Loss, positive_parameter
from vlista_core.models.dictionary_network import DictionaryNetwork
from vlista_core.models.layer import Layer
from vlista_core.models.noise_scale import NoiseScale, layer_scalars, threshold_unit
from vlista_core.models.starting import greedy_layers, store_choices
from vlista_core.problems import Batch
from vlista_core.prox import soft_threshold

STEP_SCALES = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)
"""Steps that `start_from` tries, in units of `suggest_step` or of the natural step of a sample."""


class DLISTA(DictionaryNetwork):
    """One dictionary, one step and one threshold per layer, the same for every sample."""

    def __init__(
        self,
        dictionary: LearnedMap,
        *,
        layers: int = 3,
        step: float = 0.2,
        threshold: float = 0.01,
        noise_aware: bool = False,
        loss: Loss = "mse",
        early_weight: float = 0.0,
    ) -> None:
        """dictionary: where every Ψ_t starts; step, threshold: where γ_t and θ_t start (`start_from` finds better ones);
        noise_aware: let them follow the noise level, which the paper's do not."""
        super().__init__(dictionary, layers, loss=loss, early_weight=early_weight)
        self.step = positive_parameter([step] * layers)
        self.threshold = positive_parameter([threshold] * layers)
        self.noise_scale = NoiseScale(layers) if noise_aware else None

    def unroll(self, y: Tensor, phi: LinearMap, noise_var: Tensor) -> list[Layer]:
        code = y.new_zeros(y.shape[0], self.dictionary(0).shape[1])
        layers = []
        for t, (gamma, theta) in enumerate(layer_scalars(self.step, self.threshold, self.noise_scale, noise_var)):
            psi = self.dictionary(t)
            residual = y - phi.apply(psi.apply(code)) if t else y
            moved = code + gamma[..., None] * psi.adjoint(phi.adjoint(residual))
            code = soft_threshold(moved, theta[..., None])
            layers.append(Layer(code, gamma, theta, psi))
        return layers

    def start_from(self, batch: Batch) -> None:
        """Start the step and threshold of each layer, in turn, from the best of a grid on training data."""
        safe, unit = suggest_step(batch.phi, self.dictionary(0)), threshold_unit(self.noise_scale, batch.noise_var)
        steps = [scale * safe for scale in STEP_SCALES]
        chosen = greedy_layers(self.ista(batch.y, batch.phi), self.layers, batch.signal, steps, unit)
        store_choices(chosen, self.step, self.threshold)


@torch.no_grad()
def suggest_step(phi: LinearMap, dictionary: LinearMap) -> float:
    """1/‖ΦΨ‖², averaged over the samples of Φ: a step at which the first layers of an untrained network do not diverge."""
    return float(1.0 / (phi @ dictionary).spectral_norm().square().mean())
