"""A map whose matrices are each shared by several samples in a row: a batched matrix product where DenseMap has vectors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vlista_core.linops.base import LinearMap
from vlista_core.linops.dense import DenseMap


@dataclass(frozen=True, eq=False)
class GroupedMap(LinearMap):
    """Sample i has matrix i // members. matrix: [groups, m, n], for groups·members samples."""

    matrix: Tensor
    members: int

    def __post_init__(self) -> None:
        if self.matrix.ndim != 3:
            raise ValueError(f"matrix must have shape [groups, m, n], got {[*self.matrix.shape]}")
        if self.members < 1:
            raise ValueError(f"members must be at least 1, got {self.members}")

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape[1], self.matrix.shape[2]

    @property
    def batch(self) -> int:
        return self.matrix.shape[0] * self.members

    def apply(self, x: Tensor) -> Tensor:
        self._check_input("x", x, self.shape[1])
        return torch.bmm(self._grouped(x), self.matrix.mT).flatten(0, 1)

    def adjoint(self, y: Tensor) -> Tensor:
        self._check_input("y", y, self.shape[0])
        return torch.bmm(self._grouped(y), self.matrix.conj()).flatten(0, 1)

    def apply_block(self, x: Tensor) -> Tensor:
        if x.shape[0] == 1:
            return self._each(self.matrix @ x)
        return (self.matrix[:, None] @ self._grouped(x)).flatten(0, 1)

    def columns(self, index: Tensor) -> Tensor:
        return DenseMap(self.materialize()).columns(index)

    def column_norms(self) -> Tensor:
        return self._each(DenseMap(self.matrix).column_norms())

    def gram(self) -> Tensor:
        return self._each(DenseMap(self.matrix).gram())

    def materialize(self) -> Tensor:
        return self._each(self.matrix)

    def distinct(self) -> tuple[LinearMap, int]:
        return DenseMap(self.matrix), self.members

    def select(self, index: Tensor) -> DenseMap:
        chosen = index.nonzero()[:, 0] if index.dtype == torch.bool else index
        return DenseMap(self.matrix[chosen.div(self.members, rounding_mode="floor")])

    def _grouped(self, values: Tensor) -> Tensor:
        """[batch, ...] -> [groups, members, ...]."""
        return values.reshape(-1, self.members, *values.shape[1:])

    def _each(self, values: Tensor) -> Tensor:
        """[groups, ...] -> [batch, ...]."""
        return values.repeat_interleave(self.members, dim=0)
