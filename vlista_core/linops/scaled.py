"""A map times one number per sample: the same Φ in another unit."""

from dataclasses import dataclass

from torch import Tensor

from vlista_core.linops.base import LinearMap


@dataclass(frozen=True, eq=False)
class ScaledMap(LinearMap):
    """c·A with c > 0 of each sample."""

    map: LinearMap
    """A, one for each sample or shared."""
    scale: Tensor
    """c: [batch], real."""

    def __post_init__(self) -> None:
        size = self.scale.shape[0] if self.map.batch is None else self.map.batch
        if self.scale.shape != (size,) or self.scale.is_complex():
            raise ValueError(f"scale must be real of shape [{size}], got {self.scale.dtype} {[*self.scale.shape]}")

    @property
    def shape(self) -> tuple[int, int]:
        return self.map.shape

    @property
    def batch(self) -> int:
        return self.scale.shape[0]

    def apply(self, x: Tensor) -> Tensor:
        self._check_input("x", x, self.shape[1])
        return self.scale[:, None] * self.map.apply(x)

    def adjoint(self, y: Tensor) -> Tensor:
        self._check_input("y", y, self.shape[0])
        return self.scale[:, None] * self.map.adjoint(y)

    def apply_block(self, x: Tensor) -> Tensor:
        return self.scale[:, None, None] * self.map.apply_block(x)

    def columns(self, index: Tensor) -> Tensor:
        return self.scale[:, None, None] * self.map.columns(index)

    def column_norms_after(self, inner: LinearMap) -> Tensor | None:
        norms = self.map.column_norms_after(inner)
        return None if norms is None else self.scale[:, None] * norms

    def materialize_after(self, inner: LinearMap) -> Tensor | None:
        known = self.map.materialize_after(inner)
        return None if known is None else self.scale[:, None, None] * known

    def materialize(self) -> Tensor:
        return self.scale[:, None, None] * self.map.materialize()
