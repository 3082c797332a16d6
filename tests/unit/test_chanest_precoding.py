"""Data beams chosen from an estimate, and the rate that comes of them."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch
from torch import Tensor

import chanest
from chanest.link import LinkSetup
from chanest.link.blocks import Blocks, Link, over_grid
from chanest.link.precoding import hybrid_beams, rate, sender
from chanest.studies.link import LinkStudy, usable_receivers

SNR_DB = -4.0


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.complex64, generator=torch.Generator().manual_seed(seed))


@cache
def _link(streams: int = 2) -> Link:
    scenario = chanest.load_scenario("cdl_c_upa64x4")
    return Link(LinkSetup(scenario=scenario, streams=streams, data_symbols=8, precoding="hybrid"))


def _blocks(link: Link, count: int, split: str = "test", snr_db: float = SNR_DB) -> Blocks:
    return link.draw(count, seed=1, split="test" if split == "test" else "validation", start=0, snr_db=snr_db)


@pytest.mark.parametrize("bits", [1, 2, 12])
def test_two_phase_shifters_of_many_bits_make_any_beam_and_two_bits_lose_little(bits: int) -> None:
    channel = _random(20, 4, 32)
    beams = hybrid_beams(channel, None, 2, bits=bits)
    torch.testing.assert_close(beams.norm(dim=1), torch.ones(20, 2))
    gain = (channel @ beams).abs().square().sum((1, 2))
    best = torch.linalg.svdvals(channel)[:, :2].square().sum(1)
    least = {1: 0.6, 2: 0.75, 12: 0.9999}[bits]  # two bits cost a decibel of a channel without directions
    assert least < float((gain / best).mean()) <= 1.0001


def test_antennas_that_nobody_knows_get_power_only_from_what_is_known_of_them() -> None:
    """E[HᴴH] counts the variance: a beam goes where the channel may be strong, too."""
    channel, variance = torch.zeros(1, 1, 4, dtype=torch.complex64), torch.tensor([[[0.1, 0.1, 5.0, 0.1]]])
    beams = hybrid_beams(channel, variance, 1, bits=8)
    assert float(beams[0, 2].abs()) > 0.99


def test_the_data_go_through_the_chosen_beams_and_the_training_stays() -> None:
    link = _link()
    blocks = _blocks(link, 5, snr_db=300.0)
    beams = hybrid_beams(blocks.training.matrices()[:, 0], None, 2, bits=2)
    sent = link.through(blocks, beams)
    assert torch.equal(sent.y[:, :, :, : link.pilots], blocks.y[:, :, :, : link.pilots])
    effective = blocks.training.matrices()[:, 0] @ beams
    torch.testing.assert_close(sent.effective.mT, effective, rtol=1e-4, atol=1e-4)
    decided = link.decode(sent, over_grid(link, sent.effective), torch.tensor(1e-6))
    assert torch.equal(decided, sent.bits)


def test_one_stream_that_is_known_has_the_capacity_of_its_channel() -> None:
    link = _link(1)
    blocks = _blocks(link, 6)
    found = rate(blocks.truth, torch.zeros(()), blocks, link.carries_data)
    share = link.carries_data.float().mean()
    gain = blocks.effective.abs().square().sum((1, 2)) / blocks.no
    torch.testing.assert_close(found, share * torch.log2(1 + gain), rtol=1e-4, atol=1e-5)


def test_an_error_costs_rate_even_where_the_receiver_is_sure_of_itself() -> None:
    link = _link()
    blocks = _blocks(link, 50)
    wrong = blocks.truth + 0.5 * over_grid(link, _random(*blocks.effective.shape))
    right, sure, told = (
        float(rate(h_hat, torch.tensor(error), blocks, link.carries_data).mean())
        for h_hat, error in ((blocks.truth, 0.0), (wrong, 0.0), (wrong, 0.25))
    )
    assert sure < told < right
    assert right > 0.05
    turned = float(rate(-blocks.truth, torch.tensor(0.0), blocks, link.carries_data).mean())
    assert turned < right / 2, "a channel of the wrong sign is no channel"


def test_a_better_estimate_chooses_better_beams() -> None:
    link = _link()
    blocks, validation = _blocks(link, 64), [_blocks(link, 64, "validation")]
    rates, lost = {}, {}
    trained = float(rate(blocks.truth, torch.zeros(()), blocks, link.carries_data).mean())
    for name in ("ls", "gated-lmmse", "genie-angles", "perfect"):
        send, _ = sender(name, link, validation)
        sent, h_hat, err_var = send(blocks)
        rates[name] = float(rate(h_hat, err_var, sent, link.carries_data).mean())
        lost[name] = int((link.decode(sent, h_hat, err_var) != blocks.bits).any(1).sum())
    assert rates["ls"] < rates["gated-lmmse"] < rates["genie-angles"] < rates["perfect"]
    assert rates["gated-lmmse"] > 2 * trained, "beams that fit the channel carry more than random ones, all known"
    assert lost["perfect"] < lost["gated-lmmse"] < lost["ls"]


def test_the_study_has_a_rate_and_says_who_cannot_choose_beams() -> None:
    scenario = chanest.load_scenario("cdl_c_upa64x4")
    receivers, _ = usable_receivers(scenario, "hybrid")
    assert {"ls", "perfect", "genie-angles", "gated-lmmse"} <= set(receivers)
    assert not {"sionna-ls", "sionna-lmmse"} & set(receivers)
    with pytest.raises(ValueError, match="sionna-ls knows the trained beams alone"):
        LinkStudy(scenario=scenario, receivers=("sionna-ls",), precoding="hybrid").cells()
    for name in ("hybrid_64x16", "slot_4x4"):
        with pytest.raises(ValueError, match="precoding must be trained for slots and for receivers with RF chains"):
            LinkSetup(scenario=chanest.load_scenario(name), precoding="hybrid").check_blocks()


def test_the_capacity_is_counted_per_resource_element_of_the_whole_block() -> None:
    link = _link()
    data = link.carries_data
    assert data.shape == (link.pilots + 8, 2)
    assert math.isclose(float(data.float().mean()), 8 / (link.pilots + 8), rel_tol=1e-6)
