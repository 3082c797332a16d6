"""Several users in one slot: their channels, their pilots and codewords, and delay-sbl, which finds the delays of each."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch

import chanest
from chanest.covariances.delays import DelayCovariance
from chanest.estimators.delay_sbl import DelaySBL
from chanest.fit import Fit
from chanest.frontend import GridMap
from chanest.frontend.ports import pilots_of_ports
from chanest.link import LinkSetup
from chanest.link.receivers import receiver
from chanest.link.slots import SlotLink, link_of
from chanest.scenario import Scenario
from vlista_core.draws import Split
from vlista_core.estimate import Measurement
from vlista_core.gaussian import condition

SYMBOLS, SUBCARRIERS, USERS, ANTENNAS = 14, 48, 2, 4


def _content(**changed: Any) -> dict[str, Any]:
    content = chanest.load_scenario("uplink_16x4").model_dump(mode="json")
    content["bs"]["columns"] = ANTENNAS // 2
    content["channel"]["subcarriers"] = SUBCARRIERS
    content["frontend"] |= {"users": USERS, "pilots": 2 * USERS}
    content["data"] |= {"train": 96, "validation": 32, "test": 64}
    for section, keys in changed.items():
        content[section] |= keys
    return {**content, "name": "small-uplink"}


@cache
def _problem() -> chanest.ChannelProblem:
    return chanest.ChannelProblem(Scenario.model_validate(_content()))


@cache
def _estimator() -> DelaySBL:
    estimator = DelaySBL.build(_problem())
    estimator.fit(_problem(), Fit(steps=2))
    return estimator.eval()


def test_users_are_channels_of_their_own_stacked_along_the_transmit_antennas() -> None:
    problem = _problem()
    batch = problem.sample(3, seed=1, start=5, snr_db=200.0)
    h, _ = problem.source.sample(3 * USERS * SYMBOLS, seed=1, start=5 * USERS * SYMBOLS)
    tensor = h.reshape(3, USERS, SYMBOLS, SUBCARRIERS, ANTENNAS)
    assert torch.equal(batch.signal, tensor.permute(0, 2, 3, 1, 4).flatten(1))
    assert batch.rays is None
    assert isinstance(batch.phi, GridMap)
    assert batch.phi.users == USERS
    assert batch.phi.shape == (problem.measurements, problem.signal_length)
    torch.testing.assert_close(batch.y, batch.phi.apply(batch.signal))
    assert problem.scenario.data_set("test").count == 64 * USERS * SYMBOLS


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"channel": {"direction": "downlink"}},
            r"frontend\.users must be 1 unless channel\.direction = 'uplink', got 2",
        ),
        (
            {"frontend": {"snapshots": 1}},
            r"frontend\.users = 2 needs slots .* and 4 pilots, got snapshots = 1, .* pilots = 4",
        ),
    ],
)
def test_users_that_cannot_be_told_apart_are_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Scenario.model_validate(_content(**changed))


def test_pilots_of_ports_are_those_of_the_pattern_and_none_where_a_code_separates_them() -> None:
    phi = _problem().sample(1, seed=1).phi
    pilots = pilots_of_ports(phi)
    assert pilots is not None
    for user, mine in enumerate(pilots):
        assert mine.symbols.tolist() == [2, 11]
        assert mine.subcarriers.tolist() == list(range(user, SUBCARRIERS, USERS))
        assert float(mine.energy) == pytest.approx(USERS)
    codes = chanest.ChannelProblem(Scenario.model_validate(_content(frontend={"pattern": DMRS})))
    assert pilots_of_ports(codes.sample(1, seed=1).phi) is None


DMRS = {"kind": "dmrs", "additional": 1}


def test_more_steps_raise_the_evidence() -> None:
    batch = _problem().sample(6, seed=2, snr_db=5.0)
    measured = Measurement(batch.y, batch.phi, batch.noise_var)
    found: list[DelayCovariance | None] = [_estimator().ensemble()]
    found += [_estimator().ensemble().adapted(measured, steps) for steps in (1, 3, 9)]
    levels = [condition(prior, measured).log_evidence for prior in found if prior is not None]
    assert len(levels) == 4
    for before, after in pairwise(levels):
        assert bool((after > before).all())


def test_the_delays_that_y_shows_are_worth_decibels_and_the_variance_knows_of_them() -> None:
    batch = _problem().sample(32, seed=3, snr_db=5.0)
    out = _estimator().estimate(batch.y, batch.phi, batch.noise_var)
    prior = _estimator().ensemble()
    fixed = condition(prior, Measurement(batch.y, batch.phi, batch.noise_var)).mean
    wrong, before = ((each - batch.signal).abs().square().mean() for each in (out.signal, fixed))
    assert float(wrong) < 0.8 * float(before)
    assert out.variance is not None
    assert float(out.variance.mean()) == pytest.approx(float(wrong), rel=0.35)


def test_a_user_is_estimated_by_its_own_pilots_alone() -> None:
    batch = _problem().sample(4, seed=4, snr_db=10.0)
    grid = batch.signal.reshape(4, SYMBOLS, SUBCARRIERS, USERS, ANTENNAS)
    other = grid.clone()
    other[:, :, :, 1] *= 2.0
    y = batch.y + batch.phi.apply((other - grid).flatten(1))
    one, two = (
        _estimator().estimate(each, batch.phi, batch.noise_var).signal.reshape(grid.shape) for each in (batch.y, y)
    )
    torch.testing.assert_close(one[..., 0, :], two[..., 0, :])
    assert not torch.allclose(one[..., 1, :], two[..., 1, :], atol=0.1)


def test_each_user_has_a_codeword_and_better_estimates_lose_fewer_of_them() -> None:
    link = link_of(LinkSetup(scenario=_problem().scenario, modulation="qpsk"))
    assert isinstance(link, SlotLink)
    setup = link.setup
    assert setup.codewords == USERS
    assert setup.coded_bits == 12 * SUBCARRIERS * 2
    assert setup.peak_efficiency == pytest.approx(USERS * setup.information_bits / (SYMBOLS * SUBCARRIERS))

    def draw(split: Split) -> Any:
        return link.draw(48, seed=1, split=split, start=0, snr_db=-2.0)

    validation, blocks = [draw("validation")], draw("test")
    assert blocks.bits.shape == (48, USERS * setup.information_bits)
    lost, levels = {}, {}
    for name in ("sionna-ls", "sionna-lmmse", "delay-sbl", "perfect"):
        h_hat, err_var = receiver(name, link, validation, _estimator() if name == "delay-sbl" else None)[0](blocks)
        wrong = (link.decode(blocks, h_hat, err_var) != blocks.bits).unflatten(1, (USERS, -1))
        lost[name] = int(wrong.any(2).sum())
        levels[name] = float((h_hat - blocks.truth).abs().square().mean())
    assert levels["delay-sbl"] < levels["sionna-lmmse"] < levels["sionna-ls"]
    assert lost["perfect"] <= lost["delay-sbl"] <= lost["sionna-lmmse"] <= lost["sionna-ls"]
    assert lost["perfect"] < lost["sionna-ls"]
