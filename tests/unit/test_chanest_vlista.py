"""VLISTA on channels: the bound, what the posterior learns, and whether its own intervals hold."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

import chanest
from chanest.bases.draws import PooledDraws
from chanest.bases.unfolded import starting_dictionary
from chanest.dictionaries import KroneckerMap
from chanest.estimators.vlista import VLISTAEstimator
from chanest.fit import Fit
from chanest.networks.kronecker_vlista import KroneckerVLISTA
from chanest.uncertainty.estimate import of_samples
from chanest.weights import find_weights, uncalibrated
from vlista_core.estimate import Measurement
from vlista_core.linops import DenseMap
from vlista_core.metrics import coverage
from vlista_core.models.distributions import Gaussian
from vlista_core.problems import Batch


@pytest.fixture(scope="module")
def problem() -> chanest.ChannelProblem:
    settings: dict[str, object] = {
        "name": "tiny",
        "snr_db": [-10.0, 30.0],
        "bs": {"rows": 2, "columns": 2, "yaw_spread": 60.0},
        "ue": {"rows": 2, "columns": 1, "yaw": 180.0, "yaw_spread": 180.0},
        "channel": {"models": ["C"]},
        "frontend": {"pilots": 3, "beams": "quantised", "bits": 2},
    }
    return chanest.ChannelProblem(chanest.Scenario.model_validate(settings))


@pytest.fixture(scope="module")
def shipped() -> tuple[VLISTAEstimator, Batch]:
    """The shipped weights, as they are before calibration, and 200 fresh channels at 10 dB."""
    problem = chanest.ChannelProblem(chanest.load_scenario("cdl_c_upa64x4"))
    estimator = uncalibrated("vlista", problem, find_weights("vlista", "cdl_c_upa64x4"))
    assert isinstance(estimator, VLISTAEstimator)
    return estimator, problem.sample(200, seed=77, snr_db=10.0)


def _unsettled(problem: chanest.ChannelProblem, **options: str) -> KroneckerVLISTA:
    """A network all of whose weights are away from where they start, so that nothing cancels."""
    network = KroneckerVLISTA(starting_dictionary(problem), layers=3, hidden=8, **options)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return network


def _normal(mean: Tensor, deviation: Tensor) -> Normal:
    """A circular complex normal as one of its real and imaginary parts, each with half the variance."""
    parts = torch.view_as_real(mean.resolve_conj())
    return Normal(parts, (deviation.expand(mean.shape) / math.sqrt(2.0))[..., None].expand(parts.shape))


@pytest.mark.parametrize("options", [{}, {"deviations": "constant"}, {"likelihood": "constant"}], ids=str)
def test_the_bound_is_that_of_torchs_distributions(problem: chanest.ChannelProblem, options: dict[str, str]) -> None:
    network = _unsettled(problem, **options)
    batch = problem.sample(5, seed=3, split="train")
    found = network.elbo(batch, torch.Generator().manual_seed(1))
    noise = network.noise(5, torch.Generator().manual_seed(1), batch.y.device)
    run = network.run(batch.y, batch.phi, batch.noise_var, noise)
    measured = Measurement(batch.y, batch.phi, batch.noise_var)
    likelihood, divergence = torch.zeros(5), torch.zeros(5)
    for t, layer in enumerate(run.layers):
        signal = layer.dictionary.apply(layer.code)
        variance = network.likelihood(t, run.hidden[t], signal, measured)
        truth = torch.view_as_real(batch.signal)
        likelihood = likelihood + _normal(signal, variance.sqrt()).log_prob(truth).sum((1, 2))
        shared, before = (network.dictionary(place) for place in (t, max(0, t - 1)))
        assert isinstance(shared, KroneckerMap)
        assert isinstance(before, KroneckerMap)
        for i, posterior in enumerate(run.posteriors[t]):
            assert isinstance(posterior, Gaussian)
            unit = math.sqrt(shared.factors[i].shape[0])
            if t == 0:
                prior = _normal(torch.zeros_like(posterior.mean), torch.ones(1))
            else:
                tau = torch.sigmoid(network.priors[i].raw[t - 1])  # type: ignore[index]
                drift = run.drawn[t - 1][i] - unit * before.factors[i]
                prior = _normal(unit * shared.factors[i] + (1 - tau**2).sqrt() * drift, tau)
            posterior_normal = _normal(posterior.mean, posterior.deviation)
            divergence = divergence + kl_divergence(posterior_normal, prior).sum((1, 2, 3))
            used = (layer.dictionary.tx, layer.dictionary.rx)[i]  # type: ignore[attr-defined]
            torch.testing.assert_close(used * unit, posterior.mean + posterior.deviation * noise[t][i])
    torch.testing.assert_close(found.log_likelihood, likelihood, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(found.divergence, divergence, rtol=1e-4, atol=1e-3)
    loss = network.training_loss(batch, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(loss, -(likelihood - 1e-3 * divergence).mean() / 8, rtol=1e-4, atol=1e-4)
    loss.backward()
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in network.parameters())


def test_settling_changes_no_estimate_and_brings_variances_near_the_errors(problem: chanest.ChannelProblem) -> None:
    network = KroneckerVLISTA(starting_dictionary(problem), layers=3)
    train = problem.sample(256, seed=3, split="train")
    network.start_from(train)
    before = network.estimate(train.y, train.phi, train.noise_var)
    network.settle(train)
    after = network.estimate(train.y, train.phi, train.noise_var)
    torch.testing.assert_close(after.signal, before.signal, rtol=1e-3, atol=1e-3)
    for factor in network.dictionary(0).factors:  # type: ignore[attr-defined]
        assert float(factor.detach().abs().square().sum(0).mean()) == pytest.approx(1.0, rel=1e-4)
    assert after.variance is not None
    ratio = (after.signal - train.signal).abs().square().mean(1) / after.variance.mean(1)
    assert 0.5 < float(ratio.median()) < 2.0


def test_the_posterior_sees_the_code_the_measurement_and_phi(problem: chanest.ChannelProblem) -> None:
    network = _unsettled(problem)
    factors = [math.sqrt(len(factor)) * factor for factor in network.dictionary(0).factors]  # type: ignore[attr-defined]
    generator = torch.Generator().manual_seed(0)
    powers = [torch.rand(2, network.dictionary(0).shape[1], generator=generator) for _ in range(3)]
    noise_var = torch.full((2,), 0.1)

    def deviation() -> Tensor:
        posterior = network.posterior(1, tuple(powers), noise_var, factors)[0][0]
        assert isinstance(posterior, Gaussian)
        return posterior.deviation.detach()

    first = deviation()
    for seen in powers:
        seen[:, 0] *= 50.0
        again = deviation()
        assert float((again / first - 1).abs().max()) > 1e-3
        first = again


def test_deviations_are_learned_for_each_sample_and_atom_or_as_one_number(problem: chanest.ChannelProblem) -> None:
    draws = PooledDraws.within(problem, Fit(steps=1))
    batch = problem.sample(32, seed=3)

    def trained(**options: str) -> Tensor:
        """Deviations [layers, batch, atoms] of the transmit factor after a short training from 0.05."""
        network = KroneckerVLISTA(starting_dictionary(problem), layers=3, **options)  # type: ignore[arg-type]
        network.start_from(draws.sample(64, seed=0, split="train", snr_db=10.0))
        network.settle(draws.sample(128, seed=0, split="train"))
        optimizer = torch.optim.Adam(network.parameters(), lr=5e-3)
        for step in range(60):
            optimizer.zero_grad()
            some = draws.sample(32, seed=0, split="train", start=32 * step)
            network.training_loss(some, generator=torch.Generator().manual_seed(step)).backward()
            optimizer.step()
        with torch.no_grad():
            run = network.run(batch.y, batch.phi, batch.noise_var, None)
        found = [posteriors[0] for posteriors in run.posteriors]
        return torch.stack([q.deviation.expand(32, 1, q.mean.shape[2])[:, 0] for q in found if isinstance(q, Gaussian)])

    own, constant = trained(), trained(deviations="constant")
    assert float((own / 0.05).log().abs().mean()) > 0.2
    for axis in (1, 2):
        assert float((own.std(axis) / own.mean(axis)).mean()) > 0.05
    assert float(constant.std()) < 1e-7
    assert abs(math.log(float(constant.mean()) / 0.05)) > 0.1


def test_own_variance_is_that_of_the_draws_and_the_likelihoods(shipped: tuple[VLISTAEstimator, Batch]) -> None:
    estimator, every = shipped
    batch = every.select(torch.arange(6))
    out = estimator.estimate(batch.y, batch.phi, batch.noise_var, n_samples=4, seed=1)
    assert out.samples is not None
    assert out.variance is not None
    likelihood = out.variance - of_samples(out.samples, None)
    alone = estimator.estimate(batch.y, batch.phi, batch.noise_var).own_variance
    assert alone is not None
    torch.testing.assert_close(likelihood.log(), alone.log(), atol=0.3, rtol=0.0)
    identity = torch.eye(256, dtype=batch.y.dtype)[None].expand(6, -1, -1)
    through = out.variance_through(DenseMap(identity))
    assert through is not None
    torch.testing.assert_close(through, out.variance)


def test_an_unusual_unit_changes_nothing_but_the_unit(shipped: tuple[VLISTAEstimator, Batch]) -> None:
    estimator, every = shipped
    batch = every.select(torch.arange(4))
    out = estimator.estimate(batch.y, batch.phi, batch.noise_var, n_samples=3)
    large = estimator.estimate(100 * batch.y, batch.phi, 1e4 * batch.noise_var, n_samples=3)
    assert out.variance is not None
    assert large.variance is not None
    assert float((large.variance / out.variance).log10().mean()) == pytest.approx(4.0, abs=0.1)


def test_own_intervals_of_the_shipped_weights_cover_what_they_say(shipped: tuple[VLISTAEstimator, Batch]) -> None:
    estimator, batch = shipped
    out = estimator.estimate(batch.y, batch.phi, batch.noise_var, n_samples=4)
    alone = estimator.estimate(batch.y, batch.phi, batch.noise_var)
    assert out.samples is not None
    for found in (out, alone):
        assert found.own_variance is not None
        assert 0.80 <= coverage(found.signal, found.own_variance, batch.signal, 0.9) <= 0.97
    assert coverage(out.signal, of_samples(out.samples, None), batch.signal, 0.9) < 0.5


def test_deviations_of_the_shipped_weights_differ_by_sample_and_atom(shipped: tuple[VLISTAEstimator, Batch]) -> None:
    estimator, batch = shipped
    network = estimator.network
    assert isinstance(network, KroneckerVLISTA)
    with torch.no_grad():
        run = network.run(batch.y, batch.phi, batch.noise_var, None)
    for posteriors in run.posteriors:
        for posterior in posteriors:
            assert isinstance(posterior, Gaussian)
            deviation = posterior.deviation[:, 0]
            for axis in (0, 1):
                assert float((deviation.std(axis) / deviation.mean(axis)).mean()) > 0.1
            assert float((deviation / 0.05).log().abs().mean()) > 0.1


@pytest.mark.parametrize("options", [{"deviations": "many"}, {"likelihood": "sure"}, {"family": "cauchy"}], ids=str)
def test_what_is_not_known_is_refused(problem: chanest.ChannelProblem, options: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(options))} must be one of .*, got"):
        KroneckerVLISTA(starting_dictionary(problem), **options)  # type: ignore[arg-type]
