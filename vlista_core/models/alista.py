"""ALISTA (Liu et al. 2019): x_t = η_{θ_t}^{p_t}(x_{t-1} + γ_t Wᴴ(y - Ax_{t-1})) with W analytic, γ_t and θ_t learned.

η^p leaves the largest p_t of the entries unshrunk (support selection of LISTA-CPSS).
"""

import torch
from torch import Tensor

from vlista_core.linops import LinearMap
from vlista_core.models.base import Loss
from vlista_core.models.fixed_dictionary import FixedDictionaryNetwork, weight_map
from vlista_core.models.layer import Recursion, ScalarNetwork


class ALISTA(FixedDictionaryNetwork, ScalarNetwork):
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
        super().__init__(layers, dictionary, dtype, made_for=weights, loss=loss, early_weight=early_weight)
        self.selection = selection
        self.forms_product = weights is None
        self.hold("weights", weights)
        self.add_scalars(1.0, [threshold * 0.9**t for t in range(layers)], noise_aware=noise_aware)

    def recursion(self, y: Tensor, phi: LinearMap) -> Recursion:
        psi, a = self.system(phi)
        weights = weight_map(self.weights, a)
        zero = y.new_zeros(len(y), psi.shape[1])
        return Recursion(zero, lambda t, code: weights.adjoint(y - a.apply(code)), self.shrink, psi.apply)
