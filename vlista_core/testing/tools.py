"""What the checks share: draws, comparisons, refusals, and a map that counts what was asked of it."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from vlista_core.linops import LinearMap

Tolerance = tuple[float, float]
"""In double and in single precision."""


def normal(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    """Standard normal draws."""
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def allowed(tolerance: Tolerance, dtype: torch.dtype) -> float:
    """The tolerance for the precision of `dtype`."""
    return tolerance[0 if dtype.to_real() == torch.float64 else 1]


def check_close(what: str, got: Tensor, expected: Tensor, tolerance: Tolerance, scale: float | None = None) -> None:
    """The largest difference, over `scale` or else the largest entry, is within the tolerance for the dtype of `got`."""
    size = float(expected.detach().abs().max()) if scale is None else scale
    gap = float((got - expected).detach().abs().max()) / max(size, math.ulp(0.0))
    assert gap <= allowed(tolerance, got.dtype), f"{what} differs by {gap:.1e}"


def check_refused(what: str, argument: str, call: Callable[[], object]) -> None:
    """The call raises a ValueError whose message has `argument` in it."""
    try:
        call()
    except ValueError as error:
        assert argument in str(error), f"{what} gave a message without {argument!r}: {error}"
    else:
        raise AssertionError(f"{what} was accepted")


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
        return self._asked("apply").apply(x)

    def adjoint(self, y: Tensor) -> Tensor:
        return self._asked("adjoint").adjoint(y)

    def apply_block(self, x: Tensor) -> Tensor:
        return self._asked("apply_block").apply_block(x)

    def columns(self, index: Tensor) -> Tensor:
        return self._asked("columns").columns(index)

    def gram(self) -> Tensor:
        return self._asked("gram").gram()

    def materialize(self) -> Tensor:
        return self._asked("materialize").materialize()

    def _asked(self, name: str) -> LinearMap:
        self.calls[name] += 1
        return self.base
