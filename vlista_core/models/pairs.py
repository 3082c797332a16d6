"""Learned matrices, real or complex: a complex one is stored as real pairs, which every optimiser and file format takes."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def matrix_parameter(start: Tensor) -> nn.Parameter:
    """A parameter that starts at `start`: its own shape where real, [..., 2] where complex."""
    start = start.detach().clone()
    return nn.Parameter(torch.view_as_real(start).contiguous() if start.is_complex() else start)


def matrix_value(parameter: Tensor, dtype: torch.dtype) -> Tensor:
    """The matrix that `parameter` stores, for signals of `dtype`."""
    return torch.view_as_complex(parameter) if dtype.is_complex else parameter


def store_matrix(parameter: nn.Parameter, value: Tensor) -> None:
    """Set the parameter to `value`, in place and outside of any gradient."""
    with torch.no_grad():
        parameter.copy_(torch.view_as_real(value) if value.is_complex() else value)
