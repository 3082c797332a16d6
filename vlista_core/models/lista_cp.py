"""LISTA-CP(SS) (Chen et al. 2018): x_t = η_{θ_t}^{p_t}(x_{t-1} + W_tᴴ(y - Ax_{t-1})), A = ΦΨ, with W_t and θ_t learned.

The coupled weights are the ones that a convergent LISTA must have. η^p leaves the largest p_t of the entries unshrunk.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from vlista_core.linops import DenseMap, LinearMap
from vlista_core.models.base import Loss, matrix_parameter, matrix_value, store_matrix
from vlista_core.models.fixed_dictionary import FixedDictionaryNetwork, analytic_weights, fixed_product
from vlista_core.models.layer import LayerChoice, Recursion, ScalarNetwork


class LISTACP(FixedDictionaryNetwork, ScalarNetwork):
    """One weight matrix per layer for one fixed Φ, each starting from ALISTA's analytic one. The dictionary is fixed."""

    def __init__(
        self,
        matrix: Tensor,
        *,
        layers: int = 16,
        dictionary: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
        selection: bool = True,
        threshold: float = 0.1,
        loss: Loss = "relative",
        early_weight: float = 0.0,
    ) -> None:
        """matrix: Φ [m, n]; dictionary: [n, b], None is canonical; threshold: θ of the first layer, to start from."""
        weights = analytic_weights(fixed_product(matrix, dictionary, dtype))
        super().__init__(layers, dictionary, dtype, made_for=weights, loss=loss, early_weight=early_weight)
        self.selection = selection
        self.weights = matrix_parameter(weights.expand(layers, -1, -1))
        self.add_scalars(None, [threshold * 0.9**t for t in range(layers)])

    def recursion(self, y: Tensor, phi: LinearMap) -> Recursion:
        psi, a = self.system(phi)
        weights = matrix_value(self.weights, self.dtype)

        def gradient(t: int, code: Tensor) -> Tensor:
            return DenseMap(weights[t]).adjoint(y - a.apply(code))

        return Recursion(y.new_zeros(len(y), psi.shape[1]), gradient, self.shrink, psi.apply)

    def start_at(self, chosen: Sequence[LayerChoice]) -> None:
        """Let the layers start at these thresholds, and at the analytic weights times these steps."""
        super().start_at(chosen)
        weights = matrix_value(self.weights, self.dtype)
        steps = weights.real.new_tensor([layer.step for layer in chosen])
        store_matrix(self.weights, steps[:, None, None] * weights)
