"""What a model costs: parameters, multiply-accumulates of one estimate from the model's own shapes, measured latency.

The paper's complexity tables. Multiplications with Φ and Ψ, convolutions and linear layers count; elementwise work does not.
`counted_macs` is torch's own count of the same run, to check the formulas by.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import singledispatch

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from vlista_core.dictionaries import LearnedMap
from vlista_core.linops import DenseMap
from vlista_core.models.adalista import AdaLISTA
from vlista_core.models.adlista import ADLISTA
from vlista_core.models.alista import ALISTA
from vlista_core.models.augmentation import AdaptiveAugmentation, PaperAugmentation
from vlista_core.models.base import UnfoldedModel
from vlista_core.models.dlista import DLISTA
from vlista_core.models.doubling import Doubling
from vlista_core.models.fixed_dictionary import FixedDictionaryNetwork
from vlista_core.models.lista import LISTA
from vlista_core.models.lista_cp import LISTACP
from vlista_core.models.nalista import NALISTA
from vlista_core.models.posterior import Posterior
from vlista_core.models.vlista import VLISTA


@dataclass(frozen=True)
class Complexity:
    """Parameters, multiply-accumulates of one sample, and milliseconds of a whole batch."""

    parameters: int
    macs: int
    latency_ms: float


def complexity(model: UnfoldedModel, measurements: int, length: int, *, batch: int = 32) -> Complexity:
    """The cost of `model` on a dense Φ [m, n] for each of `batch` samples."""
    return Complexity(parameters(model), macs(model, measurements, length), latency(model, measurements, length, batch))


def parameters(module: nn.Module) -> int:
    """Trainable parameters, real numbers counted."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


@singledispatch
def macs(model: nn.Module, measurements: int, length: int) -> int:
    """Multiply-accumulates of one estimate with a dense Φ [m, n] of its own."""
    known = ", ".join(sorted(kind.__name__ for kind in macs.registry if kind is not object and kind is not nn.Module))
    raise ValueError(f"no count is known for {type(model).__name__}; known are {known}")


@macs.register
def _(model: LISTA, measurements: int, length: int) -> int:
    b = model.atoms
    into_code = b * measurements if model.measurements is not None else measurements * length + b * length
    return into_code + (model.layers - 1) * b * b + model.layers * b * length


@macs.register
def _(model: NALISTA, measurements: int, length: int) -> int:
    h = model.hidden
    network = 4 * h * (2 + h) + h * h + 2 * h
    return model.layers * (_analytic_layer(model.dictionary, measurements, length) + network)


@macs.register(ALISTA)
@macs.register(LISTACP)
def _(model: FixedDictionaryNetwork, measurements: int, length: int) -> int:
    return model.layers * _analytic_layer(model.dictionary, measurements, length)


@macs.register
def _(model: AdaLISTA, measurements: int, length: int) -> int:
    synthesis = 0 if model.dictionary is None else length * model.dictionary.shape[1]
    products = 2 * (measurements * length + synthesis)
    return model.layers * (products + 3 * measurements * measurements + synthesis)


@macs.register
def _(model: DLISTA, measurements: int, length: int) -> int:
    return _dictionary_layers(model.layers, measurements, length, model.dictionary(0).shape[1])


@macs.register
def _(model: ADLISTA, measurements: int, length: int) -> int:
    b = model.dictionary(0).shape[1]
    augmentation = model.layers * _augmentation(model.augmentation, measurements, length, b)
    whitening = 0 if model.covariance is None else _whitening(measurements, length)
    return _dictionary_layers(model.layers, measurements, length, b) + augmentation + whitening


@macs.register
def _(model: VLISTA, measurements: int, length: int) -> int:
    b = model.decoder.shape[1]
    layer = _augmentation(model.augmentation, measurements, length, b) + _posterior(model.posterior, measurements)
    signals = (model.layers - 1) * length * b
    return _dictionary_layers(model.layers, measurements, length, b) + signals + model.layers * layer


def _whitening(m: int, n: int) -> int:
    """ΦRΦᴴ, its Cholesky factor L and L⁻¹Φ."""
    return m * n * n + m * m * n + m**3 // 6 + m * m * n // 2


def counted_macs(model: UnfoldedModel, measurements: int, length: int) -> int:
    """Multiply-accumulates of one estimate as torch counts them while it runs."""
    y, phi, noise_var = _inputs(model, measurements, length, 1)
    with FlopCounterMode(display=False) as counter:
        model(y, phi, noise_var)
    return int(counter.get_total_flops()) // 2


def latency(model: UnfoldedModel, measurements: int, length: int, batch: int, *, repeats: int = 5) -> float:
    """Milliseconds of one batch, the best of several after a warm-up."""
    y, phi, noise_var = _inputs(model, measurements, length, batch)
    times = []
    with torch.no_grad():
        for _ in range(repeats + 1):
            start = time.perf_counter()
            model(y, phi, noise_var)
            times.append(time.perf_counter() - start)
    return 1e3 * min(times[1:])


def _inputs(model: UnfoldedModel, measurements: int, length: int, batch: int) -> tuple[Tensor, DenseMap, Tensor]:
    generator = torch.Generator().manual_seed(0)
    phi = torch.randn(batch, measurements, length, generator=generator, dtype=model.dtype) / measurements**0.5
    y = torch.randn(batch, measurements, generator=generator, dtype=model.dtype)
    return y, DenseMap(phi), torch.zeros(batch, dtype=model.dtype.to_real())


def _analytic_layer(dictionary: Tensor | LearnedMap | None, measurements: int, length: int) -> int:
    """Ax, Wᴴr and the signal: the weights are shared, A is Φ or ΦΨ."""
    if dictionary is None:
        return 2 * measurements * length
    b = dictionary.shape[1]
    return measurements * length + measurements * b + 2 * length * b


def _dictionary_layers(layers: int, measurements: int, length: int, b: int) -> int:
    """ΦΨx (not in the first layer, where x = 0), its adjoint, and the signal after the last layer."""
    product = measurements * length + length * b
    return (2 * layers - 1) * product + length * b


def _augmentation(network: nn.Module, measurements: int, length: int, b: int) -> int:
    if isinstance(network, AdaptiveAugmentation):
        return network.body.out_features * (network.FEATURES + 3)
    if not isinstance(network, PaperAugmentation):
        raise ValueError(f"no count is known for the augmentation {type(network).__name__}")
    total, height, width = measurements * length * b, measurements, b
    for convolution in network.convolutions:
        height, width = (height + 1) // 2, (width + 1) // 2
        total += height * width * sum(weight.numel() for weight in convolution.parameters())
    return total + 120 * 25 + 2 * 25


def _posterior(network: Posterior, measurements: int) -> int:
    total = network.code_layer.weight.numel() * network.atoms + network.measurement_layer.weight.numel() * measurements
    total += 3 * measurements * network.length + network.bottleneck.weight.numel()
    for decoder in (network.centre_decoder, network.raw_decoder):
        height, width = network.coarse
        for layer in decoder:
            if isinstance(layer, Doubling):
                total += height * width * layer.macs_per_pixel
                height, width = 2 * height, 2 * width
    return total
