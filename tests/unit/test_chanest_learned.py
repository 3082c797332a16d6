"""The learned channel estimators: the contract, one network for all SNRs, files, and VLISTA's draws."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch

import chanest
from chanest.bases.draws import PooledDraws
from chanest.bases.estimator import ChannelEstimator
from chanest.bases.unfolded import grouped_nmse_db, starting_dictionary
from chanest.dictionaries import KroneckerMap
from chanest.estimators import a_dlista_adaptive, estimator_class
from chanest.estimators import vlista as vlista_module
from chanest.estimators.vlista import VLISTAEstimator
from chanest.fit import Fit
from chanest.networks.kronecker_vlista import KroneckerVLISTA
from chanest.weights import get_estimator
from chanest.weights.training import train_estimator
from vlista_core.metrics import nmse_db
from vlista_core.problems import Batch
from vlista_core.testing import ESTIMATOR_CHECKS, MAP_CHECKS, EstimatorCase, MapCase
from vlista_core.training import Trainer

NAMES = ("lista", "alista", "nalista", "dlista", "a-dlista", "a-dlista-adaptive", "vlista")


def _problem(**changes: object) -> chanest.ChannelProblem:
    settings: dict[str, object] = {
        "name": "small",
        "snr_db": [-10.0, 30.0],
        "bs": {"rows": 4, "columns": 2, "yaw_spread": 60.0},
        "ue": {"rows": 2, "columns": 1, "yaw": 180.0, "yaw_spread": 180.0},
        "channel": {"models": ["C"]},
        "frontend": {"pilots": 5, "beams": "quantised", "bits": 2},
    }
    return chanest.ChannelProblem(chanest.Scenario.model_validate({**settings, **changes}))


@pytest.fixture(scope="module")
def problem() -> chanest.ChannelProblem:
    return _problem()


@pytest.fixture(scope="module")
def trained(problem: chanest.ChannelProblem, tmp_path_factory: pytest.TempPathFactory) -> dict[str, ChannelEstimator]:
    """All of them after the shortest of trainings, with few layers, from their files."""
    folder = tmp_path_factory.mktemp("weights")
    with pytest.MonkeyPatch.context() as patch:
        for module in (a_dlista_adaptive, vlista_module):
            patch.setattr(module, "LAYERS", 3)
        paths = {name: train_estimator(name, problem, Fit(steps=8), folder=folder) for name in NAMES}
    return {name: get_estimator(name, problem, weights=path) for name, path in paths.items()}


@pytest.mark.parametrize("name", NAMES)
def test_contract(name: str, problem: chanest.ChannelProblem, trained: dict[str, ChannelEstimator]) -> None:
    def sample(dtype: torch.dtype) -> Batch:
        found = problem.sample(6, seed=3, snr_db=10.0)
        return Batch(found.signal, found.y, found.phi, found.noise_var)

    def make(dtype: torch.dtype, device: torch.device) -> ChannelEstimator:
        return copy.deepcopy(trained[name]).to(device)

    case = EstimatorCase(name, make, sample)
    for check in ESTIMATOR_CHECKS:
        check(case, torch.complex64)


@pytest.mark.parametrize("name", NAMES)
def test_even_the_shortest_fit_is_better_than_nothing_with_known_and_unknown_noise(
    name: str, problem: chanest.ChannelProblem, trained: dict[str, ChannelEstimator]
) -> None:
    for snr_db in (10.0, 25.0):
        test = problem.sample(200, seed=3, snr_db=snr_db)
        for noise_var in (test.noise_var, None):
            assert nmse_db(trained[name].estimate(test.y, test.phi, noise_var).signal, test.signal) < 0.0


def test_steps_of_training_lower_the_validation_figure(problem: chanest.ChannelProblem) -> None:
    estimator = estimator_class("dlista").build(problem)
    draws = PooledDraws.within(problem, Fit(steps=1))
    trainer = Trainer(steps=16, batch_size=32, learning_rate=5e-3, validate_every=8, validation_samples=64)
    history = trainer.fit(estimator, draws, seed=0).history
    assert history[-1].validation < history[0].validation - 0.05


def test_a_budget_that_is_over_before_it_begins_is_refused(problem: chanest.ChannelProblem) -> None:
    with pytest.raises(ValueError, match=r"^seconds=.* is too short to train .*; allow more seconds"):
        estimator_class("dlista").build(problem).fit(problem, Fit(seconds=1e-9))


def test_a_budget_in_steps_gives_the_same_network_again(problem: chanest.ChannelProblem) -> None:
    first, second = (estimator_class("dlista").build(problem) for _ in range(2))
    for estimator in (first, second):
        assert estimator.fit(problem, Fit(steps=3))["steps"] == 3
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name])


def test_fit_says_how_far_it_is_and_what_it_did(problem: chanest.ChannelProblem) -> None:
    told: list[float] = []
    facts = (
        estimator_class("dlista").build(problem).fit(problem, Fit(steps=4, report=lambda share, _: told.append(share)))
    )
    assert told[0] == 0.0
    assert sorted(told) == told
    assert told[-1] > 0.5
    assert {"steps", "seconds", "validation_nmse_db", "learning_rates"} <= set(facts)


@pytest.mark.parametrize("name", ["dlista", "lista", "alista"])
def test_the_estimate_of_one_y_shrinks_with_the_noise_it_is_told(
    name: str, problem: chanest.ChannelProblem, trained: dict[str, ChannelEstimator]
) -> None:
    batch = problem.sample(8, seed=3, snr_db=20.0)
    quiet, loud = (trained[name].estimate(batch.y, batch.phi, noise).signal.norm() for noise in (0.01, 1.0))
    assert loud < 0.98 * quiet


HYBRID = {"frontend": {"pilots": 6, "beams": "quantised", "bits": 2, "chains": 1, "combiners": "quantised"}}
WIDEBAND = {"channel": {"models": ["C"], "subcarriers": 4, "subcarrier_spacing": 120e3}}


@pytest.mark.parametrize("changes", [HYBRID, WIDEBAND], ids=["hybrid", "wideband"])
def test_other_front_ends(changes: dict[str, object]) -> None:
    problem = _problem(**changes)
    estimator = VLISTAEstimator(problem.signal_length, KroneckerVLISTA(starting_dictionary(problem), layers=2))
    batch = PooledDraws.within(problem, Fit(steps=1)).sample(32, seed=0, split="train", snr_db=20.0)
    estimator.start_from(batch)
    assert nmse_db(estimator.estimate(batch.y, batch.phi, batch.noise_var).signal, batch.signal) < -1.0
    torch.autograd.backward(estimator.training_loss(batch, generator=torch.Generator().manual_seed(0)))
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in estimator.parameters())


def test_another_array_or_precision_is_refused(
    problem: chanest.ChannelProblem, trained: dict[str, ChannelEstimator]
) -> None:
    batch = problem.sample(2, seed=3, snr_db=10.0)
    phi = batch.phi.materialize()
    with pytest.raises(ValueError, match="phi must have 16 columns"):
        trained["dlista"].estimate(batch.y, phi[:, :, 1:], 0.1)
    with pytest.raises(ValueError, match="y must have the network's dtype"):
        trained["dlista"].estimate(batch.y.to(torch.complex128), phi.to(torch.complex128), 0.1)


def test_lista_says_where_it_would_be_too_large() -> None:
    large = chanest.ChannelProblem(chanest.load_scenario("large_256x16"))
    with pytest.raises(ValueError, match="large_256x16 has n = 4096"):
        estimator_class("lista").check(large)


def test_pooled_draws_have_the_scenarios_noise_and_power(problem: chanest.ChannelProblem) -> None:
    draws = PooledDraws.within(problem, Fit(steps=5))
    batch = draws.sample(1000, seed=0, split="train")
    again = draws.sample(1000, seed=0, split="train")
    assert torch.equal(batch.y, again.y)
    noise = (batch.y - batch.phi.apply(batch.signal)).abs().square().mean(1)
    assert float((noise / batch.noise_var).mean()) == pytest.approx(1.0, abs=0.03)
    snr = -10 * torch.log10(batch.noise_var)
    assert float(snr.min()) == pytest.approx(-10, abs=0.5)
    assert float(snr.max()) == pytest.approx(30, abs=0.5)
    assert float(batch.signal.abs().square().mean()) == pytest.approx(1.0, abs=0.2)
    held_out = draws.sample(4, seed=0, split="validation")
    assert torch.equal(held_out.y, problem.sample(4, seed=0, split="validation").y)


def test_the_loss_is_the_nmse_of_each_group_of_like_snr() -> None:
    generator = torch.Generator().manual_seed(0)
    signal, estimate = (torch.randn(32, 5, dtype=torch.complex64, generator=generator) for _ in range(2))
    noise_var = torch.rand(32, generator=generator)
    phi = KroneckerMap(torch.eye(5, dtype=torch.complex64), torch.eye(1, dtype=torch.complex64))
    batch = Batch(signal, signal, phi, noise_var)
    quiet = noise_var <= noise_var.sort().values[15]
    expected = [nmse_db(estimate[some], signal[some]) for some in (quiet, ~quiet)]
    assert grouped_nmse_db(estimate, batch).tolist() == pytest.approx(expected, rel=1e-4)


def test_the_starting_dictionary_points_where_the_power_is(problem: chanest.ChannelProblem) -> None:
    start = starting_dictionary(problem).requires_grad_(False).frozen()
    signal = problem.channels(256, seed=5, split="train")
    grid = problem.dictionary(oversampling=1.5)
    kept, whole = (each.adjoint(signal).abs().square().mean() for each in (start, grid))
    assert start.tx.shape == (8, 16)
    assert start.rx.shape == (2, 3)
    assert float(kept) > 1.2 * float(whole)


def _factors(dtype: torch.dtype) -> KroneckerMap:
    shapes = ((4, 3, 4), (4, 2, 3), (4, 5, 2))
    delay, tx, rx = (
        torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))
        for seed, shape in enumerate(shapes)
    )
    return KroneckerMap(rx, tx, delay)


@pytest.mark.parametrize("check", MAP_CHECKS, ids=lambda check: check.__name__)
def test_batched_kronecker_map(check: Callable[[MapCase, torch.dtype], None]) -> None:
    check(MapCase("batched kronecker", _factors), torch.complex128)


def test_a_batched_kronecker_map_of_equal_factors_is_the_shared_one() -> None:
    batched = _factors(torch.complex64).select(torch.tensor([1, 1]))
    assert isinstance(batched, KroneckerMap)
    delay, tx, rx = (factor[0] for factor in batched.factors)
    torch.testing.assert_close(batched.materialize()[:1], KroneckerMap(rx, tx, delay).materialize())
    with pytest.raises(ValueError, match="tx must be a matrix"):
        KroneckerMap(rx, tx[None])


@pytest.fixture(scope="module")
def vlista(trained: dict[str, ChannelEstimator]) -> VLISTAEstimator:
    estimator = trained["vlista"]
    assert isinstance(estimator, VLISTAEstimator)
    return estimator


def test_vlista_draws_depend_on_seed_and_draw_alone(problem: chanest.ChannelProblem, vlista: VLISTAEstimator) -> None:
    batch = problem.sample(6, seed=3, snr_db=10.0)
    out = vlista.estimate(batch.y, batch.phi, batch.noise_var, n_samples=4, seed=1)
    assert out.samples is not None
    assert out.samples.shape == (4, 6, 16)
    torch.testing.assert_close(out.signal, out.samples.mean(0))
    part = batch.select(torch.tensor([4, 2]))
    alone = vlista.estimate(part.y, part.phi, part.noise_var, n_samples=3, seed=1)
    assert alone.samples is not None
    torch.testing.assert_close(alone.samples, out.samples[:3, [4, 2]], atol=1e-5, rtol=1e-4)
    other = vlista.estimate(batch.y, batch.phi, batch.noise_var, n_samples=4, seed=2)
    assert not torch.allclose(other.signal, out.signal)
    with pytest.raises(ValueError, match="n_samples must be an integer of at least 2"):
        vlista.estimate(batch.y, batch.phi, batch.noise_var, n_samples=1)


def test_vlista_takes_any_number_of_measurements(problem: chanest.ChannelProblem, vlista: VLISTAEstimator) -> None:
    batch = problem.sample(32, seed=3, snr_db=20.0)
    phi = batch.phi.materialize()
    fewer = vlista.estimate(batch.y[:, :8], phi[:, :8], batch.noise_var).signal
    assert nmse_db(fewer, batch.signal) < 0.0
