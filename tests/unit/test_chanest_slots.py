"""Slots of moving users: their pilots as Φ, slot-lmmse, and the link over them, against the textbook and against Sionna."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import chanest
from chanest.channels.sionna_backend import global_state_kept
from chanest.estimators import slot_lmmse
from chanest.estimators.slot_lmmse import SlotLMMSE
from chanest.fit import Fit
from chanest.frontend import GridMap
from chanest.link import LinkSetup
from chanest.link.interpolation import LMMSEInterpolation
from chanest.link.receivers import receiver
from chanest.link.slots import SlotLink, covariances, link_of
from chanest.scenario import Scenario
from chanest.sionna import EstimatorBlock
from chanest.studies.link import LinkStudy, usable_receivers
from vlista_core.estimate import Measurement
from vlista_core.metrics import nmse_db

with global_state_kept():
    from sionna.phy.nr import PUSCHConfig, PUSCHReceiver, PUSCHTransmitter
    from sionna.phy.ofdm import LMMSEChannelEstimator, LSChannelEstimator

SYMBOLS, SUBCARRIERS = 14, 24
KRONECKER = {"kind": "kronecker", "symbols": [2, 11]}
DMRS = {"kind": "dmrs", "additional": 1}


def _scenario(pattern: dict[str, Any] = KRONECKER, **frontend: Any) -> Scenario:
    """Two antennas to two, a slot of two resource blocks."""
    content = {
        "name": "small-slot",
        "bs": {"rows": 1, "columns": 2, "yaw_spread": 60.0},
        "ue": {"rows": 1, "columns": 2, "yaw": 180.0, "yaw_spread": 180.0},
        "channel": {
            "models": ["C"], "carrier": 3.5e9, "delay_spread": 300e-9, "subcarriers": SUBCARRIERS, "subcarrier_spacing": 30e3,
            "speed": [30.0, 30.0], "snapshots": SYMBOLS, "snapshot_interval": 35.7e-6,
        },
        "frontend": {"pilots": 4, "beams": "identity", "snapshots": SYMBOLS, "pattern": pattern, **frontend},
        "data": {"train": 500, "validation": 60, "test": 60},
    }  # fmt: skip
    return Scenario.model_validate(content)


@cache
def _problem() -> chanest.ChannelProblem:
    return chanest.ChannelProblem(_scenario())


@cache
def _estimator() -> SlotLMMSE:
    estimator = SlotLMMSE.build(_problem())
    estimator.fit(_problem(), Fit(steps=1))
    return estimator.eval()


def test_all_samples_share_the_pilots_of_antennas() -> None:
    batch = _problem().sample(5, seed=1, snr_db=200.0)
    phi = batch.phi
    assert isinstance(phi, GridMap)
    assert phi.batch is None
    torch.testing.assert_close(batch.y, phi.apply(batch.signal))
    one = _problem().sample(1, seed=1, start=3, snr_db=200.0)
    torch.testing.assert_close(one.y[0], batch.y[3])
    assert phi.elements.unique(dim=0)[:, 0].unique().tolist() == [2, 11]


def test_the_estimate_and_its_variance_are_those_of_the_textbook() -> None:
    batch = _problem().sample(4, seed=2, snr_db=10.0)
    out = _estimator().estimate(batch.y, batch.phi, batch.noise_var)
    prior = _estimator().prior(Measurement(batch.y, batch.phi, batch.noise_var)).materialize()[0]
    phi = batch.phi.materialize()[0]
    total = phi @ prior @ phi.mH + batch.noise_var[0] * torch.eye(len(phi))
    gain = torch.linalg.lstsq(total, phi @ prior).solution.mH
    torch.testing.assert_close(out.signal, batch.y @ gain.mT, rtol=1e-3, atol=1e-3)
    expected = (prior - gain @ phi @ prior).diagonal().real
    assert out.variance is not None
    torch.testing.assert_close(out.variance[0], expected, rtol=2e-2, atol=1e-4)


def test_what_lies_between_pilots_comes_out_with_its_variance() -> None:
    batch = _problem().sample(60, seed=3, snr_db=15.0)
    out = _estimator().estimate(batch.y, batch.phi, batch.noise_var)
    assert out.variance is not None
    wrong = (out.signal - batch.signal).abs().square().reshape(60, SYMBOLS, -1)
    told = out.variance.reshape(60, SYMBOLS, -1)
    at, between, beyond = [2, 11], [6, 7], [0, 13]
    for symbols in (at, between, beyond):
        assert float(wrong[:, symbols].mean()) == pytest.approx(float(told[:, symbols].mean()), rel=0.25)
    assert told[:, between].mean() < told[:, at].mean() < 0.8 * told[:, beyond].mean()


def test_weights_serve_other_pilots_of_the_same_grid() -> None:
    """They are of the channel: trained with whole symbols of pilots, used with DMRS under codes."""
    batch = chanest.ChannelProblem(_scenario(DMRS)).sample(40, seed=4, snr_db=15.0)
    out = _estimator().estimate(batch.y, batch.phi, batch.noise_var)
    assert out.variance is not None
    error = float((out.signal - batch.signal).abs().square().mean())
    assert error == pytest.approx(float(out.variance.mean()), rel=0.3)
    assert error < 10**-1.5


def test_axes_that_know_of_each_other_are_better_than_separate_ones() -> None:
    facts = SlotLMMSE.build(_problem()).fit(_problem(), Fit(steps=1))
    assert float(str(facts["validation_nmse_db"])) < float(str(facts["validation_nmse_db_separable"])) - 0.05


def test_more_entries_than_memory_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_lmmse, "_LONGEST", 10)
    with pytest.raises(
        ValueError, match=r"at most 10 x 10 entries; small-slot has \d+ modes of time, \d+ of delay and 4"
    ):
        SlotLMMSE.build(_problem()).fit(_problem(), Fit(steps=1))


def test_estimators_of_one_snapshot_name_the_one_for_slots() -> None:
    with pytest.raises(ValueError, match=r"lmmse is for one snapshot at a time; a sample of .* has 14"):
        chanest.get_estimator("lmmse", _problem())


def test_pilots_that_are_neither_beams_nor_all_antennas_are_refused() -> None:
    with pytest.raises(ValueError, match=r"frontend\.pilots must be at most 2, the size of the array, got 8"):
        _scenario(pilots=8)


def _link() -> tuple[SlotLink, list[Any], Any]:
    link = link_of(LinkSetup(scenario=_scenario(), modulation="qpsk"))
    assert isinstance(link, SlotLink)
    validation = [link.draw(30, seed=1, split="validation", start=0, snr_db=8.0)]
    return link, validation, link.draw(60, seed=1, split="test", start=0, snr_db=8.0)


def test_the_joint_estimate_is_nearer_and_loses_fewer_bits_than_sionnas() -> None:
    link, validation, blocks = _link()
    levels, wrong = {}, {}
    for name in ("sionna-ls", "sionna-linear", "sionna-lmmse", "slot-lmmse", "perfect"):
        h_hat, err_var = receiver(name, link, validation, _estimator() if name == "slot-lmmse" else None)[0](blocks)
        assert h_hat.shape == blocks.truth.shape == (60, 1, 2, 1, 2, SYMBOLS, SUBCARRIERS)
        levels[name] = float((h_hat - blocks.truth).abs().square().mean())
        wrong[name] = int((link.decode(blocks, h_hat, err_var) != blocks.bits).sum())
    assert (
        levels["perfect"]
        < levels["slot-lmmse"]
        < levels["sionna-lmmse"]
        < levels["sionna-linear"]
        < levels["sionna-ls"]
    )
    assert wrong["perfect"] < wrong["slot-lmmse"] < wrong["sionna-linear"] < wrong["sionna-ls"]


@pytest.mark.parametrize("order", ["t-f-s", "f-t-s", "s-t-f", "s-f-t"])
def test_interpolation_with_shared_filters_is_sionnas(order: str) -> None:
    link, _, blocks = _link()
    known = covariances(link, 50)
    ours = LMMSEInterpolation(link.setup.layout, *known, order=order, no=blocks.no)(blocks.y)
    with global_state_kept():
        theirs = LMMSEChannelEstimator(link.grid, *known, order=order)(blocks.y, torch.tensor(blocks.no))
    for mine, its in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-3, atol=1e-4)


def test_what_arrives_at_the_pilots_is_what_the_scenario_measures() -> None:
    link = link_of(LinkSetup(scenario=_scenario(), modulation="qpsk"))
    blocks = link.draw(3, seed=1, split="test", start=2, snr_db=300.0)
    batch = _problem().sample(3, seed=1, start=2, snr_db=300.0)
    torch.testing.assert_close(blocks.training.y, batch.y, rtol=1e-4, atol=1e-5)
    setup = link.setup
    assert setup.coded_bits == 2 * 12 * SUBCARRIERS * 2
    assert setup.peak_efficiency == pytest.approx(0.5 * setup.coded_bits / (SYMBOLS * SUBCARRIERS))


def test_a_link_over_slots_says_what_it_cannot_take() -> None:
    with pytest.raises(
        ValueError, match=r"streams that are antennas .* small-slot has beams = 'quantised', pilots = 4"
    ):
        LinkSetup(scenario=_scenario(beams="quantised")).check_blocks()
    flat = LinkStudy(scenario=chanest.load_scenario("cdl_c_upa64x4"), receivers=("sionna-linear",))
    with pytest.raises(ValueError, match="sionna-linear interpolates over slots; a block of cdl_c_upa64x4 is flat"):
        flat.check()
    usable, _ = usable_receivers(_scenario())
    assert {"sionna-linear", "sionna-lmmse", "perfect"} <= set(usable)
    assert "genie-angles" not in usable


def _nmse_db(h_hat: Tensor, truth: Tensor) -> float:
    return nmse_db(h_hat.flatten(1), truth.flatten(1))


def _pusch(antennas: int) -> PUSCHTransmitter:
    with global_state_kept():
        settings = PUSCHConfig(num_antenna_ports=antennas, num_layers=antennas)
        settings.carrier.subcarrier_spacing, settings.carrier.n_size_grid = 30, SUBCARRIERS // 12
        settings.dmrs.additional_position = 1
        settings.tb.mcs_index = 4
        return PUSCHTransmitter(settings)


def test_it_stands_in_the_pusch_receiver_where_least_squares_does() -> None:
    """Two layers with DMRS under one code, at 30 m/s: fewer bits are lost than with Sionna's own estimator."""
    problem = chanest.ChannelProblem(_scenario(DMRS))
    estimator = SlotLMMSE.build(problem)
    estimator.fit(problem, Fit(steps=1))
    sender = _pusch(2)
    h = problem.channels(40, seed=7).reshape(40, SYMBOLS, SUBCARRIERS, 2, 2)
    generator, no = torch.Generator().manual_seed(1), torch.tensor(0.7)
    with global_state_kept(), torch.no_grad():
        sent, bits = sender(40)
        noise = torch.randn(40, 1, 2, SYMBOLS, SUBCARRIERS, dtype=torch.complex64, generator=generator)
        y = torch.einsum("blftr,btlf->brlf", h, sent[:, 0])[:, None] + no.sqrt() * noise
        truth = h.permute(0, 4, 3, 1, 2)[:, None, :, None]
        block = EstimatorBlock(sender.resource_grid, estimator.eval())
        h_hat, err_var = block(y, no)
        theirs = PUSCHReceiver(sender)
        least, _ = theirs._channel_estimator(y, no)
        lost = [int((each(y, no) != bits).sum()) for each in (PUSCHReceiver(sender, channel_estimator=block), theirs)]
    assert h_hat.shape == truth.shape == least.shape
    assert _nmse_db(h_hat, truth) < _nmse_db(least, truth) - 3.0
    assert float(err_var.mean()) == pytest.approx(float((h_hat - truth).abs().square().mean()), rel=0.3)
    assert 0 < lost[0] < 0.7 * lost[1]


