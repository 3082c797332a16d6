"""Solvers against published figures and against scikit-learn.

Published (Chen 2018, Liu 2019, Behrens 2021 and our own cross-checks), NMSE as ratio of sums: Gaussian A with unit columns,
50 non-zeros of N(0, 1) on average, m = 250, 40 dB. 512 test draws of seed 11; tolerance 1 dB.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from sklearn.linear_model import Lasso, orthogonal_mp

from vlista_core.data.synthetic import SyntheticProblem, benchmark
from vlista_core.linalg import solve_hermitian
from vlista_core.metrics import coverage, nmse_db
from vlista_core.problems import Batch
from vlista_core.solvers import AMP, BCS, FISTA, ISTA, OMP, VAMP, Solver, get_solver, select_hyperparameters


@functools.cache
def _draws(name: str) -> Batch:
    return benchmark(name).sample(512, seed=11)


def _nmse(solver: Solver, name: str = "250x500") -> float:
    batch = _draws(name)
    return nmse_db(solver.estimate(batch.y, batch.phi, batch.noise_var).signal, batch.signal)


def test_amp_25_iterations() -> None:
    assert _nmse(AMP(iterations=25)) == pytest.approx(-35.0, abs=1.0)


def test_vamp_reaches_the_oracle() -> None:
    assert _nmse(VAMP()) <= -45.0


def test_support_oracle() -> None:
    batch = _draws("250x500")
    error = torch.zeros(())
    for y, matrix, truth in zip(batch.y, batch.phi.materialize(), batch.signal, strict=True):
        columns = matrix[:, truth != 0]
        values = solve_hermitian(columns.T @ columns, columns.T @ y[:, None])[:, 0]
        error = error + (values - truth[truth != 0]).square().sum()
    assert 10 * float(torch.log10(error / batch.signal.square().sum())) == pytest.approx(-46.0, abs=1.0)


# The published runs of ISTA and FISTA share λ = 0.4, the best of a coarse grid for ISTA at 250x1000.
@pytest.mark.parametrize(
    ("solver", "name", "published"),
    [(ISTA, "250x500", -5.8), (FISTA, "250x500", -7.6), (ISTA, "250x1000", -3.9), (FISTA, "250x1000", -6.7)],
)
def test_ista_and_fista_16_iterations(solver: type[ISTA | FISTA], name: str, published: float) -> None:
    assert _nmse(solver(iterations=16, penalty=0.4), name) == pytest.approx(published, abs=1.0)


@pytest.mark.parametrize(("solver", "published"), [(ISTA, -5.8), (FISTA, -7.6)])
def test_tuning_the_penalty_is_at_least_as_good_as_published(solver: type[ISTA | FISTA], published: float) -> None:
    grid: dict[str, list[float]] = {"penalty": [0.05, 0.1, 0.2, 0.4], "iterations": [16]}
    selection = select_hyperparameters(solver, grid, benchmark("250x500"), count=64)
    assert [score for _, score in selection.scores] == sorted(score for _, score in selection.scores)
    assert _nmse(selection.solver) <= published


def test_omp_selects_the_supports_of_scikit_learn() -> None:
    batch = benchmark("250x500").sample(24, seed=5)
    code = OMP(n_nonzero=50).estimate(batch.y, batch.phi, 0.0).code
    assert code is not None
    for y, matrix, ours in zip(batch.y, batch.phi.materialize(), code, strict=True):
        theirs = orthogonal_mp(matrix.double().numpy(), y.double().numpy(), n_nonzero_coefs=50)
        assert set(np.flatnonzero(ours.numpy())) == set(np.flatnonzero(theirs))
        assert np.abs(ours.numpy() - theirs).max() < 1e-5


def test_omp_stops_at_the_noise() -> None:
    batch = SyntheticProblem(length=200, rows=100, nonzeros=8, snr_db=30.0).sample(64, seed=5)
    out = OMP(n_nonzero=60).estimate(batch.y, batch.phi, batch.noise_var)
    assert out.code is not None
    assert out.iterations is not None
    assert float((out.code != 0).sum(1).double().mean()) < 16
    assert int(out.iterations.max()) < 60


@pytest.mark.parametrize("penalty", [0.02, 0.1, 0.5])
def test_fista_reaches_the_lasso_objective_of_scikit_learn(penalty: float) -> None:
    batch = SyntheticProblem(length=120, rows=60, snr_db=20.0, dtype=torch.float64).sample(6, seed=2)
    solver = FISTA(penalty=penalty, iterations=5000, tolerance=1e-9)
    code = solver.estimate(batch.y, batch.phi, 0.0).code
    assert code is not None
    for y, matrix, ours in zip(batch.y.numpy(), batch.phi.materialize().numpy(), code.numpy(), strict=True):
        theirs = Lasso(alpha=penalty / 60, fit_intercept=False, max_iter=100_000, tol=1e-10).fit(matrix, y).coef_
        ours_value, theirs_value = (
            0.5 * np.sum((y - matrix @ x) ** 2) + penalty * np.abs(x).sum() for x in (ours, theirs)
        )
        assert ours_value == pytest.approx(theirs_value, rel=1e-4)


@pytest.mark.parametrize(
    "problem", [benchmark("250x500"), SyntheticProblem(length=256, rows=128, nonzeros=12, snr_db=40.0)]
)
def test_bcs_intervals_cover_the_nonzero_entries(problem: SyntheticProblem) -> None:
    batch = problem.sample(96, seed=3)
    out = BCS().estimate(batch.y, batch.phi, batch.noise_var)
    assert out.variance is not None
    active = batch.signal != 0
    assert 0.85 <= coverage(out.signal[active], out.variance[active], batch.signal[active], 0.9) <= 0.95


def test_bcs_beats_the_plain_relevance_vector_machine() -> None:
    batch = benchmark("250x500", snr_db=30.0).sample(48, seed=3)
    ours, plain = (
        nmse_db(BCS(admission=admission).estimate(batch.y, batch.phi, batch.noise_var).signal, batch.signal)
        for admission in (None, 1.0)
    )
    assert ours < plain - 1.0


def test_registry_and_grid_name_what_is_allowed() -> None:
    assert get_solver("omp") is OMP
    with pytest.raises(ValueError, match="known are ista, fista, iht, omp, amp, vamp, bcs"):
        get_solver("lasso")
    with pytest.raises(ValueError, match="'lambda'"):
        select_hyperparameters(ISTA, {"lambda": [1.0]}, benchmark("250x500"))
    with pytest.raises(ValueError, match="at most min"):
        OMP(n_nonzero=30).estimate(torch.ones(1, 20), torch.ones(20, 40), 0.0)


@pytest.mark.parametrize(
    ("build", "word"),
    [
        (lambda: ISTA(iterations=0), "iterations"),
        (lambda: FISTA(penalty=-1.0), "penalty"),
        (lambda: OMP(n_nonzero=0), "n_nonzero"),
        (lambda: AMP(alpha=0.0), "alpha"),
        (lambda: VAMP(damping=1.5), "damping"),
        (lambda: VAMP(activity=0.0), "activity"),
        (lambda: BCS(admission=0.5), "admission"),
    ],
)
def test_solver_parameters_are_checked_when_built(build: object, word: str) -> None:
    assert callable(build)
    with pytest.raises(ValueError, match=word):
        build()
