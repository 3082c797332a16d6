"""What every LinearMap must satisfy."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from vlista_core.estimate import Measurement
from vlista_core.linops import DenseMap, LinearMap
from vlista_core.testing.tools import allowed, check_close, check_refused, normal

_TOLERANCE = (1e-12, 1e-5)


@dataclass(frozen=True)
class MapCase:
    """A named way to build a map of a given dtype on the CPU, the same each time it is called."""

    name: str
    make: Callable[[torch.dtype], LinearMap]


def check_dot(case: MapCase, dtype: torch.dtype) -> None:
    """⟨Ax, y⟩ = ⟨x, Aᴴy⟩ for each sample, to 1e-12 of ‖Ax‖‖y‖ in double precision."""
    a = case.make(dtype)
    x, y = _vectors(a)
    forward = a.apply(x)
    left, right = (forward.conj() * y).sum(1), (x.conj() * a.adjoint(y)).sum(1)
    scale = torch.linalg.vector_norm(forward, dim=1) * torch.linalg.vector_norm(y, dim=1)
    gap = float(((left - right).abs() / scale).detach().max())
    assert gap <= allowed(_TOLERANCE, dtype), f"{case.name}: dot test fails by {gap:.1e}"


def check_matrix(case: MapCase, dtype: torch.dtype) -> None:
    """apply, adjoint, apply_block, columns, norms and gram all agree with the materialised matrix."""
    a = case.make(dtype)
    matrix = a.materialize()
    m, n = a.shape
    assert matrix.shape == (a.batch or 1, m, n), f"{case.name}: materialize gave {[*matrix.shape]}"
    x, y = _vectors(a)
    block = normal((x.shape[0], n, 3), a.dtype, 3)
    index = torch.tensor([[0, n - 1, n // 2]])
    pairs = {
        "apply": (a.apply(x), (matrix @ x[:, :, None])[:, :, 0]),
        "adjoint": (a.adjoint(y), (matrix.mH @ y[:, :, None])[:, :, 0]),
        "apply_block": (a.apply_block(block), matrix @ block),
        "columns": (a.columns(index), matrix[:, :, index[0]]),
        "column_norms": (a.column_norms(), torch.linalg.vector_norm(matrix, dim=1)),
        "squared_frobenius_norm": (a.squared_frobenius_norm(), matrix.abs().square().sum((1, 2))),
        "gram": (a.gram(), matrix @ matrix.mH),
    }
    for name, (got, expected) in pairs.items():
        check_close(f"{case.name}: {name} and that of the matrix", got, expected, _TOLERANCE)
    one, count = a.blocks()
    if count > 1:
        identity = torch.eye(count, dtype=matrix.dtype)
        expected = torch.einsum("kl,bmn->bkmln", identity, one.materialize()).reshape(matrix.shape)
        check_close(f"{case.name}: I ⊗ its block", matrix, expected, _TOLERANCE)
    if a.rows_orthonormal:
        identity = torch.eye(m, dtype=dtype)
        assert torch.allclose(matrix @ matrix.mH, identity.expand(matrix.shape[0], m, m), atol=1e-6), (
            f"{case.name}: says AAᴴ = I, which does not hold"
        )


def check_dead_columns(case: MapCase, dtype: torch.dtype) -> None:
    """Behind a dictionary, atoms that are zero, tiny or unseen by the map have a norm of exactly 0, and no others have."""
    a = case.make(dtype)
    _, values, rows = torch.linalg.svd(a.materialize()[0].detach())
    precision = torch.finfo(dtype).eps
    seen, unseen = rows[0].conj(), rows[int((values > precision * values[0]).sum()) :].conj()
    psi = torch.stack([seen, torch.zeros_like(seen), precision * seen, 0.01 * seen, *unseen], dim=1)
    norms = (a @ DenseMap(psi)).column_norms()[0]
    dead = torch.tensor([False, True, True, False, *[True] * len(unseen)])
    assert torch.equal(norms == 0, dead), f"{case.name}: norms of live and dead columns are {norms.tolist()}"


def check_spectral_norm(case: MapCase, dtype: torch.dtype) -> None:
    """The power iteration is within one per cent of the largest singular value, from below."""
    a = case.make(dtype)
    exact = torch.linalg.matrix_norm(a.materialize(), ord=2)
    ratio = a.spectral_norm() / exact
    assert bool((ratio <= 1.0 + 1e-5).all()), f"{case.name}: spectral norm over-estimated by {float(ratio.max()):.4f}"
    assert bool((ratio >= 0.99).all()), f"{case.name}: spectral norm under-estimated by {float(ratio.min()):.4f}"


def check_select(case: MapCase, dtype: torch.dtype) -> None:
    """The map of some samples acts on them as the whole does."""
    a = case.make(dtype)
    x, _ = _vectors(a)
    index = torch.tensor([2, 0])
    check_close(f"{case.name}: select", a.select(index).apply(x[index]), a.apply(x)[index], _TOLERANCE)


def check_kept(case: MapCase, dtype: torch.dtype) -> None:
    """Inputs stay as they were; dtype is kept; a meta copy works, so that nothing is created on a wrong device."""
    a = case.make(dtype)
    x, y = _vectors(a)
    x_before, y_before = x.clone(), y.clone()
    assert a.apply(x).dtype == dtype and a.adjoint(y).dtype == dtype, f"{case.name}: dtype not kept"
    assert torch.equal(x, x_before) and torch.equal(y, y_before), f"{case.name}: inputs changed"
    ghost = a.to("meta")
    m, n = a.shape
    results = {
        "apply": (ghost.apply(x.to("meta")), (x.shape[0], m)),
        "adjoint": (ghost.adjoint(y.to("meta")), (x.shape[0], n)),
        "column_norms": (ghost.column_norms(), (a.batch or 1, n)),
        "spectral_norm": (ghost.spectral_norm(), (a.batch or 1,)),
        "materialize": (ghost.materialize(), (a.batch or 1, m, n)),
    }
    for name, (value, shape) in results.items():
        assert value.is_meta and tuple(value.shape) == shape, (
            f"{case.name}: {name} on meta gave {value.device} {value.shape}"
        )


def check_cast(case: MapCase, dtype: torch.dtype) -> None:
    """The map in single precision is the same map, of that dtype."""
    a = case.make(dtype)
    single = torch.complex64 if dtype.is_complex else torch.float32
    x, _ = _vectors(a)
    got, expected = a.cast(single).apply(x.to(single)), a.apply(x)
    assert got.dtype == single, f"{case.name}: cast gave {got.dtype}"
    check_close(f"{case.name}: cast", got, expected, _TOLERANCE)


def check_poison(case: MapCase, dtype: torch.dtype) -> None:
    """A NaN in any of the tensors that the map stores is seen by an estimator, which names phi."""
    for position in range(len(case.make(dtype).tensors())):
        a = case.make(dtype)
        poisoned = a.tensors()[position].detach()
        if not (poisoned.is_floating_point() or poisoned.is_complex()):
            continue
        poisoned[(0,) * poisoned.ndim] = float("nan")
        _, y = _vectors(a)
        what = f"{case.name}: a NaN in tensor {position} of the map"
        check_refused(what, "phi must be finite", partial(Measurement.checked, y, a, 0.0))


def check_gradient(case: MapCase, dtype: torch.dtype) -> None:
    """The gradient of ‖Ax‖² with respect to x is 2AᴴAx, so that networks can be trained through the map."""
    a = case.make(dtype)
    x, _ = _vectors(a)
    x.requires_grad_(True)
    forward = a.apply(x)
    (gradient,) = torch.autograd.grad(forward.abs().square().sum(), x)
    with torch.no_grad():
        check_close(f"{case.name}: gradient", gradient, 2 * a.adjoint(a.apply(x)), _TOLERANCE)


def check_bad_input(case: MapCase, dtype: torch.dtype) -> None:
    """Wrong length, wrong number of samples, wrong dtype: a ValueError that says so."""
    a = case.make(dtype)
    m, n = a.shape
    size = a.batch or 4
    wrong = [normal((size, n + 1), dtype, 0), normal((size, n), dtype, 0)[0], torch.ones(size, n, dtype=torch.int64)]
    if a.batch is not None:
        wrong.append(normal((size + 1, n), dtype, 0))
    for x in wrong:
        check_refused(f"{case.name}: {x.dtype} {[*x.shape]} in apply", "", partial(a.apply, x))
    check_refused(f"{case.name}: a wrong length in adjoint", "", partial(a.adjoint, normal((size, m + 1), dtype, 0)))


MAP_CHECKS: tuple[Callable[[MapCase, torch.dtype], None], ...] = (
    check_dot,
    check_matrix,
    check_dead_columns,
    check_spectral_norm,
    check_select,
    check_kept,
    check_cast,
    check_poison,
    check_gradient,
    check_bad_input,
)


def _vectors(a: LinearMap) -> tuple[Tensor, Tensor]:
    size = a.batch or 4
    return normal((size, a.shape[1]), a.dtype, 1), normal((size, a.shape[0]), a.dtype, 2)
