"""Metrics against hand-computed values, scikit-learn and their definitions."""

import math

import pytest
import torch
from sklearn.metrics import roc_auc_score

from vlista_core import metrics


def test_three_definitions_of_nmse_differ_as_they_should() -> None:
    signal = torch.tensor([[1.0, 0.0], [0.0, 10.0], [2.0, 0.0]])
    estimate = torch.tensor([[0.0, 0.0], [0.0, 9.0], [1.0, 0.0]])
    assert metrics.nmse_db(estimate, signal) == pytest.approx(10 * math.log10(3 / 105))
    assert metrics.nmse_mean_db(estimate, signal) == pytest.approx(10 * math.log10((1 + 0.01 + 0.25) / 3))
    assert metrics.nmse_median_db(estimate, signal) == pytest.approx(10 * math.log10(0.25))


def test_perfect_estimate_is_minus_infinity_and_a_zero_signal_is_no_nan() -> None:
    signal = torch.tensor([[1.0, 2.0], [0.0, 0.0]])
    assert metrics.nmse_db(signal, signal) == -math.inf
    assert metrics.squared_error_ratios(signal, signal).tolist() == [0.0, 0.0]


def test_ssim_of_an_image_with_itself_is_one_and_falls_with_noise() -> None:
    images = torch.rand(3, 28, 28, generator=torch.Generator().manual_seed(0))
    noise = torch.randn(3, 28, 28, generator=torch.Generator().manual_seed(1))
    same = metrics.ssim(images, images)
    assert same.shape == (3,)
    assert torch.allclose(same, torch.ones(3), atol=1e-5)
    assert (metrics.ssim(images + 0.05 * noise, images) > metrics.ssim(images + 0.3 * noise, images)).all()


def test_ssim_is_the_gaussian_window_definition() -> None:
    """Direct computation of Wang et al. 2004, window by window, averaged over those inside the image."""
    generator = torch.Generator().manual_seed(2)
    a, b = torch.rand(1, 13, 12, generator=generator).double(), torch.rand(1, 13, 12, generator=generator).double()
    position = torch.arange(11).double() - 5
    window = torch.exp(-(position[:, None] ** 2 + position**2) / (2 * 1.5**2)).flatten()
    window = window / window.sum()
    patches_a, patches_b = (image[0].unfold(0, 11, 1).unfold(1, 11, 1).flatten(2) for image in (a, b))
    mean_a, mean_b = patches_a @ window, patches_b @ window
    var_a, var_b = patches_a**2 @ window - mean_a**2, patches_b**2 @ window - mean_b**2
    cov = (patches_a * patches_b) @ window - mean_a * mean_b
    c1, c2 = 0.01**2, 0.03**2
    values = (2 * mean_a * mean_b + c1) * (2 * cov + c2) / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2))
    assert float(metrics.ssim(a, b)) == pytest.approx(float(values.mean()), abs=1e-6)


def test_psnr_of_a_known_error() -> None:
    images = torch.zeros(2, 4, 4)
    assert torch.allclose(metrics.psnr_db(images + 0.1, images), torch.full((2,), 20.0), atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_true_variances_cover_and_wrong_ones_do_not(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    variance = torch.rand(200, 500, generator=generator, dtype=torch.float64) + 0.1
    error = torch.sqrt(variance) * torch.randn(200, 500, generator=generator, dtype=dtype)
    truth = torch.zeros_like(error)
    for level in (0.5, 0.9, 0.95):
        assert metrics.coverage(error, variance, truth, level) == pytest.approx(level, abs=0.005)
    assert metrics.calibration_error(error, variance, truth) < 0.005
    assert metrics.calibration_error(error, 4 * variance, truth) > 0.1


def test_auroc_agrees_with_scikit_learn_whatever_the_scale() -> None:
    generator = torch.Generator().manual_seed(4)
    inside, outside = torch.randn(300, generator=generator), torch.randn(200, generator=generator) + 1
    target = [0] * 300 + [1] * 200
    expected = roc_auc_score(target, torch.cat([inside, outside]).numpy())
    assert metrics.auroc(inside, outside) == pytest.approx(expected, abs=1e-6)
    assert metrics.auroc(1e6 * inside, 1e6 * outside) == pytest.approx(expected, abs=1e-6)
    assert metrics.auroc(torch.zeros(5), torch.zeros(5)) == pytest.approx(0.5)


def test_shapes_that_do_not_match_are_refused() -> None:
    with pytest.raises(ValueError, match="estimate and signal"):
        metrics.nmse_db(torch.zeros(2, 3), torch.zeros(2, 4))
    with pytest.raises(ValueError, match="level"):
        metrics.coverage(torch.zeros(2), torch.ones(2), torch.zeros(2), 1.0)
    with pytest.raises(ValueError, match="scores_out"):
        metrics.auroc(torch.zeros(3), torch.zeros(0))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_an_estimate_that_is_not_finite_has_no_nmse(bad: float, dtype: torch.dtype) -> None:
    signal = torch.ones(4, 3, dtype=dtype)
    estimate = signal.clone()
    estimate[2, 1] = bad
    for metric in (metrics.nmse_db, metrics.nmse_mean_db, metrics.nmse_median_db):
        assert math.isnan(metric(estimate, signal)), metric.__name__
    assert metrics.squared_error_ratios(estimate, signal).isnan().tolist() == [False, False, True, False]
    assert metrics.finite_samples(estimate).tolist() == [True, True, False, True]


def test_a_huge_estimate_is_bad_but_a_number() -> None:
    signal = torch.ones(2, 4)
    assert metrics.nmse_db(1e30 * signal, signal) == pytest.approx(600.0, abs=1e-3)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_figures_of_images_are_nan_where_one_pixel_is(bad: float) -> None:
    images = torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(0))
    estimate = images + 0.01
    estimate[1, 0, 0] = bad
    for metric in (metrics.ssim, metrics.psnr_db):
        assert metric(estimate, images).isnan().tolist() == [False, True, False], metric.__name__


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("place", ["estimate", "variance"])
def test_intervals_that_are_not_finite_cover_nothing(bad: float, place: str) -> None:
    values = {"estimate": torch.zeros(4, 5), "variance": torch.ones(4, 5)}
    values[place][3, 2] = bad
    truth = torch.zeros(4, 5)
    assert math.isnan(metrics.coverage(values["estimate"], values["variance"], truth, 0.9))
    assert math.isnan(metrics.calibration_error(values["estimate"], values["variance"], truth))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("side", [0, 1])
def test_scores_that_are_not_finite_have_no_auroc(bad: float, side: int) -> None:
    scores = [torch.arange(4.0), torch.arange(4.0) + 10]
    scores[side][1] = bad
    assert math.isnan(metrics.auroc(*scores))
