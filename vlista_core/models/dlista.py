"""DLISTA: x_t = η_{θ_t}(x_{t-1} + γ_t(ΦΨ_t)ᴴ(y - ΦΨ_t x_{t-1})) with Ψ_t, θ_t and γ_t learned (the paper's Eq. 4).

Φ differs for every sample; the output is s = Ψ_T x_T, tied to the last dictionary, which gives the paper's parameter count.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from vlista_core.dictionaries import LearnedMap
from vlista_core.estimate import Estimate, Measurement
from vlista_core.linops import LinearMap
from vlista_core.models.base import Layer, Loss, UnfoldedModel, inverse_softplus, positive_parameter
from vlista_core.problems import Batch, check_count
from vlista_core.prox import soft_threshold

SCALAR_RATE = 2e-3

_STEP_SCALES = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)
_THRESHOLD_SCALES = (0.05, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.5, 1.9, 2.4)


class DLISTA(UnfoldedModel):
    """A dictionary, a step and a threshold for each layer, the same for every sample."""

    def __init__(
        self,
        dictionary: LearnedMap,
        *,
        layers: int = 3,
        step: float = 0.2,
        threshold: float = 0.01,
        loss: Loss = "mse",
        early_weight: float = 0.0,
    ) -> None:
        """dictionary: where every Ψ_t starts; step and threshold: where γ_t and θ_t start (see `suggest_step`)."""
        super().__init__()
        check_count("layers", layers)
        self.loss, self.early_weight = loss, early_weight
        self.remember(dictionary=dictionary, layers=layers, loss=loss, early_weight=early_weight)
        self.dictionaries = nn.ModuleList(copy.deepcopy(dictionary) for _ in range(layers))
        self.step = positive_parameter([step] * layers)
        self.threshold = positive_parameter([threshold] * layers)

    @property
    def dtype(self) -> torch.dtype:
        return self.dictionary(0).dtype

    def dictionary(self, t: int) -> LinearMap:
        """Ψ_{t+1} as a plain map."""
        module = self.dictionaries[t]
        if not isinstance(module, LearnedMap):
            raise TypeError(f"dictionaries must hold LearnedMaps, got {type(module).__name__}")
        return module.frozen()

    def parameter_groups(self) -> list[dict[str, object]]:
        """The dictionaries at the trainer's rate, steps and thresholds faster: they are few and start far off."""
        return [
            {"name": "dictionaries", "params": list(self.dictionaries.parameters())},
            {"name": "scalars", "params": [self.step, self.threshold], "lr": SCALAR_RATE},
        ]

    @torch.no_grad()
    def calibrate(self, batch: Batch) -> None:
        """Start the step and threshold of each layer, in turn, from the best of a grid on training data."""
        code = batch.y.new_zeros(len(batch), self.dictionary(0).shape[1])
        for t in range(len(self.dictionaries)):
            psi = self.dictionary(t)
            residual = batch.y - batch.phi.apply(psi.apply(code))
            gradient = psi.adjoint(batch.phi.adjoint(residual))
            natural = suggest_step(batch.phi, psi)
            size = float(gradient.abs().square().mean().sqrt())
            best, start = math.inf, code
            for step in (natural * scale for scale in _STEP_SCALES):
                for threshold in (step * size * level for level in _THRESHOLD_SCALES):
                    attempt = soft_threshold(start + step * gradient, gradient.real.new_tensor(threshold))
                    error = float((psi.apply(attempt) - batch.signal).abs().square().sum())
                    if error < best:
                        best, code = error, attempt
                        self.step[t], self.threshold[t] = inverse_softplus(step), inverse_softplus(threshold)

    def unroll(self, y: Tensor, phi: LinearMap, noise_var: Tensor) -> list[Layer]:
        """What each layer did: code [batch, b], step and threshold [batch, 1], dictionary."""
        step, threshold = (nn.functional.softplus(value) for value in (self.step, self.threshold))
        code = y.new_zeros(y.shape[0], self.dictionary(0).shape[1])
        layers = []
        for t in range(len(self.dictionaries)):
            psi = self.dictionary(t)
            residual = y - phi.apply(psi.apply(code)) if t else y
            gradient = psi.adjoint(phi.adjoint(residual))
            code = soft_threshold(code + step[t] * gradient, threshold[t])
            layers.append(Layer(code, step[t].expand(len(y), 1), threshold[t].expand(len(y), 1), psi))
        return layers

    def forward(self, y: Tensor, phi: LinearMap, noise_var: Tensor) -> Estimate:
        layers = self.unroll(y, phi, noise_var)
        trajectory = tuple(layer.dictionary.apply(layer.code) for layer in layers)
        return Estimate(trajectory[-1], layers[-1].code, trajectory=trajectory)

    def _check_fit(self, measured: Measurement) -> None:
        super()._check_fit(measured)
        check_length(self.dictionary(0), measured.phi)


def check_length(dictionary: LinearMap, phi: LinearMap) -> None:
    """ValueError where Φ acts on signals of another length than the atoms have."""
    if phi.shape[1] != dictionary.shape[0]:
        raise ValueError(
            f"phi must have {dictionary.shape[0]} columns, the length of the model's atoms, got {phi.shape[1]}"
        )


def suggest_step(phi: LinearMap, dictionary: LinearMap) -> float:
    """1/‖ΦΨ‖², averaged over the samples of Φ: a step at which the first layers of an untrained network do not diverge."""
    return float(1.0 / (phi @ dictionary).spectral_norm().square().mean())
