"""ALISTA (Liu et al. 2019): x_t = η_{θ_t}^{p_t}(x_{t-1} + γ_t Wᴴ(y - Ax_{t-1})) with W analytic, γ_t and θ_t learned.

η^p leaves the largest p_t of the entries unshrunk (support selection of LISTA-CPSS).
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlista_core.estimate import Estimate
from vlista_core.linops import LinearMap
from vlista_core.models.base import Loss, positive_parameter
from vlista_core.models.fixed_dictionary import FixedDictionaryNetwork, weight_map
from vlista_core.models.layer import Recursion
from vlista_core.models.noise_scale import NoiseScale, layer_scalars, threshold_unit
from vlista_core.models.starting import STEADY_STEPS, steady_layers, store_choices
from vlista_core.problems import Batch


class ALISTA(FixedDictionaryNetwork):
    """One step and one threshold per layer, on analytic weights.

    `weights` [m, b] is W for one Φ, or its average over several (`averaged_weights`); None computes W for the Φ of each sample,
    which the paper does not have because it solves for W iteratively. The dictionary is fixed; None is the canonical one.
    """

    weights: Tensor | None

    def __init__(
        self,
        weights: Tensor | None,
        *,
        layers: int = 16,
        dictionary: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
        selection: bool = True,
        threshold: float = 0.1,
        noise_aware: bool = False,
        loss: Loss = "relative",
        early_weight: float = 0.0,
    ) -> None:
        """weights: [m, b]; dictionary: [n, b]; threshold: θ of the first layer, to start from; noise_aware: let
        steps and thresholds follow the noise level."""
        super().__init__(
            layers, dictionary, dtype, made_for=weights, selection=selection, loss=loss, early_weight=early_weight
        )
        self.forms_product = weights is None
        self.hold("weights", weights)
        self.step = positive_parameter([1.0] * layers)
        self.threshold = positive_parameter([threshold * 0.9**t for t in range(layers)])
        self.noise_scale = NoiseScale(layers) if noise_aware else None

    def recursion(self, y: Tensor, phi: LinearMap) -> Recursion:
        """The layers for one batch."""
        psi, a = self.system(phi)
        weights = weight_map(self.weights, a)
        zero = y.new_zeros(len(y), psi.shape[1])
        return Recursion(zero, lambda t, code: weights.adjoint(y - a.apply(code)), self.shrink, psi.apply)

    def forward(self, y: Tensor, phi: LinearMap, noise_var: Tensor) -> Estimate:
        return self.recursion(y, phi).run(layer_scalars(self.step, self.threshold, self.noise_scale, noise_var))

    @torch.no_grad()
    def start_from(self, batch: Batch) -> None:
        """Start from the step and the threshold level that, the same in every layer, end best on training data."""
        unit = threshold_unit(self.noise_scale, batch.noise_var)
        recursion = self.recursion(batch.y, batch.phi)
        chosen = steady_layers(recursion, self.layers, batch.signal, STEADY_STEPS, unit)
        store_choices(chosen, self.step, self.threshold)
