"""Whitened measurements, and what A-DLISTA starts from with them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from vlista_core.dictionaries import LearnedDictionary
from vlista_core.estimate import Measurement
from vlista_core.linops import DenseMap, GroupedMap
from vlista_core.models import ADLISTA
from vlista_core.models.whitening import whiten

M, N, BATCH = 12, 20, 8


def _draws(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """R of widely different powers [N, N], Φ [BATCH, M, N], s ~ N(0, R)."""
    generator = torch.Generator().manual_seed(seed)
    directions, _ = torch.linalg.qr(torch.randn(N, N, dtype=torch.float64, generator=generator))
    root = directions * torch.logspace(0, -2, N, dtype=torch.float64)
    phi = torch.randn(BATCH, M, N, dtype=torch.float64, generator=generator) / math.sqrt(M)
    signal = torch.randn(BATCH, N, dtype=torch.float64, generator=generator) @ root.mT
    return root, phi, signal


def test_whitened_measurements_are_white() -> None:
    root, phi, signal = _draws()
    noise_var = torch.full((BATCH,), 0.05, dtype=torch.float64)
    y = (phi @ signal[..., None])[..., 0]
    white = whiten(Measurement(y, DenseMap(phi), noise_var), root @ root.mT)
    matrix = white.phi.materialize()
    power = (phi @ root @ root.mT @ phi.mT).diagonal(dim1=1, dim2=2)
    assumed = 0.05 + 1e-4 * power.mean(1)
    total = phi @ root @ root.mT @ phi.mT + assumed[:, None, None] * torch.eye(M, dtype=torch.float64)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(total))
    assert torch.allclose(matrix.mT @ matrix, phi.mT @ inverse @ phi)
    assert torch.allclose((white.y[:, None] @ matrix)[:, 0], (y[:, None] @ inverse @ phi)[:, 0])
    noise = 0.05 * inverse.diagonal(dim1=1, dim2=2).mean(1)
    assert torch.allclose(white.noise_var, noise)


def test_one_whole_step_points_along_the_linear_mmse_estimate() -> None:
    root, phi, signal = _draws()
    y = (phi @ signal[..., None])[..., 0]
    model = ADLISTA(LearnedDictionary(root), layers=1, step=1.0, threshold=1e-9, covariance=root @ root.mT)
    found = model.estimate(y, DenseMap(phi), 0.1).signal
    covariance = root @ root.mT
    seen = phi @ covariance
    power = (seen @ phi.mT).diagonal(dim1=1, dim2=2).mean(1)
    total = seen @ phi.mT + (0.1 + 1e-4 * power)[:, None, None] * torch.eye(M, dtype=torch.float64)
    solved = torch.cholesky_solve(y[..., None], torch.linalg.cholesky(total))
    linear = (seen.mT @ solved)[..., 0]
    # The step of the sample, ‖v‖²/‖g‖², is one only where nothing is noise, so the lengths may differ.
    cosine = torch.nn.functional.cosine_similarity(found, linear)
    assert torch.allclose(cosine, torch.ones_like(cosine))


@pytest.mark.parametrize("different", [False, True])
def test_a_shared_matrix_stays_shared_where_the_noise_is_the_same(different: bool) -> None:
    root, phi, signal = _draws()
    groups = phi[: BATCH // 4]
    each = groups.repeat_interleave(4, 0)
    y = (each @ signal[..., None])[..., 0]
    noise_var = torch.full((BATCH,), 0.1, dtype=torch.float64)
    if different:
        noise_var[1] = 0.3
    shared = whiten(Measurement(y, GroupedMap(groups, 4), noise_var), root @ root.mT)
    apart = whiten(Measurement(y, DenseMap(each), noise_var), root @ root.mT)
    assert isinstance(shared.phi, DenseMap if different else GroupedMap)
    assert torch.allclose(shared.y, apart.y)
    assert torch.allclose(shared.noise_var, apart.noise_var)
    assert torch.allclose(shared.phi.materialize().expand(BATCH, -1, -1), apart.phi.materialize())


def test_one_matrix_for_all() -> None:
    root, phi, signal = _draws()
    y = signal @ phi[0].mT
    noise_var = torch.zeros(BATCH, dtype=torch.float64)
    one = whiten(Measurement(y, DenseMap(phi[0]), noise_var), root @ root.mT)
    each = whiten(Measurement(y, DenseMap(phi[:1].expand(BATCH, -1, -1)), noise_var), root @ root.mT)
    assert one.phi.batch is None
    assert torch.allclose(one.y, each.y)
    assert torch.equal(one.noise_var, noise_var)
