"""Hermitian positive definite systems: the one place where they are factorised and solved.

Everything here goes through Cholesky. Batched LU (`torch.linalg.solve`, `torch.linalg.inv`) silently returns garbage in
the CPU build of torch 2.13 with two threads, and is banned by the linter.
"""

import torch
from torch import Tensor


def cholesky(matrix: Tensor) -> Tensor:
    """Lower Cholesky factor of Hermitian positive semi-definite matrices. matrix: [..., n, n] -> [..., n, n].

    A matrix that is not positive definite to working precision gets the smallest diagonal jitter, growing tenfold from
    machine precision times its mean diagonal, that lets the factorisation succeed. The others stay as they are.
    """
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if failed.is_meta or not bool(failed.any()):
        return factor
    n = matrix.shape[-1]
    scale = matrix.diagonal(dim1=-2, dim2=-1).real.abs().mean(-1)
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    identity = torch.eye(n, dtype=matrix.dtype, device=matrix.device)
    jitter = torch.finfo(matrix.real.dtype).eps
    while jitter < 1.0:
        shift = torch.where(failed > 0, jitter * scale, torch.zeros_like(scale))
        attempt, still = torch.linalg.cholesky_ex(matrix + shift[..., None, None] * identity)
        factor = torch.where((failed > 0)[..., None, None] & (still == 0)[..., None, None], attempt, factor)
        failed = torch.where(still == 0, torch.zeros_like(failed), failed)
        if not bool(failed.any()):
            return factor
        jitter *= 10.0
    raise ValueError(
        "matrix must be Hermitian positive semi-definite with finite entries; Cholesky failed even with jitter"
    )


def solve_hermitian(matrix: Tensor, right: Tensor) -> Tensor:
    """X with matrix X = right. matrix: [..., n, n] Hermitian positive definite, right: [..., n, k] -> [..., n, k]."""
    return torch.cholesky_solve(right, cholesky(matrix))
