"""ALISTA (Liu et al. 2019): x_t = η_{θ_t}^{p_t}(x_{t-1} + γ_t Wᴴ(y - Ax_{t-1})) with W analytic, γ_t and θ_t learned.

η^p leaves the largest p_t of the entries unshrunk (support selection of LISTA-CPSS).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vlista_core.dictionaries import LearnedMap
from vlista_core.estimate import Estimate, Measurement
from vlista_core.linops import DenseMap, IdentityMap, LinearMap
from vlista_core.models.analytic import analytic_weights
from vlista_core.models.base import Loss, UnfoldedModel, positive_parameter
from vlista_core.models.calibration import steady_layers, store_positive
from vlista_core.models.noise_scale import NoiseScale, layer_scalars, threshold_unit
from vlista_core.models.selection import selected_share
from vlista_core.problems import Batch, check_count
from vlista_core.prox import soft_threshold_with_selection


class ALISTA(UnfoldedModel):
    """Two scalars a layer on analytic weights.

    `weights` [m, b] is W for one Φ, or its average over several (`averaged_weights`); None computes W for the Φ of each sample,
    which the paper does not have because it solves for W iteratively. The dictionary is fixed; None is the canonical one.
    """

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
        super().__init__()
        check_count("layers", layers)
        self.layers, self.selection = layers, selection
        self.loss, self.early_weight = loss, early_weight
        self._dtype = dtype
        self.weights: Tensor | None
        self.dictionary: Tensor | None
        self.hold("weights", weights)
        self.hold("dictionary", dictionary)
        self.step = positive_parameter([1.0] * layers)
        self.threshold = positive_parameter([threshold * 0.9**t for t in range(layers)])
        self.noise_scale = NoiseScale(layers) if noise_aware else None

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    @torch.no_grad()
    def calibrate(self, batch: Batch) -> None:
        """Start from the step and the threshold level that, the same in every layer, end best on training data."""
        psi = dictionary_map(self.dictionary, batch.phi)
        a = batch.phi @ psi
        weights = weight_map(self.weights, a)
        unit = threshold_unit(self.noise_scale, batch.noise_var)
        chosen = steady_layers(
            self.layers,
            batch.y.new_zeros(len(batch), psi.shape[1]),
            batch.signal,
            gradient=lambda t, code: weights.adjoint(batch.y - a.apply(code)),
            shrink=lambda t, u, threshold: soft_threshold_with_selection(u, threshold * unit, self._share(t)),
            synthesis=psi.apply,
            steps=(0.3, 0.4, 0.5, 0.6, 0.8, 1.0),
        )
        store_positive(self.step, [layer.step for layer in chosen])
        store_positive(self.threshold, [layer.threshold for layer in chosen])

    def _share(self, t: int) -> float:
        return selected_share(t, self.selection)

    def forward(self, y: Tensor, phi: LinearMap, noise_var: Tensor) -> Estimate:
        psi = dictionary_map(self.dictionary, phi)
        a = phi @ psi
        weights = weight_map(self.weights, a)
        step, threshold = (nn.functional.softplus(value) for value in (self.step, self.threshold))
        code = y.new_zeros(y.shape[0], psi.shape[1])
        trajectory = []
        for t, (gamma, theta) in enumerate(layer_scalars(step, threshold, self.noise_scale, noise_var)):
            descent = code + gamma[..., None] * weights.adjoint(y - a.apply(code))
            code = soft_threshold_with_selection(descent, theta[..., None], self._share(t))
            trajectory.append(psi.apply(code))
        return Estimate(trajectory[-1], code, trajectory=tuple(trajectory))

    def _check_fit(self, measured: Measurement) -> None:
        super()._check_fit(measured)
        check_weights(self.weights, self.dictionary, measured.phi)


def dictionary_map(dictionary: Tensor | LearnedMap | None, phi: LinearMap) -> LinearMap:
    """The dictionary [n, b], fixed or learned, as a map; None is the identity on Φ's inputs."""
    if isinstance(dictionary, LearnedMap):
        return dictionary.frozen()
    return IdentityMap(phi.shape[1], phi.dtype, phi.device) if dictionary is None else DenseMap(dictionary)


def weight_map(weights: Tensor | None, a: LinearMap) -> LinearMap:
    """W as a map; None computes the analytic weights of every sample, which needs the matrix A."""
    if weights is not None:
        return DenseMap(weights)
    matrix = analytic_weights(a.materialize())
    return DenseMap(matrix if a.batch is not None else matrix[0])


def check_weights(weights: Tensor | None, dictionary: Tensor | None, phi: LinearMap) -> None:
    """ValueError where W or the dictionary were made for another Φ."""
    m, n = phi.shape
    if weights is not None and weights.shape[0] != m:
        raise ValueError(f"phi must have {weights.shape[0]} rows, for which W was made, got {m}")
    atoms = n if dictionary is None else dictionary.shape[0]
    if dictionary is not None and atoms != n:
        raise ValueError(f"phi must have {atoms} columns, the length of the dictionary's atoms, got {n}")
    if dictionary is None and weights is not None and weights.shape[1] != n:
        raise ValueError(f"phi must have {weights.shape[1]} columns, for which W was made, got {n}")
