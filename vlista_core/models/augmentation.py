"""Augmentation networks: the step γ and threshold θ of a layer for each sample.

`PaperAugmentation` is the paper's CNN on the matrix ΦΨ_t, which it forms. `AdaptiveAugmentation` is ours: it sees what a layer
computes anyway (residual, gradient, code, noise level), costs no product with Φ or Ψ_t and never forms the matrix. It also says
how much of this layer's residual the next one remembers: the Onsager term of AMP, without which the errors of successive
layers add up.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn

from vlista_core.linops import LinearMap
from vlista_core.models.base import inverse_softplus
from vlista_core.prox import squared_modulus

Kind = Literal["paper", "adaptive"]

_LARGEST_LOG = 30.0
_FEATURES, _HIDDEN, _MEMORY = 7, 32, 0.1
"""Of the adaptive network: its inputs, its hidden units and what the natural memory is multiplied with at the start."""


@dataclass(frozen=True)
class LayerState:
    """Where layer t stands: y and residual [batch, m], code and gradient [batch, b], noise_var [batch], Φ and Ψ_t."""

    t: int
    y: Tensor
    residual: Tensor
    code: Tensor
    gradient: Tensor
    noise_var: Tensor
    phi: LinearMap
    psi: LinearMap


@dataclass(frozen=True)
class Adaptation:
    """What an augmentation network says of a layer, each [batch, 1] (or [1], the same for all) and positive."""

    step: Tensor
    threshold: Tensor
    memory: Tensor | None = None
    """Share of the layer's residual that the next layer adds to its own, in units of ‖x_t‖₀/m; None is nothing."""


class Augmentation(nn.Module):
    """(γ, θ) of a layer for each sample; one network serves all layers."""

    @abstractmethod
    def forward(self, state: LayerState) -> Adaptation: ...


class PaperAugmentation(Augmentation):
    """Four bias-free 3×3 convolutions of stride 2 on ΦΨ_t, pooled to 10×12, a layer of 25, two softplus heads: 3,113 weights.

    A complex matrix enters as two channels. The first convolution is linear in both factors, so that only what it keeps of
    ΦΨ_t is computed (see `convolved_product`), unless Φ and Ψ_t have a structure by which their product costs next to nothing.
    """

    def __init__(self, step: float, threshold: float, generator: torch.Generator, *, is_complex: bool = False) -> None:
        super().__init__()
        channels = [2 if is_complex else 1, 1, 1, 1]
        self.convolutions = nn.ModuleList(nn.Conv2d(c, 1, 3, stride=2, padding=1, bias=False) for c in channels)
        self.pool = nn.AdaptiveAvgPool2d((10, 12))
        self.mix = nn.Linear(120, 25)
        self.step_head, self.threshold_head = nn.Linear(25, 1), nn.Linear(25, 1)
        initialise(self, generator)
        self.start(step, threshold)

    def start(self, step: float, threshold: float) -> None:
        """Let every sample and layer start at these."""
        with torch.no_grad():
            for head, value in ((self.step_head, step), (self.threshold_head, threshold)):
                head.weight.zero_()
                head.bias.fill_(inverse_softplus(value))

    def forward(self, state: LayerState) -> Adaptation:
        phi, members = (state.phi, 1) if state.psi.batch is not None else state.phi.distinct()
        _, *later = self.convolutions
        image = torch.relu(self._first_convolution(phi, state.psi))
        for convolution in later:
            image = torch.relu(convolution(image))
        features = torch.relu(self.mix(self.pool(image).flatten(1)))
        found = (nn.functional.softplus(head(features)) for head in (self.step_head, self.threshold_head))
        size = state.y.shape[0]
        return Adaptation(*(value.repeat_interleave(members, dim=0).expand(size, 1) for value in found))

    def _first_convolution(self, phi: LinearMap, psi: LinearMap) -> Tensor:
        """Of ΦΨ, formed where the structure of both makes that cheap: [batch or 1, 1, ⌈m/2⌉, ⌈b/2⌉]."""
        first = self.convolutions[0]
        product = phi.materialize_after(psi)
        if product is not None:
            parts = [product.real, product.imag] if product.is_complex() else [product]
            convolved: Tensor = first(torch.stack(parts, 1))
            return convolved
        kernel = cast(Tensor, first.weight)[0]
        kernel = torch.complex(kernel[0], -kernel[1]) if psi.dtype.is_complex else kernel[0]
        return convolved_product(phi.materialize(), psi.materialize(), kernel)[:, None]


