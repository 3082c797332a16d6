"""Lazy products of maps."""

from dataclasses import dataclass

from torch import Tensor

from vlista_core.linops.base import LinearMap
from vlista_core.linops.dense import IdentityMap


def compose(outer: LinearMap, inner: LinearMap) -> LinearMap:
    """outer ∘ inner as a lazy product; the identity drops out."""
    product = ComposedMap(outer, inner)
    if isinstance(inner, IdentityMap):
        return outer
    return inner if isinstance(outer, IdentityMap) else product


@dataclass(frozen=True, eq=False)
class ComposedMap(LinearMap):
    """outer ∘ inner, kept as two factors."""

    outer: LinearMap
    inner: LinearMap

    def __post_init__(self) -> None:
        outer, inner = self.outer, self.inner
        if outer.shape[1] != inner.shape[0]:
            raise ValueError(
                f"cannot compose maps of shapes {outer.shape} and {inner.shape}: {outer.shape[1]} is not {inner.shape[0]}"
            )
        if outer.batch is not None and inner.batch is not None and outer.batch != inner.batch:
            raise ValueError(f"cannot compose maps of {outer.batch} and {inner.batch} samples")
        if outer.dtype != inner.dtype:
            raise ValueError(f"cannot compose maps of dtypes {outer.dtype} and {inner.dtype}")

    @property
    def shape(self) -> tuple[int, int]:
        return self.outer.shape[0], self.inner.shape[1]

    @property
    def batch(self) -> int | None:
        return self.outer.batch if self.outer.batch is not None else self.inner.batch

    @property
    def rows_orthonormal(self) -> bool:
        return self.outer.rows_orthonormal and self.inner.rows_orthonormal

    def apply(self, x: Tensor) -> Tensor:
        return self.outer.apply(self.inner.apply(x))

    def adjoint(self, y: Tensor) -> Tensor:
        return self.inner.adjoint(self.outer.adjoint(y))

    def apply_block(self, x: Tensor) -> Tensor:
        return self.outer.apply_block(self.inner.apply_block(x))

    def columns(self, index: Tensor) -> Tensor:
        return self.outer.apply_block(self.inner.columns(index))

    def _column_norms(self) -> Tensor:
        known = self.outer.column_norms_after(self.inner)
        return super()._column_norms() if known is None else known

    def squared_frobenius_norm(self) -> Tensor:
        return self.outer.squared_frobenius_norm() if self.inner.rows_orthonormal else super().squared_frobenius_norm()

    def gram(self) -> Tensor:
        return self.outer.gram() if self.inner.rows_orthonormal else super().gram()

    def materialize(self) -> Tensor:
        known = self.outer.materialize_after(self.inner)
        return self.outer.materialize() @ self.inner.materialize() if known is None else known

    def distinct(self) -> tuple[LinearMap, int]:
        if self.inner.batch is not None:
            return self, 1
        outer, members = self.outer.distinct()
        return ComposedMap(outer, self.inner), members
