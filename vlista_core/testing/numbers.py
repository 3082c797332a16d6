"""What the numbers of every Estimator must stand: Φ that sees little, units, noise levels, NaN, precision, threads."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from vlista_core.estimate import Estimate
from vlista_core.linops import DenseMap
from vlista_core.testing.cases import EstimatorCase
from vlista_core.testing.tools import check_close, check_refused, normal

_NOT_WILD = 2.0
"""How much worse than an estimate of zero is still allowed, in power: a pursuit that sees a few unknowns may be wrong."""
_UNIT = 2.0**20
"""About 1e6. As a power of two it changes no digit, so that what follows the units of y does so exactly."""
_SCALED, _SAME = (1e-9, 1e-4), (1e-5, 1e-5)


def hostile(phi: Tensor) -> dict[str, Tensor]:
    """Φ that see less than they seem to, by what is wrong with them; none is larger than `phi`. phi: [batch, m, n]."""
    m, n = phi.shape[1:]
    rounding = torch.finfo(phi.dtype).eps * phi.abs().amax() * normal((m, n), phi.dtype, 4)
    odd_column, odd_row = torch.arange(n) % 2 == 1, torch.arange(m)[:, None] % 2 == 1
    return {
        "columns that are rounding": torch.where(odd_column, rounding, phi),
        "repeated rows": torch.where(odd_row, phi.roll(1, 1), phi) / math.sqrt(2.0),
        "rows of zeros": torch.where(odd_row, torch.zeros_like(phi), phi),
        "nothing but zeros": torch.zeros_like(phi),
    }


def check_hostile_phi(case: EstimatorCase, dtype: torch.dtype) -> None:
    """Finite where Φ sees little or nothing, and hardly worse than an estimate of zero (or than with an ordinary Φ).

    The error is not looked at where the case says why in `no_bound`.
    """
    batch = case.sample(dtype)
    noise = batch.y - batch.phi.apply(batch.signal)

    def error(out: Estimate) -> float:
        return float((out.signal - batch.signal).abs().double().square().sum())

    zero = float(batch.signal.abs().double().square().sum())
    allowed = _NOT_WILD * max(zero, error(case.run(batch)))
    for what, matrix in hostile(batch.phi.materialize()).items():
        phi = DenseMap(matrix)
        out = case.run(batch, y=phi.apply(batch.signal) + noise, phi=phi)
        _check_finite(f"{case.name}: for a phi with {what}", out)
        assert case.no_bound or error(out) <= allowed, (
            f"{case.name}: {error(out) / zero:.1e} times the error of zero for {what} in phi"
        )


def check_scale(case: EstimatorCase, dtype: torch.dtype) -> None:
    """The same in any unit of y where `scale_free` says so; elsewhere finite, or refused with a word on the units of y.

    A variance that was calibrated for one unit may be refused in another.
    """
    batch = case.sample(dtype)
    plain = case.run(batch)
    scale_free = case.make(dtype, torch.device("cpu")).scale_free
    for unit in (1 / _UNIT, _UNIT):
        what = f"{case.name} says scale_free, but with y in units of {1 / unit:.0e}"
        signal = None
        try:
            out = case.run(batch, y=unit * batch.y, noise_var=unit**2 * batch.noise_var)
            signal = out.signal
            _check_finite(f"{case.name}: for y in units of {1 / unit:.0e}", out)
            if scale_free and out.variance is not None and plain.variance is not None:
                check_close(f"{what} the variance", out.variance / unit**2, plain.variance, _SCALED)
        except ValueError as refusal:
            assert "Divide y by" in str(refusal), f"{case.name}: {refusal}"
        if scale_free:
            assert signal is not None, f"{what} it is refused"
            check_close(f"{what} the signal", signal / unit, plain.signal, _SCALED)


def check_snr(case: EstimatorCase, dtype: torch.dtype) -> None:
    """Finite from -40 to 100 dB of SNR."""
    batch = case.sample(dtype)
    clean = batch.phi.apply(batch.signal)
    noise = normal((*clean.shape,), dtype, 6)
    for snr_db in (-40.0, 100.0):
        level = clean.abs().square().mean(1) * 10 ** (-snr_db / 10)
        out = case.run(batch, y=clean + level.sqrt()[:, None] * noise, noise_var=level)
        _check_finite(f"{case.name}: at {snr_db:g} dB", out)


def check_not_finite(case: EstimatorCase, dtype: torch.dtype) -> None:
    """A NaN or Inf in y, phi or noise_var, wherever it is, is a ValueError that names the argument."""
    batch = case.sample(dtype)
    matrix, noise = batch.phi.materialize(), batch.noise_var
    values = [math.nan, math.inf, -math.inf, *([complex(0.0, math.nan)] if dtype.is_complex else [])]
    for value in values:
        y, phi = (_poisoned(tensor, value) for tensor in (batch.y, matrix))
        calls: dict[str, tuple[str, Callable[[], object]]] = {
            "y": ("y", partial(case.run, batch, y=y)),
            "a tensor phi": ("phi", partial(case.run, batch, phi=phi)),
            "a map phi": ("phi", partial(case.run, batch, phi=DenseMap(phi))),
        }
        if isinstance(value, float):
            calls["noise_var"] = "noise_var", partial(case.run, batch, noise_var=value)
            calls["a noise_var"] = "noise_var", partial(case.run, batch, noise_var=_poisoned(noise, value))
        for where, (argument, call) in calls.items():
            check_refused(f"{case.name}: {value} in {where}", f"{argument} must be", call)


def check_precision(case: EstimatorCase, dtype: torch.dtype) -> None:
    """Everything in the result has the precision of y."""
    batch = case.sample(dtype)
    for name, value in _parts(case.run(batch)):
        expected = batch.y.real.dtype if name == "variance" else batch.y.dtype
        assert value.dtype == expected, f"{case.name}: {name} has dtype {value.dtype} for y of {batch.y.dtype}"


def check_same_numbers(case: EstimatorCase, dtype: torch.dtype) -> None:
    """One torch thread or two, and all samples at once or in parts of one, two and the rest: the same to 1e-5.

    Two threads are tried in single precision alone, where the order of a sum shows most: they are slow on small products.
    """
    batch = case.sample(dtype)
    with _threads(1):
        whole = case.run(batch).signal
        parts = torch.arange(len(batch)).tensor_split((1, 3))
        split = torch.cat([case.run(batch.select(part)).signal for part in parts])
        check_close(f"{case.name}: in parts", split, whole, _SAME)
    if dtype.to_real() == torch.float32:
        with _threads(2):
            check_close(f"{case.name}: with two threads", case.run(batch).signal, whole, _SAME)


def _parts(out: Estimate) -> Iterator[tuple[str, Tensor]]:
    """The numbers of a result by name."""
    for name in ("signal", "code", "variance", "samples"):
        if (value := getattr(out, name)) is not None:
            yield name, value
    yield from (("trajectory", signal) for signal in out.trajectory or ())


def _check_finite(what: str, out: Estimate) -> None:
    for name, value in _parts(out):
        assert bool(torch.isfinite(value).all()), f"{what} {name} is not finite"
    assert out.variance is None or bool((out.variance >= 0).all()), f"{what} a variance is negative"


def _poisoned(values: Tensor, value: complex) -> Tensor:
    """A copy whose last entry is `value`."""
    copy = values.clone(memory_format=torch.contiguous_format)
    copy.view(-1)[-1:].fill_(value)
    return copy


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
