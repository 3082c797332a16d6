"""Kronecker dictionaries of which every sample has its own."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vlista_core.linops import LinearMap


@dataclass(frozen=True, eq=False)
class BatchedKroneckerMap(LinearMap):
    """F₁ ⊗ F₂ ⊗ … with factors for each sample, slowest index first as in `KroneckerMap.factors`; never expanded."""

    factors: tuple[Tensor, ...]
    """Each [batch, N_i, G_i]."""

    def __post_init__(self) -> None:
        first = self.factors[0]
        for factor in self.factors:
            if factor.ndim != 3 or factor.dtype != first.dtype or factor.shape[0] != first.shape[0]:
                raise ValueError(
                    f"factors must be matrices [{first.shape[0]}, N, G] of dtype {first.dtype}, "
                    f"got {factor.dtype} {[*factor.shape]}"
                )

    @property
    def shape(self) -> tuple[int, int]:
        return math.prod(f.shape[1] for f in self.factors), math.prod(f.shape[2] for f in self.factors)

    @property
    def batch(self) -> int:
        return self.factors[0].shape[0]

    def apply(self, x: Tensor) -> Tensor:
        self._check_input("x", x, self.shape[1])
        return _product(self.factors, x[:, None])[:, 0]

    def adjoint(self, y: Tensor) -> Tensor:
        self._check_input("y", y, self.shape[0])
        # conj(Fᵀ conj(y)): the factors, which are large, are only read the other way round, never copied.
        transposed = tuple(factor.mT for factor in self.factors)
        return _product(transposed, y.conj().resolve_conj()[:, None])[:, 0].conj().resolve_conj()

    def apply_block(self, x: Tensor) -> Tensor:
        return _product(self.factors, x.expand(self.batch, -1, -1).mT).mT

    def column_norms(self) -> Tensor:
        return _kron([torch.linalg.vector_norm(factor, dim=1, keepdim=True) for factor in self.factors])[:, 0]

    def gram(self) -> Tensor:
        return _kron([factor @ factor.mH for factor in self.factors])

    def materialize(self) -> Tensor:
        return _kron(list(self.factors))


def _product(factors: tuple[Tensor, ...], x: Tensor) -> Tensor:
    """A factor at a time from the fastest index, for k vectors a sample. x: [batch, k, Π G_i] -> [batch, k, Π N_i]."""
    batch, count = x.shape[:2]
    after = 1
    for factor in reversed(factors):
        rows, columns = factor.shape[1:]
        last = after == 1
        x = (
            x.reshape(batch, -1, columns) @ factor.mT
            if last
            else factor[:, None] @ x.reshape(batch, -1, columns, after)
        )
        after *= rows
    return x.reshape(batch, count, -1)


def _kron(matrices: list[Tensor]) -> Tensor:
    """[batch, a, b] ⊗ [batch, c, d] ⊗ … sample by sample."""
    product = matrices[0]
    for matrix in matrices[1:]:
        batch, a, b = product.shape
        _, c, d = matrix.shape
        product = (product[:, :, None, :, None] * matrix[:, None, :, None, :]).reshape(batch, a * c, b * d)
    return product
