"""The linear-algebra helpers agree with float64 NumPy where batched LU of this torch build does not."""

import numpy as np
import pytest
import torch

from vlista_core.linalg import cholesky, solve_hermitian, solve_semidefinite


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
def test_solve_agrees_with_numpy_at_256(dtype: torch.dtype) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        generator = torch.Generator().manual_seed(0)
        root = torch.randn(8, 256, 300, dtype=dtype, generator=generator)
        matrix = root @ root.mH / 300 + 0.1 * torch.eye(256, dtype=dtype)
        right = torch.randn(8, 256, 3, dtype=dtype, generator=generator)
        got = solve_hermitian(matrix, right)
    finally:
        torch.set_num_threads(threads)
    wide = np.complex128 if dtype.is_complex else np.float64
    expected = np.linalg.solve(matrix.numpy().astype(wide), right.numpy().astype(wide))
    gap = np.abs(got.numpy() - expected).max() / np.abs(expected).max()
    assert gap < (1e-4 if dtype in (torch.float32, torch.complex64) else 1e-11)


def test_a_singular_matrix_gets_just_enough_jitter_and_the_others_none() -> None:
    generator = torch.Generator().manual_seed(1)
    root = torch.randn(2, 6, 6, dtype=torch.float64, generator=generator)
    matrix = root @ root.mT
    vector = torch.randn(6, 1, dtype=torch.float64, generator=generator)
    matrix[1] = vector @ vector.mT
    factor = cholesky(matrix)
    assert torch.equal(factor[0], torch.linalg.cholesky(matrix[0]))
    assert torch.allclose(factor[1] @ factor[1].mT, matrix[1], atol=1e-12)


def test_a_matrix_that_is_not_positive_is_refused() -> None:
    with pytest.raises(ValueError, match="positive semi-definite"):
        cholesky(-torch.eye(3)[None])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
def test_a_singular_system_is_solved_by_the_pseudo_inverse_and_the_others_as_ever(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(2)
    root = torch.randn(3, 6, 9, dtype=dtype, generator=generator)
    root[1, 3:] = root[1, :3]
    root[2] = 0
    matrix = root @ root.mH
    got = solve_semidefinite(matrix, root)
    assert torch.equal(got[0], solve_hermitian(matrix[0], root[0]))
    expected = torch.linalg.pinv(root.to(torch.complex128), rtol=1e-5).mH
    assert float((got - expected).abs().max()) < (1e-5 if dtype.to_real() == torch.float32 else 1e-13)
    assert torch.equal(solve_semidefinite(matrix[1], root[1]), got[1])
