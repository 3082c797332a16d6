"""Doubling is torch's transposed convolution, by another way."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vlista_core.models.posterior import Doubling


@pytest.mark.parametrize(("kernel", "padding", "extra"), [(4, 1, 0), (7, 3, 1), (3, 1, 1)])
@pytest.mark.parametrize("channels", [(1, 1), (3, 2)])
def test_it_is_the_transposed_convolution_forward_and_backward(
    kernel: int, padding: int, extra: int, channels: tuple[int, int]
) -> None:
    with torch.random.fork_rng(devices=[]):
        ours = Doubling(*channels, kernel).double()
    x = torch.randn(2, channels[0], 5, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x.requires_grad_()
    theirs = nn.functional.conv_transpose2d(x, ours.weight, ours.bias, stride=2, padding=padding, output_padding=extra)
    assert theirs.shape[2:] == (10, 12)
    assert torch.allclose(ours(x), theirs, atol=1e-12)
    parameters = [x, *ours.parameters()]
    for got, expected in zip(
        torch.autograd.grad(ours(x).square().sum(), parameters),
        torch.autograd.grad(theirs.square().sum(), parameters),
        strict=True,
    ):
        assert torch.allclose(got, expected, atol=1e-9)
