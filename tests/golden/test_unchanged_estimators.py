"""Every shipped estimator and every bound gives the figures that it gave at commit b945330, before the code was put in order.

unchanged_estimators.json was written by that commit: scenario -> estimator -> SNR -> [NMSE in dB, mean variance in dB or null],
of the first test draws of seed 11 (names as they are now). The weights are the same; only their headers were rewritten.
Networks that were trained again since, over other numbers of pilots, are left out, and dlista, which now scales Φ to its usual
norm (worse by 0.00 to 0.03 dB on 200 validation draws of each of its scenarios). The figures of wideband_64x4 are of commit
5095a66, whose file was in single precision.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
import torch

import chanest
from chanest.bounds import BOUNDS
from chanest.problem import ChannelBatch, ChannelProblem
from vlista_core.metrics import nmse_db

RECORDED: dict[str, dict[str, dict[str, list[float | None]]]] = json.loads(
    Path(__file__).with_name("unchanged_estimators.json").read_text(encoding="utf-8")
)
DRAWS = {"cdl_c_upa64x4": 6, "cdl_mix_upa64x4": 6, "hybrid_64x16": 2, "score_64x16": 1, "wideband_64x4": 4}
BOUND_DRAWS = 2
CASES = [(scenario, name) for scenario, names in RECORDED.items() for name in names]


@cache
def _problem(scenario: str) -> ChannelProblem:
    return ChannelProblem(chanest.load_scenario(scenario))


@cache
def _batch(scenario: str, snr_db: float) -> ChannelBatch:
    return _problem(scenario).sample(DRAWS[scenario], seed=11, snr_db=snr_db)


@pytest.mark.parametrize(("scenario", "name"), CASES)
def test_figures_are_those_of_before(scenario: str, name: str) -> None:
    for snr, (nmse, spread) in RECORDED[scenario][name].items():
        batch = _batch(scenario, float(snr))
        if name in BOUNDS:
            bound = BOUNDS[name](_problem(scenario))
            assert bound.nmse_db(batch.select(torch.arange(BOUND_DRAWS))) == pytest.approx(nmse, abs=1e-3)
            continue
        estimator = chanest.get_estimator(name, _problem(scenario), guarded=False)
        out = estimator.estimate(batch.y, batch.phi, batch.noise_var)
        assert nmse_db(out.signal, batch.signal) == pytest.approx(nmse, abs=1e-3)
        if spread is not None:
            assert out.variance is not None
            mean = 10 * float(out.variance.clamp_min(1e-30).log10().mean())
            assert mean == pytest.approx(spread, abs=5e-3)
