"""Searches for the settings of solvers: one run scored along its way, grids that grow until the best lies inside."""

from __future__ import annotations

import math

import pytest
import torch

from vlista_core.data.image_problem import ImageProblem
from vlista_core.data.image_set import ImageData
from vlista_core.data.synthetic import SyntheticProblem
from vlista_core.dictionaries import wavelet
from vlista_core.experiments.baselines import affordable_images
from vlista_core.experiments.synthetic import searched_bcs
from vlista_core.linops import LinearMap
from vlista_core.metrics import nmse_db, nmse_median_db
from vlista_core.solvers import BCS, FISTA, ISTA, tune_lasso, widen
from vlista_core.solvers.ista import LassoSolver

COUNTS = (1, 3, 10, 30, 100, 400)


@pytest.mark.parametrize("formed", [False, True])
@pytest.mark.parametrize("dictionary", [None, wavelet(12, 5)])
@pytest.mark.parametrize("fixed", [None, 0], ids=["varying", "fixed"])
@pytest.mark.parametrize("kind", [ISTA, FISTA])
def test_estimates_along_one_run_are_those_of_separate_runs_to_the_bit(
    kind: type[LassoSolver], fixed: int | None, dictionary: LinearMap | None, *, formed: bool
) -> None:
    batch = SyntheticProblem(length=60, rows=30, snr_db=20.0, fixed_phi_seed=fixed).sample(9, seed=0)
    solver = kind(penalty=0.05, tolerance=1e-4, dictionary=dictionary, formed=formed)
    along = list(solver.estimates_after(batch.y, batch.phi, batch.noise_var, COUNTS))
    assert along[-1].iterations is not None
    assert len(set(along[-1].iterations.tolist())) > 1  # some samples stopped before the others
    for count, found in zip(COUNTS, along, strict=True):
        own = kind(penalty=0.05, tolerance=1e-4, dictionary=dictionary, formed=formed, iterations=count)
        alone = own.estimate(batch.y, batch.phi, batch.noise_var)
        assert torch.equal(found.signal, alone.signal)
        assert alone.iterations is not None
        assert torch.equal(found.iterations, alone.iterations) if found.iterations is not None else False


def test_a_formed_product_gives_the_same_estimate() -> None:
    batch = SyntheticProblem(length=60, rows=30, snr_db=20.0, dtype=torch.float64).sample(5, seed=0)
    basis = wavelet(12, 5, dtype=torch.float64)
    factored, formed = (
        ISTA(dictionary=basis, formed=formed, penalty=0.05).estimate(batch.y, batch.phi, batch.noise_var).signal
        for formed in (False, True)
    )
    assert float((factored - formed).abs().max()) < 1e-10
    assert ISTA(formed=True).forms_product
    assert not ISTA().forms_product


