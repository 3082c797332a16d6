"""Hermitian positive definite systems: the one place where they are factorised and solved.

Everything here goes through Cholesky. Batched LU (`torch.linalg.solve`, `torch.linalg.inv`) silently returns garbage in
the CPU build of torch 2.13 with two threads, and is banned by the linter.
"""

import torch
from torch import Tensor

_SINGULAR = 64.0
"""Pivots and eigenvalues of so many units of rounding of the largest count as zero."""


def has_values(tensor: Tensor) -> bool:
    """Whether Python may look at the entries: not on the meta device, nor while `torch.export` records what is done."""
    return not (tensor.is_meta or torch.compiler.is_exporting())


def cholesky(matrix: Tensor) -> Tensor:
    """Lower Cholesky factor of Hermitian positive semi-definite matrices. matrix: [..., n, n] -> [..., n, n].

    A matrix that is not positive definite to working precision gets the smallest diagonal jitter, growing tenfold from
    machine precision times its mean diagonal, that lets the factorisation succeed. The others stay as they are.
    """
    factor: Tensor
    if (
        torch.compiler.is_exporting()
    ):  # no jitter there: a matrix that is not definite is an error when the program runs
        factor = torch.linalg.cholesky(matrix)
        return factor
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


def solve_semidefinite(matrix: Tensor, right: Tensor) -> Tensor:
    """matrix⁺ right, for matrices that may be singular. matrix: [..., n, n] Hermitian, right: [..., n, k] -> [..., n, k].

    Where a pivot of Cholesky is rounding of the diagonal, the directions whose eigenvalue is rounding of the largest are left
    out: a jittered factor would divide the rounding of `right` there by that of the matrix.
    """
    factor, failed = torch.linalg.cholesky_ex(matrix)
    solution: Tensor = torch.cholesky_solve(right, factor)
    least = _SINGULAR * torch.finfo(matrix.dtype).eps
    pivots, diagonal = (each.diagonal(dim1=-2, dim2=-1).real for each in (factor, matrix))
    singular = (failed > 0) | ~(pivots.square().amin(-1) > least * diagonal.amax(-1))
    if singular.is_meta or not bool(singular.any()):
        return solution
    values, vectors = torch.linalg.eigh(matrix[singular])
    inverse = torch.where(values > least * values[..., -1:], 1.0 / values, 0.0)
    solution[singular] = vectors @ (inverse[..., None] * (vectors.mH @ right[singular]))
    return solution
