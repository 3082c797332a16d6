"""What a model costs: parameters, multiply-accumulates of one estimate, measured latency: the paper's complexity tables."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from vlista_core.linops import DenseMap, LinearMap
from vlista_core.models.base import UnfoldedModel
from vlista_core.models.posterior import Doubling


@dataclass(frozen=True)
class Complexity:
    """Parameters, multiply-accumulates of one sample, and milliseconds of a whole batch."""

    parameters: int
    macs: int
    latency_ms: float


def complexity(model: UnfoldedModel, measurements: int, length: int, *, batch: int = 32) -> Complexity:
    """The cost of `model` on a dense Φ [m, n] for each of `batch` samples."""
    y, phi, noise_var = inputs(measurements, length, batch, model.dtype)
    with torch.no_grad():
        latency = best_ms(lambda: model(y, phi, noise_var))
    return Complexity(parameters(model), macs(model, measurements, length), latency)


def parameters(module: nn.Module) -> int:
    """Trainable parameters, real numbers counted."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def macs(model: UnfoldedModel, measurements: int, length: int) -> int:
    """Multiply-accumulates of one estimate with a dense Φ [m, n] of its own, counted by torch while it runs.

    Products with Φ and Ψ, convolutions, linear layers, Cholesky factors and triangular solves with matrices count; elementwise
    work and solves with one vector do not.
    """
    outputs: list[int] = []
    single = [part for part in model.modules() if isinstance(part, Doubling) and part.single]
    hooks = [part.register_forward_hook(lambda _, __, image: outputs.append(image.numel())) for part in single]
    try:
        with FlopCounterMode(display=False, custom_mapping=_FACTORISATIONS) as counter:
            model(*inputs(measurements, length, 1, model.dtype))
    finally:
        for hook in hooks:
            hook.remove()
    return int(counter.get_total_flops()) // 2 + _TAPS * sum(outputs)


def best_ms(run: Callable[[], object], *, repeats: int = 5) -> float:
    """Milliseconds of a call, the best of several after a warm-up."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times[1:])


def inputs(m: int, n: int, batch: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, LinearMap, Tensor]:
    """y [batch, m], a dense Φ for each and σ² = 0, to measure estimators with."""
    generator = torch.Generator().manual_seed(0)
    phi = torch.randn(batch, m, n, generator=generator, dtype=dtype) / m**0.5
    y = torch.randn(batch, m, generator=generator, dtype=dtype)
    return y, DenseMap(phi), torch.zeros(batch, dtype=dtype.to_real())


_TAPS = 4
"""Of the sixteen weights of a single-channel doubling, those that a pixel of its output sees."""
_FACTORISATIONS = {
    torch.ops.aten.linalg_cholesky_ex: lambda matrix, *_, **__: 2 * (matrix[-1] ** 3 // 6),
    torch.ops.aten.linalg_solve_triangular: lambda matrix, right, *_, **__: (
        matrix[-1] ** 2 * right[-1] if right[-1] > 1 else 0
    ),
}
"""Floating-point operations from the shapes of the arguments."""
