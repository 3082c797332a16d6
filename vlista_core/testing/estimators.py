"""What every Estimator must satisfy; what its numbers must stand is in `numbers`."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from vlista_core.linops import LinearMap
from vlista_core.testing.cases import EstimatorCase
from vlista_core.testing.numbers import (
    check_hostile_phi,
    check_not_finite,
    check_precision,
    check_same_numbers,
    check_scale,
    check_snr,
)
from vlista_core.testing.tools import SpyMap, check_close, check_refused

_TOLERANCE = (1e-8, 1e-3)


def check_shapes(case: EstimatorCase, dtype: torch.dtype) -> None:
    """signal is [batch, n] in the dtype of y; variance is real, of the same shape and non-negative; all is finite."""
    batch = case.sample(dtype)
    out = case.run(batch)
    assert out.signal.shape == batch.signal.shape, f"{case.name}: signal has shape {[*out.signal.shape]}"
    assert out.signal.dtype == dtype, f"{case.name}: signal has dtype {out.signal.dtype}"
    assert bool(torch.isfinite(out.signal).all()), f"{case.name}: signal is not finite"
    assert out.code is None or out.code.shape[0] == len(batch), f"{case.name}: code has shape {out.code}"
    if out.variance is not None:
        assert out.variance.shape == batch.signal.shape, f"{case.name}: variance has shape {[*out.variance.shape]}"
        assert out.variance.dtype == batch.signal.real.dtype, f"{case.name}: variance has dtype {out.variance.dtype}"
        assert bool((out.variance >= 0).all()), f"{case.name}: negative variance"


def check_independent_samples(case: EstimatorCase, dtype: torch.dtype) -> None:
    """A sample's estimate does not depend on its place in the batch nor on the other samples."""
    batch = case.sample(dtype)
    whole = case.run(batch).signal
    order = torch.arange(len(batch)).flip(0)
    check_close(f"{case.name}: permuted batch", case.run(batch.select(order)).signal, whole[order], _TOLERANCE)
    for part in (torch.tensor([0]), torch.arange(1, len(batch))):
        check_close(f"{case.name}: split batch", case.run(batch.select(part)).signal, whole[part], _TOLERANCE)


def check_inputs_unchanged(case: EstimatorCase, dtype: torch.dtype) -> None:
    """y, Φ and noise_var stay as they were, and so does torch's global generator; the result is the same again."""
    batch = case.sample(dtype)
    before = (batch.y.clone(), batch.phi.materialize().clone(), batch.noise_var.clone())
    state = torch.get_rng_state()
    first = case.run(batch).signal
    assert torch.equal(state, torch.get_rng_state()), f"{case.name}: the global generator was used"
    after = (batch.y, batch.phi.materialize(), batch.noise_var)
    for name, old, new in zip(("y", "phi", "noise_var"), before, after, strict=True):
        assert torch.equal(old, new), f"{case.name}: {name} was changed"
    assert torch.equal(first, case.run(batch).signal), f"{case.name}: a second call gave another result"


def check_device(case: EstimatorCase, dtype: torch.dtype) -> None:
    """Runs on the meta device: a tensor created on another device than the inputs' would fail or show."""
    batch = case.sample(dtype).to("meta")
    out = case.run(batch)
    for name in ("signal", "code", "variance"):
        value = getattr(out, name)
        assert value is None or value.is_meta, f"{case.name}: {name} is on {value.device}, the inputs on meta"
    assert out.signal.shape == batch.signal.shape, f"{case.name}: signal has shape {[*out.signal.shape]} on meta"


def check_extremes(case: EstimatorCase, dtype: torch.dtype) -> None:
    """Finite for y = 0, for no noise, for tiny and for huge noise; y = 0 gives a small estimate."""
    batch = case.sample(dtype)
    for noise_var in (0.0, 1e-30, 1e10):
        out = case.run(batch, noise_var=noise_var)
        assert bool(torch.isfinite(out.signal).all()), f"{case.name}: not finite for noise_var {noise_var:g}"
        assert out.variance is None or bool((torch.isfinite(out.variance) & (out.variance >= 0)).all()), (
            f"{case.name}: bad variance for noise_var {noise_var:g}"
        )
    for noise in (batch.noise_var, torch.zeros_like(batch.noise_var)):
        out = case.run(batch, y=torch.zeros_like(batch.y), noise_var=noise)
        assert bool(torch.isfinite(out.signal).all()), f"{case.name}: not finite for y = 0"