class AdaptiveAugmentation(Augmentation):
    """A small network on ratios of norms; its outputs scale the natural step, threshold and memory of the sample.

    The natural step is ‖v‖²/‖g‖² with the residual v and the gradient g = (ΦΨ)ᴴv; the natural threshold is the root mean square
    of that step; the natural memory is that of AMP. All features are logarithms of ratios, so the network is blind to the
    units of y, Φ and Ψ. It starts as a constant: `base` holds the logarithms of the three scales for each layer.
    """

    def __init__(self, layers: int, step: float, threshold: float, generator: torch.Generator) -> None:
        """step, threshold: what the natural ones are multiplied with at the start."""
        super().__init__()
        self.body = nn.Linear(_FEATURES, _HIDDEN)
        self.place = nn.Parameter(torch.zeros(layers, _HIDDEN))
        self.head = nn.Linear(_HIDDEN, 3)
        self.base = nn.Parameter(torch.zeros(layers, 3))
        initialise(self, generator)
        with torch.no_grad():
            self.place.normal_(std=0.3, generator=generator)
            self.head.weight.zero_()
            self.base.copy_(torch.tensor([step, threshold, _MEMORY]).log())

    def forward(self, state: LayerState) -> Adaptation:
        gradient_powers = squared_modulus(state.gradient)
        gradient_power = gradient_powers.mean(1)
        natural_step = self.natural_step(state)
        features = self._features(state, gradient_powers, natural_step)
        logarithms = self.head(torch.relu(self.body(features) + self.place[state.t])) + self.base[state.t]
        scales = torch.exp(logarithms.clamp(-_LARGEST_LOG, _LARGEST_LOG))
        step = natural_step[:, None] * scales[:, :1]
        size = torch.sqrt(gradient_power + torch.finfo(gradient_power.dtype).tiny)
        threshold = step * size[:, None] * scales[:, 1:2]
        return Adaptation(step, threshold, scales[:, 2:])

    @staticmethod
    @torch.no_grad()
    def natural_step(state: LayerState) -> Tensor:
        """‖v‖²/‖g‖²: [batch], 0 where Φ sees nothing and there is nowhere to go.

        It bounds the line-search step ‖g‖²/‖ΦΨg‖² from above; a unit, not a thing to learn through.
        """
        gradient = squared_modulus(state.gradient).sum(1)
        step = squared_modulus(state.residual).sum(1) / (gradient + math.sqrt(torch.finfo(gradient.dtype).tiny))
        return torch.where(gradient > 0, step, 0.0)

    def _features(self, state: LayerState, gradient_powers: Tensor, natural_step: Tensor) -> Tensor:
        """Logarithms of ratios of powers: [batch, 7]. gradient_powers: |g|², [batch, b]."""
        y, residual, code = (squared_modulus(value).mean(1) for value in (state.y, state.residual, state.code))
        gradient_power, peak = gradient_powers.mean(1), gradient_powers.amax(1)
        modulus = torch.sqrt(gradient_powers + torch.finfo(y.dtype).tiny)
        columns = [
            _log_ratio(residual, y),
            _log_ratio(state.noise_var, residual),
            _log_ratio(code, y * natural_step),
            _log_ratio(natural_step.square() * gradient_power, code),
            _log_ratio(peak, gradient_power),
            _log_ratio(modulus.mean(1).square(), gradient_power),
            (state.code != 0).to(y.dtype).mean(1),
        ]
        return torch.stack(columns, dim=1)


def convolved_product(phi: Tensor, psi: Tensor, kernel: Tensor) -> Tensor:
    """Re of the 3×3 convolution of ΦΨ with stride 2 and zeros around: [batch, ⌈m/2⌉, ⌈b/2⌉], from a product of ¾ of the size.

    phi: [batch or 1, m, n], psi: [batch or 1, n, b], kernel: [3, 3]. With R_i the rows of Φ that tap i of the kernel meets, and
    C_j the columns of Ψ, it is Σ_i R_i (Σ_j k_ij C_j): the convolution along the columns is done on Ψ. On a CPU a training
    step of A-DLISTA (MNIST, m = 100) takes 1.3 s this way, and 2.4 s with a convolution of the formed ΦΨ.
    """
    m, n, b = *phi.shape[-2:], psi.shape[-1]
    rows = nn.functional.pad(phi, (0, 0, 1, m % 2)).flatten(-2).unfold(-1, 3 * n, 2 * n)  # [batch, ⌈m/2⌉, 3n]
    columns = torch.stack(_taps(psi, (b + 1) // 2), dim=-3)  # [batch, 3, n, ⌈b/2⌉]
    mixed = (kernel @ columns.flatten(-2)).unflatten(-1, columns.shape[-2:]).flatten(-3, -2)
    if mixed.is_complex():
        rows = torch.cat([rows.real, -rows.imag], dim=-1)
        mixed = torch.cat([mixed.real, mixed.imag], dim=-2)
    return torch.matmul(rows, mixed)


def _taps(values: Tensor, count: int) -> list[Tensor]:
    """The entries along the last axis, zeros around, that each tap of a kernel of three with stride 2 meets: [..., count]."""
    pairs = nn.functional.pad(values, (1, 2 * count + 1 - values.shape[-1])).unflatten(-1, (count + 1, 2))
    odd, even = pairs.unbind(-1)
    return [odd[..., :count], even[..., :count], odd[..., 1:]]


def initialise(module: nn.Module, generator: torch.Generator) -> None:
    """Draw every weight matrix with variance 2/fan-in and set every bias to zero, from the generator alone."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim > 1:
                fan_in = parameter[0].numel()
                parameter.normal_(std=(2.0 / fan_in) ** 0.5, generator=generator)
            else:
                parameter.zero_()


def _log_ratio(top: Tensor, bottom: Tensor) -> Tensor:
    """ln(top/bottom)/5, kept within ±4, so that zeros on either side are features as good as any."""
    tiny = torch.finfo(top.dtype).tiny
    return (torch.log(top.clamp_min(tiny)) - torch.log(bottom.clamp_min(tiny))).clamp(-20.0, 20.0) / 5.0
