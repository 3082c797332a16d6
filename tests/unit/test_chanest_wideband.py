"""Channels over many subcarriers: what is the same for each of them is worked out once, and nothing of S·n × S·n is formed."""

from __future__ import annotations

import pytest
import torch

from chanest.estimators.ls import LS
from chanest.frontend import BeamformingMap
from chanest.problem import ChannelBatch, ChannelProblem
from chanest.scenario import ArraySection, CdlSection, DataSection, FrontendSection, Scenario
from vlista_core.linops import DenseMap


def _problem(subcarriers: int = 8, pilots: int = 6, chains: int = 0) -> ChannelProblem:
    return ChannelProblem(
        Scenario(
            name="wide",
            bs=ArraySection(rows=2, columns=4, yaw_spread=60.0),
            ue=ArraySection(rows=1, columns=2, yaw=180.0, yaw_spread=180.0),
            channel=CdlSection(models=("C",), subcarriers=subcarriers, subcarrier_spacing=480e3),
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
