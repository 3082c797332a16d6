"""Channels over many subcarriers: what is the same for each of them is worked out once, and nothing of S·n × S·n is formed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

from chanest.arrays import Array
from chanest.covariances.modes import delay_modes
from chanest.estimators.cluster_lmmse import ClusterLMMSE
from chanest.estimators.lmmse import LMMSE
from chanest.estimators.ls import LS
from chanest.estimators.slot_lmmse import SlotLMMSE
from chanest.fit import Fit
from chanest.frontend import BeamformingMap
from chanest.problem import ChannelBatch, ChannelProblem
from chanest.scenario import ArraySection, CdlSection, DataSection, FrontendSection, Scenario
from chanest.uncertainty.noise import NoiseModel
from chanest.weights import get_estimator
from chanest.weights.training import save_estimator
from vlista_core.linops import DenseMap
from vlista_core.metrics import nmse_db


def _problem(subcarriers: int = 8, pilots: int = 6, chains: int = 0, spacing: float = 480e3) -> ChannelProblem:
    return ChannelProblem(
        Scenario(
            name="wide",
            bs=ArraySection(rows=2, columns=4, yaw_spread=60.0),
            ue=ArraySection(rows=1, columns=2, yaw=180.0, yaw_spread=180.0),
            channel=CdlSection(models=("C",), subcarriers=subcarriers, subcarrier_spacing=spacing),
            frontend=FrontendSection(pilots=pilots, chains=chains),
            data=DataSection(train=400, validation=64, test=64),
        )
    )


def _each_subcarrier(batch: ChannelBatch) -> list[tuple[torch.Tensor, BeamformingMap]]:
    """y of every subcarrier by itself, and what measured it."""
    assert isinstance(batch.phi, BeamformingMap)
    one = batch.phi.one_subcarrier()
    return [(y, one) for y in batch.y.chunk(batch.phi.subcarriers, dim=1)]


@pytest.mark.parametrize(("pilots", "chains"), [(6, 0), (8, 1), (8, 0)])
def test_least_squares_is_that_of_every_subcarrier(pilots: int, chains: int) -> None:
    wide = _problem(pilots=pilots, chains=chains)
    batch = wide.sample(5, seed=1, snr_db=10.0)
    found = LS.build(wide).estimate(batch.y, batch.phi, batch.noise_var)
    narrow = LS.build(_problem(1))
    alone = [narrow.estimate(y, phi, batch.noise_var) for y, phi in _each_subcarrier(batch)]
    assert torch.allclose(found.signal, torch.cat([each.signal for each in alone], 1), atol=1e-5)
    variances = [each.variance for each in alone]
    assert (found.variance is None) == (variances[0] is None) == (pilots * (chains or 2) < 16)
    if found.variance is not None:
        known = torch.cat([variance for variance in variances if variance is not None], 1)
        assert torch.allclose(found.variance, known, rtol=1e-3)


def test_least_squares_has_the_variance_of_probes() -> None:
    wide = _problem(pilots=8)
    batch = wide.sample(3, seed=1, snr_db=10.0)
    found = LS.build(wide).estimate(batch.y, batch.phi, batch.noise_var)
    rows = torch.randn(3, 4, wide.signal_length, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    got = found.variance_through(DenseMap(rows))
    matrix = batch.phi.materialize()
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(matrix.mH @ matrix))
    expected = batch.noise_var[:, None] * (rows @ inverse @ rows.mH).diagonal(dim1=1, dim2=2).real
    assert got is not None
    assert torch.allclose(got, expected, rtol=1e-3)


@cache
def _fitted() -> LMMSE:
    estimator = LMMSE.build(_problem())
    estimator.fit(_problem(), Fit(steps=4))
    return estimator


def test_lmmse_takes_every_delay_mode_by_itself() -> None:
    problem, estimator = _problem(), _fitted()
    batch = problem.sample(3, seed=1, snr_db=10.0)
    found = estimator.estimate(batch.y, batch.phi, batch.noise_var)
    prior = estimator.covariance().materialize()
    assert len(estimator.delay_modes().mT) < problem.subcarriers
    matrix = batch.phi.materialize()
    noise = batch.noise_var[:, None, None] * torch.eye(matrix.shape[1])
    gain = prior @ matrix.mH @ torch.cholesky_inverse(torch.linalg.cholesky(matrix @ prior @ matrix.mH + noise))
    assert torch.allclose(found.signal, (gain @ batch.y[..., None])[..., 0], atol=1e-4)
    variance = (prior - gain @ matrix @ prior).diagonal(dim1=1, dim2=2).real
    assert found.variance is not None
    assert torch.allclose(found.variance, variance.maximum(0.01 * variance.mean(1, keepdim=True)), rtol=1e-2)


def test_delay_modes_bring_what_apart_subcarriers_lack() -> None:
    narrow = LMMSE.build(_problem(1))
    narrow.fit(_problem(1), Fit(steps=4))
    for snr_db in (0.0, 10.0):
        batch = _problem().sample(32, seed=2, snr_db=snr_db)
        alone = [narrow.estimate(y, phi, batch.noise_var).signal for y, phi in _each_subcarrier(batch)]
        joint = _fitted().estimate(batch.y, batch.phi, batch.noise_var).signal
        assert nmse_db(joint, batch.signal) < nmse_db(torch.cat(alone, 1), batch.signal) - 1.0


def test_what_lies_beside_the_delay_modes_tells_the_noise() -> None:
    problem = _problem(32)
    modes, _ = delay_modes(problem, 200, seed=0)
    noise = NoiseModel(modes=lambda: modes)
    for snr_db in (0.0, 20.0):
        batch = problem.sample(32, seed=3, snr_db=snr_db)
        found = 10 * noise.estimate(batch.y, batch.phi).log10()
        assert float((found + snr_db).abs().max()) < 2.0
        assert abs(float(found.mean()) + snr_db) < 0.3


def test_lmmse_goes_to_a_file_and_back(tmp_path: Path) -> None:
    problem, path = _problem(), tmp_path / "wide.lmmse.safetensors"
    save_estimator(_fitted(), problem, path, facts={})
    batch = problem.sample(3, seed=1, snr_db=10.0)
    loaded = get_estimator("lmmse", problem, weights=path).estimate(batch.y, batch.phi, batch.noise_var)
    expected = _fitted().estimate(batch.y, batch.phi, batch.noise_var)
    assert nmse_db(loaded.signal, expected.signal) < -50.0  # files hold covariances in half precision


def test_weights_of_another_bandwidth_are_refused_in_a_sentence(tmp_path: Path) -> None:
    """Of more subcarriers, and of as many that lie elsewhere."""
    path = tmp_path / "wide.lmmse.safetensors"
    save_estimator(_fitted(), _problem(), path, facts={})
    with pytest.raises(ValueError, match=r"was made for wide, channels of 128 entries; wide has 256"):
        get_estimator("lmmse", _problem(16), weights=path)
    with pytest.raises(ValueError, match=r"holds weights of the channels of wide, not of wide; pass trained_on"):
        get_estimator("lmmse", _problem(spacing=240e3), weights=path)


@pytest.mark.parametrize(
    "make",
    [
        lambda rx, tx: LMMSE(rx, tx, signal_length=128, rank=1, subcarriers=8, modes=9),
        lambda rx, tx: ClusterLMMSE(rx, tx, subcarriers=8, modes=9, parts=1, rank=1),
        lambda rx, tx: SlotLMMSE(snapshots=2, subcarriers=8, antennas=16, times=1, delays=9, rank=1),
    ],
)
def test_more_delay_modes_than_subcarriers_are_refused(make: Callable[[Array, Array], object]) -> None:
    with pytest.raises(ValueError, match=r"modes of the delay must be at most the 8 subcarriers, got 9"):
        make(*_problem().arrays)
