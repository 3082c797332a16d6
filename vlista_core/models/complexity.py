"""What a model costs: parameters, multiply-accumulates of one estimate, measured latency: the paper's complexity tables."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from vlista_core.linops import DenseMap, LinearMap
from vlista_core.models.base import UnfoldedModel
from vlista_core.models.posterior import Doubling


@dataclass(frozen=True)
class Latency:
    """Milliseconds of a batch: the mean over so many batches and its standard error."""

    mean_ms: float
    error_ms: float
    batches: int


@dataclass(frozen=True)
class Complexity:
    """Parameters, multiply-accumulates of one sample, and the time of a whole batch."""

    parameters: int
    macs: int
    latency: Latency


def complexity(
    model: UnfoldedModel, measurements: int, length: int, *, batch: int = 32, batches: int = 100, seconds: float = 60.0
) -> Complexity:
    """The cost of `model` on a dense Φ [m, n] for each of `batch` samples. batches, seconds: as for `latency`."""

    def prepared(number: int) -> Callable[[], object]:
        return partial(model, *inputs(measurements, length, batch, model.dtype, seed=number))

    with torch.no_grad():
        found = latency(prepared, batches=batches, seconds=seconds)
    return Complexity(parameters(model), macs(model, measurements, length), found)


def parameters(module: nn.Module) -> int:
    """Trainable parameters, real numbers counted."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def macs(model: UnfoldedModel, measurements: int, length: int) -> int:
    """Multiply-accumulates of one estimate with a dense Φ [m, n] of its own."""
    return macs_of(partial(model, *inputs(measurements, length, 1, model.dtype)), model)


def macs_of(run: Callable[[], object], module: nn.Module) -> int:
    """Multiply-accumulates of a call in which `module` takes part, counted by torch while it runs.

    Products with Φ and Ψ, convolutions, linear layers, Cholesky factors and triangular solves with matrices count; elementwise
    work and solves with one vector do not.
    """
    outputs: list[int] = []
    single = [part for part in module.modules() if isinstance(part, Doubling) and part.single]
    hooks = [part.register_forward_hook(lambda _, __, image: outputs.append(image.numel())) for part in single]
    try:
        # torch's counter follows modules through their gradients, and stumbles over parameters as inputs without them.
        with torch.enable_grad(), FlopCounterMode(display=False, custom_mapping=_FACTORISATIONS) as counter:
            run()
    finally:
        for hook in hooks:
            hook.remove()
    return int(counter.get_total_flops()) // 2 + _TAPS * sum(outputs)


def latency(
    prepare: Callable[[int], Callable[[], object]],
    *,
    batches: int = 100,
    seconds: float = 60.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Latency:
    """The mean time of a call over `batches` batches, fewer (at least three) once `seconds` have passed.

    prepare: the number of a batch -> the call that is timed; number 0 warms up. What `prepare` itself takes does not count.
    clock: what times the calls, in seconds; `time.process_time` with one thread leaves out what else the machine does.
    """
    start, times = time.perf_counter(), list[float]()
    for number in range(batches + 1):
        call = prepare(number)
        begin = clock()
        call()
        times.append(1e3 * (clock() - begin))
        if number >= _LEAST_BATCHES and time.perf_counter() - start > seconds:
            break
    warm = times[1:]
    return Latency(statistics.mean(warm), statistics.stdev(warm) / len(warm) ** 0.5, len(warm))


def inputs(
    m: int, n: int, batch: int, dtype: torch.dtype = torch.float32, *, seed: int = 0
) -> tuple[Tensor, LinearMap, Tensor]:
    """y [batch, m], a dense Φ for each and σ² = 0, to measure estimators with."""
    generator = torch.Generator().manual_seed(seed)
    phi = torch.randn(batch, m, n, generator=generator, dtype=dtype) / m**0.5
    y = torch.randn(batch, m, generator=generator, dtype=dtype)
    return y, DenseMap(phi), torch.zeros(batch, dtype=dtype.to_real())


_LEAST_BATCHES = 3
_TAPS = 4
"""Of the sixteen weights of a single-channel doubling, those that a pixel of its output sees."""
_FACTORISATIONS = {
    torch.ops.aten.linalg_cholesky_ex: lambda matrix, *_, **__: 2 * (matrix[-1] ** 3 // 6),
    torch.ops.aten.linalg_solve_triangular: lambda matrix, right, *_, **__: (
        matrix[-1] ** 2 * right[-1] if right[-1] > 1 else 0
    ),
}
"""Floating-point operations from the shapes of the arguments."""
