"""Ada-LISTA (Aberdam et al. 2021): x_t = η_{θ_t}(x_{t-1} + γ_t Aᴴ(W₂ᴴy - W₁ᴴW₁Ax_{t-1})), A = ΦΨ of the sample.

W₁, W₂ [m, m] are shared by the layers and start as the identity, where it is ISTA with one step and one threshold per layer.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from vlista_core.dictionaries import LearnedMap
from vlista_core.linops import LinearMap
from vlista_core.models.base import Loss, matrix_parameter, matrix_value
from vlista_core.models.fixed_dictionary import FixedDictionaryNetwork
from vlista_core.models.layer import Recursion, ScalarNetwork, greedy_layers

_STEPS = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
"""Steps that `start_from` tries, in units of 1/‖A‖²."""


class AdaLISTA(FixedDictionaryNetwork, ScalarNetwork):
    """Two matrices on the measurements that adapt ISTA to any A; ΦΨ is not formed.

    The dictionary is a fixed matrix, a learned one, or None for the canonical one.
    """

    measurements: int
    search = staticmethod(greedy_layers)

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
        """measurements: m; dictionary: [n, b]; step, threshold: of every layer, to start from (or `start_from`)."""
        super().__init__(layers, dictionary, dtype, measurements=measurements, loss=loss, early_weight=early_weight)
        self.residual_weight = matrix_parameter(torch.eye(measurements, dtype=dtype))
        self.input_weight = matrix_parameter(torch.eye(measurements, dtype=dtype))
        self.add_scalars(step, [threshold] * layers)

    def recursion(self, y: Tensor, phi: LinearMap) -> Recursion:
        psi, a = self.system(phi)
        first, second = (matrix_value(value, self.dtype) for value in (self.residual_weight, self.input_weight))

        def gradient(t: int, code: Tensor) -> Tensor:
            return a.adjoint(y @ second.conj() - a.apply(code) @ first.mT @ first.conj())

        return Recursion(y.new_zeros(len(y), psi.shape[1]), gradient, self.shrink, psi.apply)

    def steps_to_try(self, phi: LinearMap) -> Sequence[float]:
        largest = float(self.system(phi)[1].spectral_norm().square().mean())
        return [step / largest for step in _STEPS]
