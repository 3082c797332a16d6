"""DLISTA: x_t = η_{θ_t}(x_{t-1} + γ_t(ΦΨ_t)ᴴ(y - ΦΨ_t x_{t-1})) with Ψ_t, θ_t and γ_t learned (the paper's Eq. 4).

Φ differs for every sample; the output is s = Ψ_T x_T, tied to the last dictionary, which gives the paper's parameter count.
"""

import copy
from abc import abstractmethod
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from vlista_core.dictionaries import LearnedMap
from vlista_core.estimate import Estimate, Measurement
from vlista_core.linops import LinearMap
from vlista_core.models.augmentation import Adaptation, LayerState
from vlista_core.models.base import Loss, UnfoldedModel
from vlista_core.models.layer import Layer, Recursion, ScalarNetwork, greedy_layers
from vlista_core.prox import soft_threshold, squared_modulus

STEP_SCALES = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)
"""Steps that `start_from` tries, in units of `suggest_step` or of the natural step of a sample."""
_RATE = 2e-3
"""Learning rate of everything but the dictionaries."""


class DictionaryNetwork(UnfoldedModel):
    """Layers with learned dictionaries Ψ_1 … Ψ_T; the signal after layer t is Ψ_t x_t. A subclass says what a layer does."""

    def __init__(self, dictionary: LearnedMap, layers: int, *, loss: Loss, early_weight: float) -> None:
        """dictionary: where every Ψ_t starts."""
        if not isinstance(dictionary, LearnedMap):
            raise ValueError(f"dictionary must be a LearnedMap such as LearnedDictionary, got {type(dictionary)}")
        length, dtype = dictionary.shape[0], dictionary.dtype
        super().__init__(layers, dtype, length=length, loss=loss, early_weight=early_weight)
        self.dictionaries = nn.ModuleList(copy.deepcopy(dictionary) for _ in range(layers))

    def dictionary(self, t: int) -> LinearMap:
        """Ψ_{t+1} as a plain map."""
        return cast(LearnedMap, self.dictionaries[t]).frozen()

    @abstractmethod
    def unroll(self, y: Tensor, phi: LinearMap, noise_var: Tensor) -> list[Layer]:
        """What each layer did."""

    def recursion(self, y: Tensor, phi: LinearMap) -> Recursion:
        """ISTA with the dictionaries of the layers, before they are trained: all still equal the first one."""

        def gradient(t: int, code: Tensor) -> Tensor:
            psi = self.dictionary(t)
            return psi.adjoint(phi.adjoint(y - phi.apply(psi.apply(code))))

        first = self.dictionary(0)
        zero = y.new_zeros(len(y), first.shape[1])
        return Recursion(zero, gradient, lambda t, code, threshold: soft_threshold(code, threshold), first.apply)

    def forward(self, y: Tensor, phi: LinearMap, noise_var: Tensor, *, every_layer: bool = False) -> Estimate:
        """Signals of the layers before the last cost a product each: they are given where asked for, here or by the loss."""
        layers = self.unroll(y, phi, noise_var)
        wanted = layers if every_layer or self.early_weight > 0 else layers[-1:]
        trajectory = tuple(layer.dictionary.apply(layer.code) for layer in wanted)
        return Estimate(trajectory[-1], layers[-1].code, trajectory=trajectory if len(wanted) == len(layers) else None)

    def parameter_groups(self) -> list[dict[str, object]]:
        """The dictionaries at the trainer's rate, all else at a faster one: Adam moves every entry of Ψ at once."""
        others = [value for name, value in self.named_parameters() if not name.startswith("dictionaries.")]
        return [
            {"name": "dictionaries", "params": list(self.dictionaries.parameters())},
            {"name": "others", "params": others, "lr": _RATE},
        ]

    def infer(self, measured: Measurement) -> Estimate:
        out: Estimate = self(measured.y, measured.phi, measured.noise_var, every_layer=True)
        return out


class LikelihoodBlock:
    """The layers of DLISTA and A-DLISTA one after another, with dictionaries that the caller gives: VLISTA's likelihood too."""

    def __init__(
        self, y: Tensor, phi: LinearMap, noise_var: Tensor, augmentation: Callable[[LayerState], Adaptation]
    ) -> None:
        """augmentation: says the step and threshold of a layer, such as an Augmentation."""
        self.y, self.phi, self.noise_var, self.augmentation = y, phi, noise_var, augmentation
        self.t = 0
        self.code: Tensor | None = None
        self.remembered: Tensor | None = None

    def state(self, psi: LinearMap) -> LayerState:
        """Residual, with what is remembered of the last one, and gradient at the current code."""
        code = self.y.new_zeros(self.y.shape[0], psi.shape[1]) if self.code is None else self.code
        residual = self.y if self.t == 0 else self.y - self.phi.apply(psi.apply(code))
        if self.remembered is not None:
            residual = residual + self.remembered
        gradient = psi.adjoint(self.phi.adjoint(residual))
        return LayerState(self.t, self.y, residual, code, gradient, self.noise_var, self.phi, psi)

    def layer(self, psi: LinearMap) -> Layer:
        """x_t = η_θ(x_{t-1} + γ(ΦΨ)ᴴv), v = y - ΦΨx_{t-1} + memory·v_{t-1}; x_{t-1} where the power of x_t is not finite."""
        state = self.state(psi)
        adapted = self.augmentation(state)
        code = soft_threshold(state.code + adapted.step * state.gradient, adapted.threshold)
        good = torch.isfinite(squared_modulus(code).sum(1, keepdim=True))
        self.code = torch.where(good, code, state.code)
        self.t += 1
        if adapted.memory is not None:
            active = (self.code != 0).to(adapted.memory.dtype).sum(1, keepdim=True) / self.y.shape[1]
            self.remembered = adapted.memory * active * state.residual
        return Layer(self.code, adapted.step[..., 0], adapted.threshold[..., 0], psi)


class DLISTA(DictionaryNetwork, ScalarNetwork):
    """One dictionary, one step and one threshold per layer, the same for every sample."""

    search = staticmethod(greedy_layers)

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
        self.add_scalars(step, [threshold] * layers, noise_aware=noise_aware)

    def unroll(self, y: Tensor, phi: LinearMap, noise_var: Tensor) -> list[Layer]:
        scalars = [Adaptation(step[..., None], threshold[..., None]) for step, threshold in self.scalars(noise_var)]
        block = LikelihoodBlock(y, phi, noise_var, lambda state: scalars[state.t])
        return [block.layer(self.dictionary(t)) for t in range(self.layers)]

    def steps_to_try(self, phi: LinearMap) -> list[float]:
        safe = suggest_step(phi, self.dictionary(0))
        return [scale * safe for scale in STEP_SCALES]


@torch.no_grad()
def suggest_step(phi: LinearMap, dictionary: LinearMap) -> float:
    """1/‖ΦΨ‖², averaged over the samples of Φ: a step at which the first layers of an untrained network do not diverge."""
    return float(1.0 / (phi @ dictionary).spectral_norm().square().mean())
