"""Thresholds against their definitions, their gradients at zero, and the Bernoulli–Gauss posterior against quadrature."""

import math

import numpy as np
import pytest
import torch

from vlista_core.prox import bernoulli_gauss, hard_threshold, soft_threshold, soft_threshold_with_selection


def test_soft_threshold_is_the_proximal_point_of_the_l1_norm() -> None:
    u = torch.linspace(-3, 3, 61, dtype=torch.float64)[None]
    got = soft_threshold(u, torch.tensor([[0.7]], dtype=torch.float64))
    candidates = torch.linspace(-3, 3, 6001, dtype=torch.float64)
    cost = 0.5 * (candidates[:, None] - u) ** 2 + 0.7 * candidates.abs()[:, None]
    assert torch.allclose(got[0], candidates[cost.argmin(0)], atol=1.1e-3)


def test_complex_soft_threshold_shrinks_the_modulus_and_keeps_the_phase() -> None:
    u = torch.polar(torch.tensor([[0.5, 1.0, 2.0]]), torch.tensor([[0.3, -2.0, 1.0]]))
    got = soft_threshold(u, torch.tensor([[0.8]]))
    assert torch.allclose(
        got, torch.polar(torch.tensor([[0.0, 0.2, 1.2]]), torch.tensor([[0.0, -2.0, 1.0]])), atol=1e-6
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("threshold", [0.0, 0.5])
def test_gradients_are_finite_at_zero(dtype: torch.dtype, threshold: float) -> None:
    u = torch.zeros(1, 4, dtype=dtype, requires_grad=True)
    theta = torch.full((1, 1), threshold, dtype=torch.float64, requires_grad=True)
    torch.autograd.backward(soft_threshold(u, theta).abs().sum())
    assert u.grad is not None
    assert theta.grad is not None
    assert torch.isfinite(u.grad).all()
    assert torch.isfinite(theta.grad).all()


def test_gradient_with_respect_to_threshold_counts_the_survivors() -> None:
    u = torch.tensor([[-2.0, 0.1, 3.0, 0.2]], dtype=torch.float64)
    theta = torch.tensor([[0.5]], dtype=torch.float64, requires_grad=True)
    torch.autograd.backward(soft_threshold(u, theta).abs().sum())
    assert theta.grad is not None
    assert float(theta.grad) == -2.0


def test_hard_threshold_keeps_the_largest() -> None:
    u = torch.tensor([[3.0, -5.0, 1.0, 4.0]])
    assert hard_threshold(u, 2).tolist() == [[0.0, -5.0, 0.0, 4.0]]


def test_selection_spares_only_entries_in_the_top_share_and_above_the_threshold() -> None:
    u = torch.tensor([[3.0, -2.0, 1.5, 0.2]])
    theta = torch.tensor([[1.0]])
    assert soft_threshold_with_selection(u, theta, 0.5).tolist() == [[3.0, -2.0, 0.5, 0.0]]
    assert soft_threshold_with_selection(u, theta, 0.0).tolist() == [[2.0, -1.0, 0.5, 0.0]]
    assert soft_threshold_with_selection(u, torch.tensor([[2.5]]), 1.0).tolist() == [[3.0, 0.0, 0.0, 0.0]]


def test_bernoulli_gauss_matches_quadrature() -> None:
    activity, power, noise = 0.2, 1.5, 0.3
    grid = np.linspace(-12, 12, 48001)
    for r in (-2.5, 0.1, 0.9, 4.0):
        gauss = np.exp(-0.5 * grid**2 / power) / math.sqrt(2 * math.pi * power)
        weight = activity * gauss * np.exp(-0.5 * (r - grid) ** 2 / noise) * (grid[1] - grid[0])
        spike = (1 - activity) * math.exp(-0.5 * r**2 / noise)
        total = weight.sum() + spike
        mean = (weight * grid).sum() / total
        variance = (weight * grid**2).sum() / total - mean**2
        value = torch.tensor([[r]], dtype=torch.float64)
        one = torch.ones(1, 1, dtype=torch.float64)
        got = bernoulli_gauss(value, noise * one, activity * one, power * one)
        assert float(got[0]) == pytest.approx(mean, rel=1e-6)
        assert float(got[1]) == pytest.approx(variance, rel=1e-6)
        assert float(got[2]) == pytest.approx(weight.sum() / total, rel=1e-6)


def test_complex_bernoulli_gauss_recovers_its_own_moments() -> None:
    generator = torch.Generator().manual_seed(0)
    count, activity, power, noise = 400_000, 0.3, 2.0, 0.5
    active = torch.rand(count, generator=generator) < activity
    x = math.sqrt(power) * torch.randn(count, dtype=torch.complex128, generator=generator) * active
    r = x + math.sqrt(noise) * torch.randn(count, dtype=torch.complex128, generator=generator)
    one = torch.ones(1, 1, dtype=torch.float64)
    mean, variance, probability = bernoulli_gauss(r[None], noise * one, activity * one, power * one)
    assert float(probability.mean()) == pytest.approx(activity, abs=0.005)
    assert float((mean[0] - x).abs().square().mean()) == pytest.approx(float(variance.mean()), rel=0.01)
