"""A map that counts what was asked of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from torch import Tensor

from vlista_core.linops import LinearMap


@dataclass(frozen=True, eq=False)
class SpyMap(LinearMap):
    """Passes everything on to `base` and counts the calls by name, its selections and casts included."""

    base: LinearMap
    calls: Counter[str] = field(default_factory=Counter)

    @property
    def shape(self) -> tuple[int, int]:
        return self.base.shape

    @property
    def batch(self) -> int | None:
        return self.base.batch

    def apply(self, x: Tensor) -> Tensor:
        self.calls["apply"] += 1
        return self.base.apply(x)

    def adjoint(self, y: Tensor) -> Tensor:
        self.calls["adjoint"] += 1
        return self.base.adjoint(y)

    def apply_block(self, x: Tensor) -> Tensor:
        self.calls["apply_block"] += 1
        return self.base.apply_block(x)

    def columns(self, index: Tensor) -> Tensor:
        self.calls["columns"] += 1
        return self.base.columns(index)

    def gram(self) -> Tensor:
        self.calls["gram"] += 1
        return self.base.gram()

    def materialize(self) -> Tensor:
        self.calls["materialize"] += 1
        return self.base.materialize()
