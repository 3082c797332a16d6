"""LISTA-CP(SS) (Chen et al. 2018): x_t = η_{θ_t}^{p_t}(x_{t-1} + W_tᴴ(y - Ax_{t-1})), A = ΦΨ, with W_t and θ_t learned.

The coupled weights are the ones that a convergent LISTA must have. η^p leaves the largest p_t of the entries unshrunk.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vlista_core.estimate import Estimate, Measurement
from vlista_core.linops import DenseMap, LinearMap
from vlista_core.models.alista import check_weights, dictionary_map
from vlista_core.models.analytic import analytic_weights
from vlista_core.models.base import Loss, UnfoldedModel, positive_parameter
from vlista_core.models.calibration import steady_layers, store_positive
from vlista_core.models.pairs import matrix_parameter, matrix_value, store_matrix
from vlista_core.models.selection import selected_share
from vlista_core.problems import Batch, check_count
from vlista_core.prox import soft_threshold_with_selection


class LISTACP(UnfoldedModel):
    """A weight matrix a layer for one fixed Φ, each starting from ALISTA's analytic one. The dictionary is fixed."""

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
        super().__init__()
        check_count("layers", layers)
        self.layers, self.selection = layers, selection
        self.loss, self.early_weight = loss, early_weight
        self._dtype = dtype
        self.dictionary: Tensor | None
        self.hold("dictionary", dictionary)
        weights = analytic_weights(fixed_product(matrix, dictionary, dtype))
        self.weights = matrix_parameter(weights.expand(layers, -1, -1))
        self.threshold = positive_parameter([threshold * 0.9**t for t in range(layers)])

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    def forward(self, y: Tensor, phi: LinearMap, noise_var: Tensor) -> Estimate:
        psi = dictionary_map(self.dictionary, phi)
        a = phi @ psi
        weights = matrix_value(self.weights, self.dtype)
        threshold = nn.functional.softplus(self.threshold)
        code = y.new_zeros(y.shape[0], psi.shape[1])
        trajectory = []
        for t in range(self.layers):
            descent = code + DenseMap(weights[t]).adjoint(y - a.apply(code))
            code = self._shrink(t, descent, threshold[t])
            trajectory.append(psi.apply(code))
        return Estimate(trajectory[-1], code, trajectory=tuple(trajectory))

    @torch.no_grad()
    def calibrate(self, batch: Batch) -> None:
        """Start from the best scale of W_t and threshold of each layer in turn, by a grid search on training data."""
        psi = dictionary_map(self.dictionary, batch.phi)
        a = batch.phi @ psi
        weights = matrix_value(self.weights, self.dtype)
        chosen = steady_layers(
            self.layers,
            batch.y.new_zeros(len(batch), psi.shape[1]),
            batch.signal,
            gradient=lambda t, code: DenseMap(weights[t]).adjoint(batch.y - a.apply(code)),
            shrink=self._shrink,
            synthesis=psi.apply,
            steps=(0.3, 0.4, 0.5, 0.6, 0.8, 1.0),
        )
        steps = weights.real.new_tensor([layer.step for layer in chosen])
        store_matrix(self.weights, steps[:, None, None] * weights)
        store_positive(self.threshold, [layer.threshold for layer in chosen])

    def _shrink(self, t: int, descent: Tensor, threshold: Tensor) -> Tensor:
        return soft_threshold_with_selection(descent, threshold, selected_share(t, self.selection))

    def _check_fit(self, measured: Measurement) -> None:
        super()._check_fit(measured)
        check_weights(matrix_value(self.weights, self.dtype)[0], self.dictionary, measured.phi)


def fixed_product(matrix: Tensor, dictionary: Tensor | None, dtype: torch.dtype) -> Tensor:
    """A = ΦΨ: [m, b] of a model made for one Φ, or a ValueError where the two do not fit."""
    if matrix.ndim != 2 or matrix.dtype != dtype:
        raise ValueError(f"matrix must be {dtype} of shape [m, n], got {matrix.dtype} {[*matrix.shape]}")
    if dictionary is None:
        return matrix
    if dictionary.ndim != 2 or dictionary.dtype != dtype or dictionary.shape[0] != matrix.shape[1]:
        raise ValueError(
            f"dictionary must be {dtype} of shape [{matrix.shape[1]}, atoms] to match matrix, "
            f"got {dictionary.dtype} {[*dictionary.shape]}"
        )
    return matrix @ dictionary