def test_samples_in_pieces_are_what_they_are_together(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = SyntheticProblem(length=60, rows=30, snr_db=20.0).sample(9, seed=0)
    together = ISTA(penalty=0.05).estimate(batch.y, batch.phi, batch.noise_var)
    monkeypatch.setattr("vlista_core.solvers.ista._IN_CACHE", 2 * 60 * 30)
    apart = ISTA(penalty=0.05).estimate(batch.y, batch.phi, batch.noise_var)
    assert torch.allclose(together.signal, apart.signal, atol=1e-6)
    assert together.signal.abs().max() > 0.1


@pytest.mark.parametrize("optimum", [1e-5, 0.02, 300.0])
def test_a_search_ends_inside_wherever_the_optimum_lies(optimum: float) -> None:
    found = widen(lambda value: abs(math.log(value / optimum)), (0.01, 0.1, 1.0), worth=1e-3)
    assert found.inside
    assert min(found.scores) < found.value < max(found.scores)
    assert 10**-0.3 <= found.value / optimum <= 10**0.3


def test_a_search_without_an_optimum_says_that_it_came_to_its_limit() -> None:
    found = widen(lambda value: value, (0.01, 0.1), worth=1e-9, limits=(1e-4, 1.0))
    assert not found.inside
    assert found.value == min(found.scores) >= 1e-4


def test_a_search_takes_an_inner_value_where_the_score_is_flat_and_ranks_what_is_no_number_last() -> None:
    flat = widen(lambda value: math.nan if value < 1 else -value / 1e9, (0.5, 1.0, 2.0, 4.0), worth=1e-3)
    assert flat.inside
    assert 1.0 <= flat.value <= 2.0 * 10**0.5
    assert len(flat.scores) == 6


def test_a_lasso_is_tuned_to_a_penalty_and_iterations_outside_of_the_first_grid() -> None:
    """Vectors with little noise want a penalty far below those given first."""
    problem = SyntheticProblem(length=40, rows=28, snr_db=30.0)
    found = tune_lasso(FISTA(tolerance=1e-7), problem, nmse_db, worth=0.01, penalties=(1.0, 2.0, 3.0), count=16)
    assert found.penalty_inside
    assert found.iterations_inside
    penalties = sorted({penalty for penalty, _, _ in found.tried})
    assert found.solver.penalty is not None
    assert penalties[0] < found.solver.penalty < 0.1
    scores = {(penalty, count): score for penalty, count, score in found.tried}
    least = min(scores.values())
    assert scores[found.solver.penalty, found.solver.iterations] <= least + 0.02
    batch = problem.sample(16, seed=0, split="validation")
    again = found.solver.estimate(batch.y, batch.phi, batch.noise_var).signal
    assert nmse_db(again, batch.signal) == scores[found.solver.penalty, found.solver.iterations]


def test_a_search_over_too_few_iterations_says_so() -> None:
    found = tune_lasso(ISTA(), SyntheticProblem(length=40, rows=28), nmse_db, worth=0.01, counts=(1, 3), count=16)
    assert found.solver.iterations == 3
    assert not found.iterations_inside


@pytest.mark.parametrize("floor", [3.16e-8, 1e-7])
def test_bcs_stays_finite_where_its_columns_sink_into_rounding(floor: float) -> None:
    """Among these draws are some whose 1 - γS came to nothing and took the estimate to NaN."""
    batch = SyntheticProblem(length=256, rows=96, unit_columns=False).sample(128, seed=0, split="validation")
    found = BCS(noise_floor=floor).estimate(batch.y, batch.phi, batch.noise_var)
    assert bool(torch.isfinite(found.signal).all())
    assert nmse_median_db(found.signal, batch.signal) < -100.0


def test_bcs_where_measurements_are_few_is_not_worse_than_nothing() -> None:
    """Small noise floors are all alike there and above 0 dB; the search must come to the cap, all of E|y|², and say so."""
    problem = SyntheticProblem(length=64, rows=8, unit_columns=False)
    solver, details = searched_bcs(problem, 0)
    assert (details["noise_floor"], details["inside"]) == (1.0, {"noise_floor": False}), "the cap, said to be one"
    batch = problem.sample(128, seed=0, split="validation")
    estimate = solver.estimate(batch.y, batch.phi, batch.noise_var).signal
    assert nmse_median_db(estimate, batch.signal) <= 0.05
    assert nmse_median_db(BCS().estimate(batch.y, batch.phi, batch.noise_var).signal, batch.signal) > 0.5


def test_long_runs_of_ista_have_fewer_test_images() -> None:
    pixels, labels = torch.zeros(20, 32, 32, dtype=torch.uint8), torch.zeros(20, dtype=torch.int64)
    problem = ImageProblem(data=ImageData("cifar10", pixels, labels, pixels, labels), rows=500)
    assert affordable_images(ISTA(iterations=3000), problem, 1000) == 1000
    assert affordable_images(ISTA(iterations=10_000), problem, 1000) == 300
    assert affordable_images(ISTA(iterations=10_000), problem, 40) == 40
    assert affordable_images(FISTA(iterations=10_000), problem, 1000) == 1000
