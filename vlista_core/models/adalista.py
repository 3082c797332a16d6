"""Ada-LISTA (Aberdam et al. 2021): x_t = η_{θ_t}(x_{t-1} + γ_t Aᴴ(W₂ᴴy - W₁ᴴW₁Ax_{t-1})), A = ΦΨ of the sample.

W₁, W₂ [m, m] are shared by the layers and start as the identity, where it is ISTA with a step and a threshold a layer.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vlista_core.dictionaries import LearnedMap
from vlista_core.estimate import Estimate, Measurement
from vlista_core.linops import LinearMap
from vlista_core.models.alista import dictionary_map
from vlista_core.models.base import Loss, UnfoldedModel, positive_parameter
from vlista_core.models.calibration import greedy_layers, store_positive
from vlista_core.models.pairs import matrix_parameter, matrix_value
from vlista_core.problems import Batch, check_count
from vlista_core.prox import soft_threshold

STEPS = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
"""Steps that the calibration tries, in units of 1/‖A‖²."""


class AdaLISTA(UnfoldedModel):
    """Two matrices on the measurements that adapt ISTA to any A; ΦΨ is not formed.

    The dictionary is a fixed matrix, a learned one, or None for the canonical one.
    """

    def __init__(
        self,
        measurements: int,
        *,
        layers: int = 3,
        dictionary: Tensor | LearnedMap | None = None,
        dtype: torch.dtype = torch.float32,
        step: float = 0.1,
        threshold: float = 0.05,
        loss: Loss = "mse",
        early_weight: float = 0.0,
    ) -> None:
        """measurements: m; dictionary: [n, b]; step, threshold: of every layer, to start from (or `calibrate`)."""
        super().__init__()
        check_count("measurements", measurements)
        check_count("layers", layers)
        if dictionary is not None and dictionary.dtype != dtype:
            raise ValueError(f"dictionary must have the model's dtype {dtype}, got {dictionary.dtype}")
        self.measurements, self.layers = measurements, layers
        self.loss, self.early_weight = loss, early_weight
        self._dtype = dtype
        self.dictionary: Tensor | LearnedMap | None
        if isinstance(dictionary, LearnedMap):
            self.dictionary = dictionary
        else:
            self.hold("dictionary", dictionary)
        self.residual_weight = matrix_parameter(torch.eye(measurements, dtype=dtype))
        self.input_weight = matrix_parameter(torch.eye(measurements, dtype=dtype))
        self.step = positive_parameter([step] * layers)
        self.threshold = positive_parameter([threshold] * layers)

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    def forward(self, y: Tensor, phi: LinearMap, noise_var: Tensor) -> Estimate:
        psi = dictionary_map(self.dictionary, phi)
        a = phi @ psi
        step, threshold = (nn.functional.softplus(value) for value in (self.step, self.threshold))
        code = y.new_zeros(y.shape[0], psi.shape[1])
        trajectory = []
        for t in range(self.layers):
            code = soft_threshold(code + step[t] * self._gradient(y, a, code), threshold[t])
            trajectory.append(psi.apply(code))
        return Estimate(trajectory[-1], code, trajectory=tuple(trajectory))

    @torch.no_grad()
    def calibrate(self, batch: Batch) -> None:
        """Start from the best step and threshold of each layer in turn, by a grid search on training data."""
        psi = dictionary_map(self.dictionary, batch.phi)
        a = batch.phi @ psi
        unit = float(a.spectral_norm().square().mean())
        chosen = greedy_layers(
            self.layers,
            batch.y.new_zeros(len(batch), psi.shape[1]),
            batch.signal,
            gradient=lambda t, code: self._gradient(batch.y, a, code),
            shrink=lambda t, u, threshold: soft_threshold(u, threshold),
            synthesis=psi.apply,
            steps=tuple(factor / unit for factor in STEPS),
        )
        store_positive(self.step, [layer.step for layer in chosen])
        store_positive(self.threshold, [layer.threshold for layer in chosen])

    def _gradient(self, y: Tensor, a: LinearMap, code: Tensor) -> Tensor:
        """Aᴴ(W₂ᴴy - W₁ᴴW₁Ax): [batch, b]."""
        first, second = (matrix_value(value, self.dtype) for value in (self.residual_weight, self.input_weight))
        return a.adjoint(y @ second.conj() - a.apply(code) @ first.mT @ first.conj())

    def _check_fit(self, measured: Measurement) -> None:
        super()._check_fit(measured)
        m, n = measured.phi.shape
        if m != self.measurements:
            raise ValueError(f"phi must have {self.measurements} rows, for which the model was made, got {m}")
        if self.dictionary is not None and self.dictionary.shape[0] != n:
            raise ValueError(
                f"phi must have {self.dictionary.shape[0]} columns, the length of the dictionary's atoms, got {n}"
            )