def test_the_block_gives_what_the_estimator_gives() -> None:
    link = link_of(LinkSetup(scenario=_scenario(), modulation="qpsk"))
    blocks = link.draw(3, seed=1, split="test", start=0, snr_db=5.0)
    h_hat, err_var = EstimatorBlock(link.grid, _estimator())(blocks.y, torch.tensor(blocks.no))
    training = blocks.training
    out = _estimator().estimate(training.y, training.phi, blocks.no)
    assert out.variance is not None

    def over_grid(values: Tensor) -> Tensor:
        return values.reshape(3, SYMBOLS, SUBCARRIERS, 2, 2).permute(0, 4, 3, 1, 2)[:, None, :, None]

    torch.testing.assert_close(h_hat, over_grid(out.signal))
    torch.testing.assert_close(err_var, over_grid(out.variance))
    with pytest.raises(ValueError, match="2 streams to 3 antennas over 14 symbols and 24 subcarriers have 2016"):
        EstimatorBlock(link.grid, _estimator())(blocks.y.repeat(1, 1, 2, 1, 1)[:, :, :3], torch.tensor(0.1))
    with global_state_kept():
        least, _ = LSChannelEstimator(link.grid, interpolation_type="lin")(blocks.y, torch.tensor(blocks.no))
    assert _nmse_db(h_hat, blocks.truth) < _nmse_db(least, blocks.truth)
