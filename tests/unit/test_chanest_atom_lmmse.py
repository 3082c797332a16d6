"""atom-lmmse on arrays small enough to check against whole matrices."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch import Tensor

from chanest.bases.unfolded import grouped_nmse_db
from chanest.covariances.directions import DirectionCovariance, Directions, SeenDirections
from chanest.covariances.lag_layout import LagLayout
from chanest.estimators.atom_lmmse import AtomLMMSE
from chanest.fit import Fit
from chanest.networks.powers import PowerNetwork, PowerTraining, atom_powers
from chanest.problem import ChannelProblem
from chanest.scenario import Scenario
from vlista_core.estimate import Measurement
from vlista_core.problems import Batch


@functools.cache
def _problem(model: str = "C") -> ChannelProblem:
    return ChannelProblem(
        Scenario.model_validate(
            {
                "name": "turning",
                "bs": {"rows": 2, "columns": 6, "yaw_spread": 60.0},
                "ue": {"rows": 1, "columns": 2, "yaw": 180.0, "yaw_spread": 180.0},
                "channel": {"models": [model]},
                "frontend": {"pilots": 6, "bits": 2},
            }
        )
    )


@functools.cache
def _fitted() -> AtomLMMSE:
    estimator = AtomLMMSE.build(_problem())
    estimator.fit(_problem(), Fit(steps=30))
    return estimator


def _measured(count: int) -> Measurement:
    batch = _problem().sample(count, seed=5, split="validation", snr_db=20.0)
    return Measurement(batch.y, batch.phi, batch.noise_var)


def _dictionary(estimator: AtomLMMSE) -> Tensor:
    """Ψ: [n, atoms]."""
    return estimator.directions.materialize()[0].detach()


def test_a_layer_is_the_thresholded_wiener_filter_of_the_powers_that_the_network_gives() -> None:
    estimator, measured = copy.deepcopy(_fitted()), _measured(5)
    estimator.threshold.data.fill_(-1.5)
    psi, phi = _dictionary(estimator), measured.phi.materialize()
    noise = measured.noise_var + float(estimator.misfit.detach().exp())
    noisy = estimator.with_misfit(measured)
    with torch.no_grad():
        seen = estimator.look(noisy, SeenDirections(estimator.directions, measured.phi))
        powers = estimator.powers(noisy, *seen)
    product = phi @ psi

    def code(p: Tensor) -> Tensor:
        total = (product * p[:, None, :]) @ product.mH + noise[:, None, None] * torch.eye(len(phi[0]))
        return p * (product.mH @ torch.cholesky_solve(measured.y[..., None], torch.linalg.cholesky(total)))[..., 0]

    out = estimator.infer(measured)
    assert out.code is not None
    moved = code(powers)
    threshold = float(estimator.threshold.detach().exp()) * moved.abs().square().mean(1, keepdim=True).sqrt()
    expected = moved * (1 - threshold / moved.abs()).clamp_min(0.0)
    torch.testing.assert_close(out.code.detach(), expected, rtol=1e-3, atol=1e-4)
    assert 0.0 < float((out.code == 0).float().mean()) < 0.9
    torch.testing.assert_close(out.signal.detach(), out.code.detach() @ psi.mT, rtol=1e-3, atol=1e-4)
    mean = estimator.mean_powers.detach().exp().expand_as(powers)
    torch.testing.assert_close(
        seen[0], (product.mH @ measured.y[..., None])[..., 0].abs().square(), rtol=1e-3, atol=1e-2
    )
    torch.testing.assert_close(seen[1], (code(mean) / mean).abs().square(), rtol=2e-3, atol=1e-2)


def test_the_gradient_of_the_error_is_that_through_the_factorisation() -> None:
    estimator = AtomLMMSE(*_problem().arrays, departures=6, arrivals=4, profiles=5, hidden=8)
    training = PowerTraining(estimator, _problem(), Fit(steps=1))
    batch = training.draws.sample(256, seed=0, split="train")
    names = ("departing", "arriving", "misfit", "threshold", "network.free", "network.layers.2.weight")
    parameters = dict(estimator.named_parameters())
    implicit = torch.autograd.grad(training.error(batch), [parameters[name] for name in names])
    explicit = torch.autograd.grad(_through_the_factor(estimator, batch), [parameters[name] for name in names])
    for name, got, expected in zip(names, implicit, explicit, strict=True):
        torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-3 * float(expected.abs().max()), msg=name)


def _through_the_factor(estimator: AtomLMMSE, batch: Batch) -> Tensor:
    noisy = estimator.with_misfit(Measurement(batch.y, batch.phi, batch.noise_var))
    with torch.no_grad():
        seen = estimator.look(noisy, SeenDirections(estimator.directions, noisy.phi))
    powers = estimator.powers(noisy, *seen)
    prior = DirectionCovariance(powers, estimator.directions)
    matrix, phi = prior.materialize(), noisy.phi.materialize()
    total = phi @ matrix @ phi.mH + noisy.noise_var[:, None, None] * torch.eye(phi.shape[1])
    white = torch.cholesky_solve(noisy.y[..., None], torch.linalg.cholesky(total))
    signal = estimator.directions.apply(estimator.code(prior, (phi.mH @ white)[..., 0]))
    return grouped_nmse_db(signal, batch).mean()


@pytest.mark.parametrize("model", ["C", "D"])
def test_powers_of_atoms_give_about_the_covariance_of_the_clusters(model: str) -> None:
    problem = _problem(model)
    layout = LagLayout(*problem.arrays)
    rays = problem.source.rays(range(40), seed=1, split="train")
    grid = torch.cartesian_prod(*(torch.linspace(-3.0, 3.0, 25) for _ in range(2)))
    directions = Directions.of(grid, torch.stack([torch.linspace(-3.0, 3.0, 40), torch.zeros(40)], 1), layout)
    powers = atom_powers(problem.source, rays, directions)
    torch.testing.assert_close(powers.sum(1).mean(), torch.tensor(1.0), atol=0.25, rtol=0.0)
    got = DirectionCovariance(powers, directions).materialize()
    expected = layout.matrix(layout.of_rays(problem.source, rays))
    assert float((got - expected).norm() / expected.norm()) < 0.45
    shuffled = expected[torch.arange(40).roll(7)]
    assert float((got - expected).norm()) < 0.6 * float((got - shuffled).norm())


def test_profiles_are_rounded_by_a_few_per_cent() -> None:
    network = PowerNetwork(atoms=30, profiles=4, hidden=8, generator=torch.Generator().manual_seed(0))
    powers = torch.rand(50, 30, generator=torch.Generator().manual_seed(1)) ** 6
    network.start(powers, seed=0)
    before = network.profiles().detach()
    network.settle()
    assert network.free is None
    torch.testing.assert_close(network.profiles(), before, rtol=0.027, atol=3e-6)


def test_what_it_is_not_for_is_refused_in_one_sentence() -> None:
    wide = _problem().scenario.model_dump()
    wide["channel"]["subcarriers"] = 8
    wide["frontend"]["pattern"] = {"kind": "comb", "spacing": 2}  # measured alike, they would be taken in delay modes
    with pytest.raises(ValueError, match="one subcarrier; turning has 8"):
        AtomLMMSE.check(ChannelProblem(Scenario.model_validate(wide)))
    crossed = _problem().scenario.model_dump()
    crossed["ue"]["polarization"] = "VH"
    with pytest.raises(ValueError, match="one polarisation; turning has V to VH"):
        AtomLMMSE.check(ChannelProblem(Scenario.model_validate(crossed)))
