"""90 % intervals of the shipped estimators cover 88 to 92 % of the entries of fresh channels, at each of 0, 10 and 20 dB.

That is the figure of docs/results/calibration, from 1,000 channels. Here are few, so that the test is quick, and the band is
wider by two standard errors of the share, which come from how much it differs from channel to channel.
"""

from __future__ import annotations

import functools
import math

import pytest

import chanest
from chanest.problem import ChannelBatch, ChannelProblem
from chanest.weights import SHIPPED, calibration_file, find_calibration, find_weights
from vlista_core.metrics import coverage

NAME = "cdl_c_upa64x4"
CHANNELS = {"vlista": 64, "lmmse": 64, "gated-lmmse": 64, "gmm": 16}


@functools.cache
def _problem() -> ChannelProblem:
    return ChannelProblem(chanest.load_scenario(NAME))


@functools.cache
def _batch(channels: int, snr_db: float) -> ChannelBatch:
    return _problem().sample(channels, seed=21, split="test", snr_db=snr_db)


@pytest.mark.parametrize("snr_db", [0.0, 10.0, 20.0])
@pytest.mark.parametrize("name", CHANNELS)
def test_ninety_percent_intervals_cover_ninety_percent(name: str, snr_db: float) -> None:
    batch = _batch(CHANNELS[name], snr_db)
    out = chanest.get_estimator(name, _problem()).estimate(batch.y, batch.phi, batch.noise_var)
    assert out.variance is not None
    inside = (out.signal - batch.signal).abs().square() <= -math.log(0.1) * out.variance
    error = float(inside.double().mean(1).std()) / math.sqrt(len(batch))
    share = coverage(out.signal, out.variance, batch.signal, 0.9)
    assert 0.88 - 2 * error <= share <= 0.92 + 2 * error


@pytest.mark.parametrize("name", ["ls", *CHANNELS])
def test_shipped_calibrations_belong_to_the_shipped_weights(name: str) -> None:
    assert (SHIPPED / calibration_file(name, NAME)).is_file()
    estimator = chanest.get_estimator(name, _problem())
    found = find_calibration(estimator, _problem(), find_weights(name, NAME), NAME)
    assert found is not None
    assert found.provenance["split"] == "validation"
    assert found.provenance["channel_hash"] == _problem().scenario.channel_hash()
    assert found.uses_raw == (name in ("lmmse", "gmm", "gated-lmmse", "vlista"))