def check_forms_of_phi(case: EstimatorCase, dtype: torch.dtype) -> None:
    """A tensor [batch, m, n] and its map give the same; so do a shared [m, n] and its copies; noise a float, [] and [batch]."""
    batch = case.sample(dtype)
    estimator = case.make(dtype, torch.device("cpu"))
    whole = case.run(batch).signal
    tensor = batch.phi.materialize()
    noise = float(batch.noise_var[0])
    check_close(f"{case.name}: phi as a tensor", estimator.estimate(batch.y, tensor, noise).signal, whole, _TOLERANCE)
    single = estimator.estimate(batch.y, batch.phi, torch.tensor(noise, dtype=torch.float64)).signal
    check_close(f"{case.name}: noise_var without dimensions", single, whole, _TOLERANCE)
    shared = estimator.estimate(batch.y, tensor[0], noise).signal
    copies = estimator.estimate(batch.y, tensor[:1].expand_as(tensor).contiguous(), noise).signal
    check_close(f"{case.name}: shared phi", shared, copies, _TOLERANCE)


def check_product_not_formed(case: EstimatorCase, dtype: torch.dtype) -> None:
    """Φ is used, unless the method says that it ignores Φ; `materialize` is called where `forms_product` says so, only."""
    batch = case.sample(dtype)
    spy = SpyMap(batch.phi)
    estimator = case.make(dtype, torch.device("cpu"))
    estimator.estimate(batch.y, spy, batch.noise_var)
    formed = spy.calls["materialize"] + spy.calls["gram"]
    assert (formed > 0) == estimator.forms_product, (
        f"{case.name}: materialize or gram was called {formed} times, but forms_product is {estimator.forms_product}"
    )
    assert bool(case.ignores_phi) != (spy.calls.total() > 0), (
        f"{case.name}: phi was used {spy.calls.total()} times, which is said to be ignored because {case.ignores_phi!r}"
        if case.ignores_phi
        else f"{case.name}: phi was not used at all"
    )


def check_bad_input(case: EstimatorCase, dtype: torch.dtype) -> None:
    """Each kind of wrong input is a ValueError that names the argument."""
    batch = case.sample(dtype)
    estimator = case.make(dtype, torch.device("cpu"))
    y, phi, noise = batch.y, batch.phi.materialize(), batch.noise_var
    other = {torch.complex64: torch.complex128, torch.complex128: torch.complex64}.get(dtype, torch.float16)
    wrong: dict[str, tuple[str, Tensor, LinearMap | Tensor, Tensor | float]] = {
        "y of wrong length": ("y", y[:, :-1], phi, noise),
        "y of three dimensions": ("y", y[None], phi, noise),
        "integer y": ("y", torch.ones(y.shape, dtype=torch.int64), phi, noise),
        "empty batch": ("y", y[:0], phi[:0], noise[:0]),
        "other batch size": ("phi", y[:-1], phi, noise[:-1]),
        "integer phi": ("matrix", y, torch.ones(phi.shape, dtype=torch.int64), noise),
        "dtype mismatch": ("dtype", y, phi.to(other), noise),
        "negative noise": ("noise_var", y, phi, -1.0),
        "negative noise in one sample": ("noise_var", y, phi, -noise),
        "noise of wrong shape": ("noise_var", y, phi, noise[:-1]),
    }
    for what, (argument, bad_y, bad_phi, bad_noise) in wrong.items():
        check_refused(f"{case.name}: {what}", argument, partial(estimator.estimate, bad_y, bad_phi, bad_noise))


ESTIMATOR_CHECKS: tuple[Callable[[EstimatorCase, torch.dtype], None], ...] = (
    check_shapes,
    check_independent_samples,
    check_inputs_unchanged,
    check_device,
    check_extremes,
    check_forms_of_phi,
    check_product_not_formed,
    check_bad_input,
    check_not_finite,
    check_precision,
    check_hostile_phi,
    check_scale,
    check_snr,
    check_same_numbers,
)
