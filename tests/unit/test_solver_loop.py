"""The loop that drops converged samples: they keep their state, leave the batch, and do not disturb the others."""

import pytest
import torch
from torch import Tensor

from vlista_core.data.synthetic import SyntheticProblem
from vlista_core.estimate import Measurement
from vlista_core.linops import DenseMap
from vlista_core.metrics import nmse_db
from vlista_core.solvers import AMP, BCS, FISTA, IHT, OMP, VAMP, Solver, select_hyperparameters
from vlista_core.solvers.base import State, iterate

SIZE = 16


def _system() -> Measurement:
    return Measurement(torch.zeros(SIZE, 3), DenseMap(torch.zeros(SIZE, 3, 4)), torch.zeros(SIZE))


def test_each_sample_stops_at_its_own_time_and_then_costs_nothing() -> None:
    limits = torch.arange(1, SIZE + 1)
    work = []

    def step(system: Measurement, state: State, t: int) -> tuple[State, Tensor]:
        count, limit = state
        assert system.y.shape[0] == system.phi.batch == count.shape[0]
        work.append(count.shape[0])
        return (count + 1, limit), count + 1 >= limit

    (count, _), taken = iterate(_system(), (torch.zeros(SIZE, dtype=torch.int64), limits), step, 100)
    assert torch.equal(count, limits)
    assert torch.equal(taken, limits)
    assert len(work) == SIZE
    assert sum(work) < 0.8 * SIZE * SIZE  # a fixed batch would process 256 rows; half of them leave each time
    assert work[-1] <= 2


def test_the_limit_on_iterations_holds_for_those_that_never_finish() -> None:
    def step(system: Measurement, state: State, t: int) -> tuple[State, Tensor]:
        return (state[0] + 1, state[1]), state[1]

    never = torch.arange(SIZE) % 4 == 0
    (count, _), taken = iterate(_system(), (torch.zeros(SIZE, dtype=torch.int64), ~never), step, 7)
    assert count[never].tolist() == [7] * 4
    assert count[~never].tolist() == [1] * 12
    assert torch.equal(taken, count)


def test_a_hard_sample_does_not_change_an_easy_one() -> None:
    problem = SyntheticProblem(length=60, rows=30, snr_db=20.0, dtype=torch.float64)
    batch = problem.sample(8, seed=1)
    together = FISTA(tolerance=1e-6).estimate(batch.y, batch.phi, batch.noise_var)
    assert together.iterations is not None
    assert len(set(together.iterations.tolist())) > 1
    for index in range(8):
        one = batch.select(torch.tensor([index]))
        alone = FISTA(tolerance=1e-6).estimate(one.y, one.phi, one.noise_var)
        assert alone.iterations is not None
        assert int(alone.iterations) == int(together.iterations[index])
        assert float((alone.signal[0] - together.signal[index]).abs().max()) == pytest.approx(0, abs=1e-12)


def _correlated(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """y and Φ [32, 12, 64] whose columns are smooth, so that neighbours are nearly the same: nothing AMP is made for."""
    generator = torch.Generator().manual_seed(3)
    places = torch.linspace(0, 1, 12, dtype=torch.float64)[:, None]
    smooth = torch.cos(torch.arange(1, 65) * places * 0.4)
    phi = smooth + 0.1 * torch.randn(32, 12, 64, generator=generator, dtype=torch.float64)
    return torch.randn(32, 12, generator=generator, dtype=dtype), (phi / 12**0.5).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize("alpha", [0.3, 0.7, 1.14])
def test_amp_never_fits_worse_than_zero(dtype: torch.dtype, alpha: float) -> None:
    y, phi = _correlated(dtype)
    code = AMP(alpha=alpha).estimate(y, phi, 0.01).signal
    residual = y - torch.einsum("bmn,bn->bm", phi, code)
    assert bool((residual.norm(dim=1) <= 1.0001 * y.norm(dim=1)).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.float64])
@pytest.mark.parametrize("solver", [OMP(n_nonzero=12), IHT(n_nonzero=12), BCS(), AMP(), VAMP(), FISTA()])
def test_a_dead_column_is_never_in_a_code(solver: Solver, dtype: torch.dtype) -> None:
    """Every second column is rounding, and there is no noise, so that a solver has reason to look for more columns."""
    generator = torch.Generator().manual_seed(4)
    phi = torch.randn(8, 12, 30, dtype=dtype, generator=generator)
    phi[:, :, ::2] *= torch.finfo(dtype).eps
    y = torch.randn(8, 12, dtype=dtype, generator=generator)
    code = solver.estimate(y, phi, 0.0).code
    assert code is not None
    assert bool((code[:, ::2] == 0).all())
    assert bool((code[:, 1::2] != 0).any())


def test_a_point_of_a_grid_whose_figure_is_no_number_ranks_last() -> None:
    problem = SyntheticProblem(length=20, rows=10, snr_db=20.0)

    def metric(estimate: Tensor, signal: Tensor) -> float:
        return nmse_db(estimate / (estimate != 0).any(), signal)  # NaN where the penalty leaves nothing

    found = select_hyperparameters(FISTA, {"penalty": [1e9, 0.01, 0.1]}, problem, metric, count=8)
    assert found.solver.penalty != 1e9
    assert found.scores[-1] == ({"penalty": 1e9}, float("inf"))
