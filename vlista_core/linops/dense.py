"""Maps with a stored matrix, and the identity that needs none."""

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from vlista_core.linops.base import LinearMap

_CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class DenseMap(LinearMap):
    """A stored matrix, shared `[m, n]` or one per sample `[batch, m, n]`."""

    matrix: Tensor
    rows_orthonormal: bool = False

    def __post_init__(self) -> None:
        if self.matrix.ndim not in (2, 3):
            raise ValueError(f"matrix must have shape [m, n] or [batch, m, n], got {[*self.matrix.shape]}")
        if not (self.matrix.is_floating_point() or self.matrix.is_complex()):
            raise ValueError(f"matrix must be a floating-point or complex tensor, got {self.matrix.dtype}")

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape[-2], self.matrix.shape[-1]

    @property
    def batch(self) -> int | None:
        return self.matrix.shape[0] if self.matrix.ndim == 3 else None

    def apply(self, x: Tensor) -> Tensor:
        self._check_input("x", x, self.shape[1])
        if self.batch is None:
            return x @ self.matrix.mT
        # As a row times a matrix this reads Φ at memory speed; matrix times column, the obvious form, is 5-10x slower.
        return torch.bmm(x[:, None, :], self.matrix.mT)[:, 0]

    def adjoint(self, y: Tensor) -> Tensor:
        self._check_input("y", y, self.shape[0])
        if self.batch is None:
            return y @ self.matrix.conj()
        return torch.bmm(y.conj()[:, None, :], self.matrix)[:, 0].conj().resolve_conj()

    def apply_block(self, x: Tensor) -> Tensor:
        return self.matrix @ x

    def columns(self, index: Tensor) -> Tensor:
        if self.batch is None:
            return self.matrix[:, index].movedim(0, 1)
        index = index.expand(self.batch, -1)
        return self.matrix.gather(2, index[:, None, :].expand(-1, self.shape[0], -1))

    def _column_norms(self) -> Tensor:
        norms: Tensor = torch.linalg.vector_norm(self.materialize(), dim=1)
        return norms

    def materialize(self) -> Tensor:
        return self.matrix if self.batch is not None else self.matrix[None]


@dataclass(frozen=True, eq=False)
class GroupedMap(LinearMap):
    """Stored matrices [groups, m, n], each shared by several samples in a row: sample i has matrix i // members.

    A batched matrix product where DenseMap has vectors.
    """

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

    def _column_norms(self) -> Tensor:
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


@dataclass(frozen=True, eq=False)
class IdentityMap(LinearMap):
    """x -> x on vectors of length n: the canonical dictionary."""

    length: int
    dtype: torch.dtype = torch.float32
    device: torch.device = _CPU
    rows_orthonormal: ClassVar[bool] = True

    @property
    def shape(self) -> tuple[int, int]:
        return self.length, self.length

    def apply(self, x: Tensor) -> Tensor:
        self._check_input("x", x, self.length)
        return x

    def adjoint(self, y: Tensor) -> Tensor:
        self._check_input("y", y, self.length)
        return y

    def apply_block(self, x: Tensor) -> Tensor:
        return x

    def materialize(self) -> Tensor:
        return torch.eye(self.length, dtype=self.dtype, device=self.device)[None]

    def to(self, device: torch.device | str) -> Self:
        return replace(self, device=torch.device(device))

    def cast(self, dtype: torch.dtype) -> Self:
        return replace(self, dtype=dtype)


def as_map(matrix: LinearMap | Tensor) -> LinearMap:
    """A LinearMap as it is; a tensor [m, n] or [batch, m, n] as a DenseMap."""
    return matrix if isinstance(matrix, LinearMap) else DenseMap(matrix)
