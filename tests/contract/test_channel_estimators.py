"""Every channel estimator of the registry meets the estimator contract, on a scenario small enough for CI."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

from chanest.estimators import ChannelEstimator, Fit, estimator_class, estimator_names
from chanest.problem import ChannelBatch, ChannelProblem
from chanest.scenario import ArraySection, CdlSection, DataSection, FrontendSection, Scenario
from vlista_core import checkpoint
from vlista_core.testing import ESTIMATOR_CHECKS, EstimatorCase


@cache
def _problem() -> ChannelProblem:
    return ChannelProblem(
        Scenario(
            name="small",
            bs=ArraySection(rows=2, columns=4, yaw_spread=60.0),
            ue=ArraySection(rows=1, columns=2, yaw=180.0, yaw_spread=180.0),
            channel=CdlSection(models=("C",)),
            frontend=FrontendSection(frames=6),
            data=DataSection(train=400, validation=64, test=64),
        )
    )


@cache
def _estimator(name: str) -> ChannelEstimator:
    """Built, and fitted for a moment where it is of no use otherwise; once a session."""
    estimator = estimator_class(name).build(_problem())
    if estimator.needs_fit:
        estimator.fit(_problem(), Fit(seconds=2.0))
    return estimator.eval()


@cache
def _batch() -> ChannelBatch:
    return _problem().sample(6, seed=3, snr_db=20.0)


@pytest.mark.parametrize("check", ESTIMATOR_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", estimator_names())
def test_estimator_contract(name: str, check: Callable[[EstimatorCase, torch.dtype], None]) -> None:
    estimator = _estimator(name)
    case = EstimatorCase(
        name,
        lambda dtype, device: estimator.to(device) if device.type != "meta" else _on_meta(estimator),
        lambda dtype: _batch(),
    )
    check(case, torch.complex64)


def _on_meta(estimator: ChannelEstimator) -> ChannelEstimator:
    """A copy without values, so that the fitted one stays as it is."""
    return type(estimator).from_configuration(estimator.configuration()).to("meta").eval()


@pytest.mark.parametrize("name", estimator_names())
def test_unknown_noise_gives_a_finite_channel(name: str) -> None:
    batch = _batch()
    out = _estimator(name).estimate(batch.y, batch.phi, None)
    assert out.signal.shape == batch.signal.shape
    assert bool(torch.isfinite(out.signal).all())


@pytest.mark.parametrize("name", estimator_names())
def test_wrong_arrays_are_named(name: str) -> None:
    batch, phi = _batch(), _batch().phi.materialize()
    for noise_var in (batch.noise_var, None):
        with pytest.raises(ValueError, match="phi must have 16 columns"):
            _estimator(name).estimate(batch.y, phi[:, :, :-1].contiguous(), noise_var)


@pytest.mark.parametrize("name", estimator_names())
def test_nan_is_named_where_the_noise_is_unknown(name: str) -> None:
    y = _batch().y.clone()
    y[2, 1] = math.nan
    with pytest.raises(ValueError, match="y must be finite"):
        _estimator(name).estimate(y, _batch().phi, None)


@pytest.mark.parametrize("name", estimator_names())
def test_a_file_gives_the_same_bits(name: str, tmp_path: Path) -> None:
    batch, estimator = _batch(), _estimator(name)
    path = tmp_path / "weights.safetensors"
    checkpoint.save(estimator, path)
    loaded = checkpoint.load(path, expected=type(estimator))
    expected = estimator.estimate(batch.y, batch.phi, batch.noise_var)
    got = loaded.estimate(batch.y, batch.phi, batch.noise_var)
    assert torch.equal(got.signal, expected.signal)
    assert (got.variance is None) == (expected.variance is None)


@pytest.mark.parametrize("name", estimator_names())
def test_name_and_summary_are_those_of_the_registry(name: str) -> None:
    estimator = _estimator(name)
    assert estimator.name == name
    assert estimator.summary
    assert "\n" not in estimator.summary
    assert estimator.configuration()["signal_length"] == 16
