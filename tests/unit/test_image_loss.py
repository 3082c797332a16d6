"""The quick SSIM of training is the SSIM of the tables."""

from __future__ import annotations

import torch

from vlista_core.experiments.image_loss import fast_ssim, window_matrix
from vlista_core.metrics import ssim


def test_the_quick_ssim_is_the_other_and_has_a_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(4, 14, 17, generator=generator).requires_grad_()
    truth = torch.rand(4, 14, 17, generator=generator)
    quick = fast_ssim(images, truth, window_matrix(14), window_matrix(17))
    assert torch.allclose(quick, ssim(images.detach(), truth), atol=1e-5)
    (gradient,) = torch.autograd.grad(quick.sum(), images)
    better = fast_ssim(images.detach() + 1e-3 * gradient.sign(), truth, window_matrix(14), window_matrix(17))
    assert (better > quick.detach()).all()
