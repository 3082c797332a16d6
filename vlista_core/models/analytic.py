"""ALISTA's analytic weights: W of least generalised coherence with A, one column per atom, in closed form.

min ‖WᴴA‖_F² subject to w_iᴴa_i = 1 has the solution w_i = (AAᴴ)⁻¹a_i / (a_iᴴ(AAᴴ)⁻¹a_i) (Liu et al. 2019).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from vlista_core.linalg import solve_hermitian


def analytic_weights(matrix: Tensor) -> Tensor:
    """W: [..., m, b] for A: [..., m, b]. Columns of A that are zero get a zero weight."""
    whitened, gain = whitened_columns(matrix)
    return torch.where(gain > 0, whitened / gain.clamp_min(torch.finfo(gain.dtype).tiny), torch.zeros_like(whitened))


def whitened_columns(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """(AAᴴ)⁻¹A, the adjoint of A⁺: [..., m, b], and a_iᴴ(AAᴴ)⁻¹a_i: [..., 1, b]. W is their quotient."""
    whitened = solve_hermitian(matrix @ matrix.mH, matrix)
    return whitened, (matrix.conj() * whitened).sum(-2, keepdim=True).real


def averaged_weights(matrices: Iterable[Tensor]) -> Tensor:
    """The mean of W over several A, each [m, b]: what the paper gives ALISTA and NALISTA where Φ varies."""
    weights = [analytic_weights(matrix) for matrix in matrices]
    if not weights:
        raise ValueError("matrices must hold at least one matrix [m, b], got none")
    return torch.stack(weights).mean(0)
