"""Every registered solver meets the estimator contract: canonical, orthonormal and overcomplete dictionaries."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from vlista_core.estimate import Estimate, Estimator
from vlista_core.linops import DenseMap, LinearMap
from vlista_core.solvers import SOLVERS, Solver
from vlista_core.testing import ESTIMATOR_CHECKS, EstimatorCase, sparse_batch
from vlista_core.testing.estimators import check_device, check_inputs_unchanged, check_product_not_formed


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
