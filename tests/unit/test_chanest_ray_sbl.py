"""SBL over rays on arrays small enough to check against whole matrices; the orientation is fixed, so directions recur."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor

import chanest.estimators.ray_sbl as module
from chanest.covariances.directions import distinct
from chanest.covariances.lags import BeamView
from chanest.estimators.ray_sbl import RaySBL
from chanest.fit import Fit
from chanest.problem import ChannelProblem
from chanest.scenario import Scenario
from vlista_core.estimate import Measurement
from vlista_core.gaussian import condition

SAMPLES = 500
THINNED = 25
"""Every so many directions are checked where all pairs would take long."""


@functools.cache
def _problem() -> ChannelProblem:
    return ChannelProblem(
        Scenario.model_validate(
            {
                "name": "site",
                "bs": {"rows": 32, "columns": 1},
                "ue": {"rows": 8, "columns": 1, "yaw": 180.0},
                "frontend": {"pilots": 20, "bits": 2},
            }
        )
    )


@functools.cache
def _fitted() -> RaySBL:
    estimator = RaySBL.build(_problem())
    estimator.fit(_problem(), Fit(steps=1))
    return estimator


def _measured(count: int) -> Measurement:
    batch = _problem().sample(count, seed=5, split="validation", snr_db=20.0)
    return Measurement(batch.y, batch.phi, batch.noise_var)


def _atoms(estimator: RaySBL) -> Tensor:
    """a_t,i ⊗ a_r,j of every so many directions: [departures, arrivals, n]."""

    def steering(phases: Tensor, rows: int) -> Tensor:
        angle = phases[::THINNED, 1:] * torch.arange(rows)
        return torch.polar(torch.ones_like(angle), angle)

    transmit, receive = steering(estimator.departing, 32), steering(estimator.arriving, 8)
    return (transmit[:, None, :, None] * receive[None, :, None, :]).flatten(2)


def test_it_starts_from_the_covariance_that_the_rays_of_training_channels_give() -> None:
    source = _problem().source
    factors = source.factors(source.rays(range(SAMPLES), seed=0, split="train"))
    power = factors.gains.abs().square().sum((1, 2)) * source.scale**2
    pairs = (factors.tx[..., :, None] * factors.rx[..., None, :]).flatten(0, 1).flatten(1)
    expected = (power.flatten()[:, None] * pairs).mT @ pairs.conj() / SAMPLES
    estimator = _fitted()
    got = estimator.covariance(estimator.powers.flatten()[None], estimator.directions).materialize()[0]
    torch.testing.assert_close(got, expected, rtol=0, atol=3e-3)


def test_what_it_compares_is_the_power_of_every_pair_with_the_power_it_expects() -> None:
    estimator, measured = _fitted(), _measured(3)
    view, directions = BeamView(estimator.layout, measured.phi), estimator.directions
    powers = estimator.powers.flatten().expand(3, -1)
    step = condition(estimator.covariance(powers, estimator.directions, view), measured)
    phi, atoms = measured.phi.materialize(), _atoms(estimator)
    expected = torch.einsum("dai,bij,daj->bda", atoms.conj(), phi.mH @ step.precision @ phi, atoms).real
    found = torch.einsum("dai,bi->bda", atoms.conj(), step.gradient).abs().square()
    pairs = (3, len(estimator.departing), len(estimator.arriving))
    got = (directions.sums(view.pulled_back(step.precision)), directions.adjoint(step.gradient).abs().square())
    for mine, theirs in zip(got, (expected, found), strict=True):
        some = mine.reshape(pairs)[:, ::THINNED, ::THINNED]
        torch.testing.assert_close(some, theirs, rtol=1e-3, atol=1e-3 * float(theirs.max()))


def test_steps_raise_the_likelihood(monkeypatch: pytest.MonkeyPatch) -> None:
    estimator, measured = _fitted(), _measured(8)

    def evidence(iterations: int) -> Tensor:
        monkeypatch.setattr(module, "ITERATIONS", iterations)
        return condition(estimator.prior(measured), measured).log_evidence

    values = torch.stack([evidence(iterations) for iterations in range(5)])
    assert bool((values.diff(dim=0) > 0).all())


def test_many_directions_become_their_means_also_across_the_edge_of_phases() -> None:
    phases = torch.tensor([[3.13, 0.0], [-3.13, 0.0], [0.1, 1.0], [0.12, 1.0]])
    found, which = distinct(phases, 2, seed=0)
    assert which[0] == which[1] != which[2] == which[3]
    near = torch.cos(found[which] - phases)
    assert float(near.min()) > 0.999


def test_a_wideband_scenario_is_refused_in_one_sentence() -> None:
    wide = _problem().scenario.model_dump()
    wide["channel"]["subcarriers"] = 8
    with pytest.raises(ValueError, match="one subcarrier"):
        RaySBL.check(ChannelProblem(Scenario.model_validate(wide)))
