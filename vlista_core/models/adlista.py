"""A-DLISTA (the paper's Algorithm 1): DLISTA whose step and threshold come for each sample from an augmentation network.

(θ_t, γ_t) = f(Φ, Ψ_t, …), x_t = η_{θ_t}(x_{t-1} + γ_t(ΦΨ_t)ᴴ(y - ΦΨ_t x_{t-1})), s = Ψ_T x_T. The printed algorithm has y in
place of (ΦΨ_t)ᴴy, which does not fit; this is the update of the text.
"""

import math
from itertools import product

import torch
from torch import Tensor

from vlista_core.dictionaries import LearnedMap
from vlista_core.estimate import Measurement
from vlista_core.linops import LinearMap
from vlista_core.models.augmentation import AdaptiveAugmentation, Augmentation, Kind, PaperAugmentation
from vlista_core.models.base import Loss
from vlista_core.models.dlista import STEP_SCALES, DictionaryNetwork, LikelihoodBlock, suggest_step
from vlista_core.models.layer import Layer
from vlista_core.models.whitening import whiten
from vlista_core.problems import Batch
from vlista_core.prox import soft_threshold

_THRESHOLD_SCALES = (0.05, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.5, 1.9, 2.4)


class ADLISTA(DictionaryNetwork):
    """One dictionary per layer; step and threshold from `augmentation`: "paper" (forms ΦΨ_t) or "adaptive" (does not)."""

    covariance: Tensor | None

    def __init__(
        self,
        dictionary: LearnedMap,
        *,
        layers: int = 3,
        augmentation: Kind = "adaptive",
        step: float | None = None,
        threshold: float | None = None,
        covariance: Tensor | None = None,
        loss: Loss = "mse",
        early_weight: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        """dictionary: where every Ψ_t starts; step, threshold: where the augmentation starts, in its own units.

        covariance: of the signals, [n, n]; the layers then see whitened measurements (see `whitening`).

        For "paper" they are γ and θ themselves (default 0.2 and 0.01; see `suggest_step`); for "adaptive" they multiply the
        natural ones (default 1 and 1). The generator draws the augmentation's weights (None: seed 0).
        """
        super().__init__(dictionary, layers, loss=loss, early_weight=early_weight)
        self.forms_product = augmentation == "paper" or covariance is not None
        self.scale_free = augmentation == "adaptive" and covariance is None
        self.hold("covariance", covariance)
        self.augmentation = build_augmentation(augmentation, layers, dictionary.dtype, step, threshold, generator)

    def unroll(self, y: Tensor, phi: LinearMap, noise_var: Tensor) -> list[Layer]:
        seen = self._seen(Measurement(y, phi, noise_var))
        block = LikelihoodBlock(seen.y, seen.phi, seen.noise_var, self.augmentation)
        return [block.layer(self.dictionary(t)) for t in range(self.layers)]

    @torch.no_grad()
    def start_from(self, batch: Batch) -> None:
        """Start from the best of a grid on training data: the adaptive scales of each layer in turn, or the one step and
        threshold with which the paper's network starts in all layers."""
        network = self.augmentation
        seen = self._seen(Measurement(batch.y, batch.phi, batch.noise_var))
        batch = Batch(batch.signal, seen.y, seen.phi, seen.noise_var)
        if isinstance(network, PaperAugmentation):
            network.start(*self._best_constants(batch))
        elif isinstance(network, AdaptiveAugmentation):
            _, best = min((self._start_scales(batch, network, memory), memory) for memory in (1e-3, 0.5, 1.0))
            self._start_scales(batch, network, best)

    def _seen(self, measured: Measurement) -> Measurement:
        """What the layers see."""
        return measured if self.covariance is None else whiten(measured, self.covariance)

    def _best_constants(self, batch: Batch) -> tuple[float, float]:
        """The step and threshold, the same for all samples and layers, with the least error after the last layer."""
        recursion = self.recursion(batch.y, batch.phi)
        safe = suggest_step(batch.phi, self.dictionary(0))
        size = float(recursion.gradient(0, recursion.start).abs().square().mean().sqrt())
        best = (math.inf, safe, safe * size)
        for scale, level in product(STEP_SCALES, _THRESHOLD_SCALES):
            step, threshold = batch.y.real.new_tensor([scale * safe, level * scale * safe * size])
            code = recursion.codes([(step, threshold)] * self.layers)[-1]
            best = min(best, (recursion.error(code, batch.signal), scale * safe, level * scale * safe * size))
        return best[1:]

    def _start_scales(self, batch: Batch, network: AdaptiveAugmentation, memory: float) -> float:
        """Set `base` layer by layer for the given memory; returns the squared error of the last layer."""
        block, error = LikelihoodBlock(batch.y, batch.phi, batch.noise_var, network), math.inf
        network.base[:, 2] = math.log(memory)
        for t in range(self.layers):
            psi = self.dictionary(t)
            state = block.state(psi)
            natural = network.natural_step(state)[:, None]
            size = state.gradient.abs().square().mean(1, keepdim=True).sqrt()
            best = (math.inf, 1.0, 1.0)
            for step, level in product(STEP_SCALES, _THRESHOLD_SCALES):
                code = soft_threshold(state.code + step * natural * state.gradient, level * step * natural * size)
                best = min(best, (float((psi.apply(code) - batch.signal).abs().square().sum()), step, level))
            error = best[0]
            network.base[t, :2] = network.base.new_tensor(best[1:]).log()
            block.layer(psi)
        return error


def build_augmentation(
    kind: Kind,
    layers: int,
    dtype: torch.dtype,
    step: float | None,
    threshold: float | None,
    generator: torch.Generator | None,
) -> Augmentation:
    """The augmentation network named `kind`, for signals of `dtype`."""
    draws = generator if generator is not None else torch.Generator().manual_seed(0)
    network: Augmentation
    with torch.random.fork_rng(devices=[]):
        if kind == "paper":
            start = 0.2 if step is None else step, 0.01 if threshold is None else threshold
            network = PaperAugmentation(*start, draws, is_complex=dtype.is_complex)
        elif kind == "adaptive":
            network = AdaptiveAugmentation(layers, step or 1.0, threshold or 1.0, draws)
        else:
            raise ValueError(f"augmentation must be 'paper' or 'adaptive', got {kind!r}")
    return network.to(dtype.to_real())
