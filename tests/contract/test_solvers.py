"""Every registered solver meets the estimator contract: canonical, orthonormal and overcomplete dictionaries."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from vlista_core.estimate import Estimate, Estimator, Measurement
from vlista_core.linops import DenseMap, LinearMap, as_map
from vlista_core.solvers import FISTA, SOLVERS, Solver
from vlista_core.testing import ESTIMATOR_CHECKS, EstimatorCase, sparse_batch
from vlista_core.testing.estimators import check_device, check_inputs_unchanged, check_product_not_formed
from vlista_core.testing.numbers import (
    check_hostile_phi,
    check_not_finite,
    check_precision,
    check_same_numbers,
    check_scale,
    check_snr,
)


def _overcomplete(dtype: torch.dtype, device: str | torch.device = "cpu") -> LinearMap:
    matrix = torch.randn(40, 60, dtype=dtype, generator=torch.Generator().manual_seed(1)) / 40**0.5
    return DenseMap(matrix).to(device)


def _canonical_case(name: str, solver: type[Solver]) -> EstimatorCase:
    return EstimatorCase(name, lambda dtype, device: solver())


def _overcomplete_case(name: str, solver: type[Solver]) -> EstimatorCase:
    return EstimatorCase(
        f"{name} overcomplete",
        lambda dtype, device: solver(dictionary=_overcomplete(dtype, device)),
        lambda dtype: sparse_batch(dtype, dictionary=_overcomplete(dtype)),
    )


CASES = [build(name, solver) for name, solver in SOLVERS.items() for build in (_canonical_case, _overcomplete_case)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128, torch.float32], ids=["real", "complex", "single"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("check", ESTIMATOR_CHECKS, ids=lambda check: check.__name__)
def test_solver_contract(
    check: Callable[[EstimatorCase, torch.dtype], None], case: EstimatorCase, dtype: torch.dtype
) -> None:
    check(case, dtype)


@pytest.mark.parametrize("name", SOLVERS)
def test_more_measurements_than_unknowns_are_fine(name: str) -> None:
    batch = sparse_batch(torch.float64, m=50, n=20)
    out = SOLVERS[name]().estimate(batch.y, batch.phi, batch.noise_var)
    error = (out.signal - batch.signal).norm() / batch.signal.norm()
    assert error < 0.15


class _WrongDevice(Estimator):
    """Creates its result on the CPU whatever the inputs' device."""

    def estimate(self, y: torch.Tensor, phi: LinearMap | torch.Tensor, noise_var: torch.Tensor | float) -> Estimate:
        return Estimate(torch.zeros(y.shape[0], 40, dtype=y.dtype))


class _Careless(Estimator):
    """Changes y in place and forms Φ."""

    def estimate(self, y: torch.Tensor, phi: LinearMap | torch.Tensor, noise_var: torch.Tensor | float) -> Estimate:
        y += 1
        matrix = phi.materialize() if isinstance(phi, LinearMap) else phi
        return Estimate(torch.einsum("bmn,bm->bn", matrix, y))


def test_the_checks_can_fail() -> None:
    with pytest.raises(AssertionError, match="meta"):
        check_device(EstimatorCase("wrong device", lambda dtype, device: _WrongDevice()), torch.float64)
    careless = EstimatorCase("careless", lambda dtype, device: _Careless())
    with pytest.raises(AssertionError, match="y was changed"):
        check_inputs_unchanged(careless, torch.float64)
    with pytest.raises(AssertionError, match="materialize or gram was called"):
        check_product_not_formed(careless, torch.float64)


class _Toy(Estimator):
    """Φᴴy, spoilt by `spoil(Φᴴy, measurement)`; it checks its inputs unless told not to."""

    def __init__(
        self, spoil: Callable[[Tensor, Measurement], Tensor], *, scale_free: bool = False, careful: bool = True
    ) -> None:
        self.spoil, self.scale_free, self.careful = spoil, scale_free, careful

    def estimate(self, y: Tensor, phi: LinearMap | Tensor, noise_var: Tensor | float) -> Estimate:
        if self.careful:
            measured = Measurement.checked(y, phi, noise_var)
        else:
            measured = Measurement(y, as_map(phi), torch.as_tensor(noise_var).expand(len(y)))
        return Estimate(self.spoil(measured.phi.adjoint(measured.y), measured))


def _to_unit_peak(matched: Tensor, measured: Measurement) -> Tensor:
    return matched / matched.abs().amax(1, keepdim=True)


def _over_norms_but_zeros(matched: Tensor, measured: Measurement) -> Tensor:
    norms = torch.linalg.vector_norm(measured.phi.materialize(), dim=1).square()
    return torch.where(norms > 0, matched / norms.clamp_min(1e-300), 0)


def _absolute(matched: Tensor, measured: Measurement) -> Tensor:
    return torch.where(matched.abs() > 0.1, matched, 0)


def _through_the_power(matched: Tensor, measured: Measurement) -> Tensor:
    """Right, if only (σ²)⁻²⁰ were in reach of the precision."""
    return matched + 0 * (1e4 * measured.noise_var).pow(-20)[:, None]


def _cubed(matched: Tensor, measured: Measurement) -> Tensor:
    return matched * matched.abs().square().pow(40)


def _in_half(matched: Tensor, measured: Measurement) -> Tensor:
    return matched.float()


def _less_the_mean(matched: Tensor, measured: Measurement) -> Tensor:
    return matched - 1e-4 * matched.mean(0)


def _by_threads(matched: Tensor, measured: Measurement) -> Tensor:
    return matched * (1 + 1e-4 * torch.get_num_threads())


@pytest.mark.parametrize(
    ("check", "toy", "dtype", "message"),
    [
        (check_hostile_phi, _Toy(_to_unit_peak), torch.float64, "nothing but zeros signal is not finite"),
        (check_hostile_phi, _Toy(_over_norms_but_zeros), torch.float64, "error of zero for columns that are rounding"),
        (check_scale, _Toy(_absolute, scale_free=True), torch.float64, "says scale_free, but .* the signal differs"),
        (check_scale, _Toy(_cubed), torch.float64, "for y in units of 1e-06 signal is not finite"),
        (check_snr, _Toy(_through_the_power), torch.float32, "at 100 dB signal is not finite"),
        (check_not_finite, _Toy(lambda matched, _: matched, careful=False), torch.float64, "nan in y was accepted"),
        (check_precision, _Toy(_in_half), torch.float64, "signal has dtype torch.float32 for y of torch.float64"),
        (check_same_numbers, _Toy(_less_the_mean), torch.float64, "in parts differs"),
        (check_same_numbers, _Toy(_by_threads), torch.float32, "with two threads differs"),
    ],
    ids=["zeros", "norms", "units", "overflow", "snr", "nan", "precision", "split", "threads"],
)
def test_the_checks_of_numbers_can_fail(
    check: Callable[[EstimatorCase, torch.dtype], None], toy: Estimator, dtype: torch.dtype, message: str
) -> None:
    with pytest.raises(AssertionError, match=message):
        check(EstimatorCase("toy", lambda dtype, device: toy), dtype)


def test_a_penalty_of_its_own_has_the_units_of_y() -> None:
    assert FISTA().scale_free
    assert not FISTA(penalty=0.1).scale_free
