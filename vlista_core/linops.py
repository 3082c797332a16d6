"""Batched linear maps: the sensing matrix Φ, the dictionary Ψ and their lazy product.

A map takes a batch of vectors `x: [batch, n]` to `[batch, m]`. Its matrix is either shared by the batch (one GEMM) or
differs for every sample (a batched product). `phi @ psi` is lazy: ΦΨ costs two products a call and is never formed
unless somebody calls `materialize` by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

_BLOCK_BYTES = 64 * 2**20
_CPU = torch.device("cpu")


class LinearMap(ABC):
    """A real or complex linear map for every sample of a batch; frozen after construction.

    A subclass gives `shape`, `batch`, `dtype`, `device`, `apply`, `adjoint`, `materialize`, `select` and `to`; everything
    else follows, and may be overridden where the structure allows something faster.
    """

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """(m, n): output and input length."""

    @property
    @abstractmethod
    def batch(self) -> int | None:
        """How many samples have a matrix of their own; None when one matrix serves any batch."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype: ...

    @property
    @abstractmethod
    def device(self) -> torch.device: ...

    @abstractmethod
    def apply(self, x: Tensor) -> Tensor:
        """A x. x: [batch, n] -> [batch, m]."""

    @abstractmethod
    def adjoint(self, y: Tensor) -> Tensor:
        """Aᴴ y. y: [batch, m] -> [batch, n]."""

    @abstractmethod
    def materialize(self) -> Tensor:
        """The matrix itself: [batch, m, n], batch 1 for a shared map. Costly: ask only where the method needs it."""

    @abstractmethod
    def select(self, index: Tensor) -> LinearMap:
        """The map of the chosen samples. index: [k] integer or [batch] bool. A shared map returns itself."""

    @abstractmethod
    def to(self, device: torch.device | str) -> LinearMap:
        """The same map with its data on `device`."""

    def cast(self, dtype: torch.dtype) -> LinearMap:
        """The same map in another precision of the same kind, real or complex."""
        return DenseMap(self.materialize().to(dtype), self.orthonormal)

    def apply_block(self, x: Tensor) -> Tensor:
        """A X for several vectors a sample. x: [batch or 1, n, k] -> [batch or 1, m, k]."""
        size = self.batch if self.batch is not None else x.shape[0]
        x = x.expand(size, -1, -1)
        return torch.stack([self.apply(x[:, :, j]) for j in range(x.shape[2])], dim=2)

    def columns(self, index: Tensor) -> Tensor:
        """Chosen columns a_j. index: [batch or 1, k] -> [batch or 1, m, k]."""
        identity = torch.nn.functional.one_hot(index, self.shape[1]).to(self.dtype)
        return self.apply_block(identity.transpose(1, 2))

    def column_blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """All columns, a block at a time and never all at once: (slice of columns, [batch or 1, m, k])."""
        m, n = self.shape
        width = max(1, _BLOCK_BYTES // ((self.batch or 1) * m * self.dtype.itemsize))
        for start in range(0, n, width):
            block = slice(start, min(start + width, n))
            yield block, self.columns(torch.arange(block.start, block.stop, device=self.device)[None])

    def column_norms(self) -> Tensor:
        """Euclidean norm of every column: [batch or 1, n]."""
        return torch.cat([torch.linalg.vector_norm(block, dim=1) for _, block in self.column_blocks()], dim=1)

    def squared_frobenius_norm(self) -> Tensor:
        """‖A‖_F², the sum of squared column norms: [batch or 1]."""
        return self.column_norms().square().sum(1)

    def gram(self) -> Tensor:
        """A Aᴴ: [batch or 1, m, m]."""
        matrix = self.materialize()
        return matrix @ matrix.mH

    @property
    def orthonormal(self) -> bool:
        """Whether A Aᴴ = I is known to hold by construction (so that (ΦA)(ΦA)ᴴ = ΦΦᴴ needs no product)."""
        return False

    def spectral_norm(self, *, iterations: int = 200, tolerance: float = 1e-4) -> Tensor:
        """Largest singular value by power iteration on AᴴA: [batch or 1].

        Every sample starts from the same fixed vector and keeps the value at which its own relative change fell below
        `tolerance`, so the result does not depend on what else is in the batch. The value is a lower estimate.
        """
        n = self.shape[1]
        start = torch.randn(n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        x = (start / start.norm()).to(self.dtype).to(self.device).expand(self.batch or 1, n)
        norm = torch.zeros(x.shape[0], dtype=x.real.dtype, device=self.device)
        settled = torch.zeros(x.shape[0], dtype=torch.bool, device=self.device)
        for step in range(iterations):
            forward = self.apply(x)
            value = torch.linalg.vector_norm(forward, dim=1)
            now_settled = settled | ((value - norm).abs() <= tolerance * value)
            norm = torch.where(settled, norm, value)
            settled = now_settled
            if step % 8 == 7 and (settled.is_meta or bool(settled.all())):
                break
            x = self.adjoint(forward)
            x = x / torch.linalg.vector_norm(x, dim=1, keepdim=True).clamp_min(torch.finfo(x.real.dtype).tiny)
        return norm

    def __matmul__(self, other: LinearMap) -> LinearMap:
        """Lazy composition: (a @ b).apply(x) = a.apply(b.apply(x))."""
        product = ComposedMap(self, other)
        if isinstance(other, IdentityMap):
            return self
        return other if isinstance(self, IdentityMap) else product

    def _check_input(self, name: str, x: Tensor, length: int) -> None:
        if x.ndim != 2 or x.shape[1] != length:
            raise ValueError(
                f"{name} must have shape [batch, {length}] for a map of shape {self.shape}, got {[*x.shape]}"
            )
        if self.batch is not None and x.shape[0] != self.batch:
            raise ValueError(f"{name} must hold {self.batch} samples, one for each matrix of the map, got {x.shape[0]}")
        if x.dtype != self.dtype and not torch.is_autocast_enabled(x.device.type):
            raise ValueError(f"{name} must have the map's dtype {self.dtype}, got {x.dtype}")


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

    @property
    def dtype(self) -> torch.dtype:
        return self.matrix.dtype

    @property
    def device(self) -> torch.device:
        return self.matrix.device

    @property
    def orthonormal(self) -> bool:
        return self.rows_orthonormal

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

    def column_norms(self) -> Tensor:
        norms: Tensor = torch.linalg.vector_norm(self.materialize(), dim=1)
        return norms

    def materialize(self) -> Tensor:
        return self.matrix if self.batch is not None else self.matrix[None]

    def select(self, index: Tensor) -> DenseMap:
        return self if self.batch is None else DenseMap(self.matrix[index], self.rows_orthonormal)

    def to(self, device: torch.device | str) -> DenseMap:
        return DenseMap(self.matrix.to(device), self.rows_orthonormal)

    def cast(self, dtype: torch.dtype) -> DenseMap:
        return DenseMap(self.matrix.to(dtype), self.rows_orthonormal)


@dataclass(frozen=True, eq=False)
class IdentityMap(LinearMap):
    """x -> x on vectors of length n: the canonical dictionary."""

    length: int
    data_type: torch.dtype = torch.float32
    on: torch.device = _CPU

    @property
    def shape(self) -> tuple[int, int]:
        return self.length, self.length

    @property
    def batch(self) -> None:
        return None

    @property
    def dtype(self) -> torch.dtype:
        return self.data_type

    @property
    def device(self) -> torch.device:
        return self.on

    @property
    def orthonormal(self) -> bool:
        return True

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

    def select(self, index: Tensor) -> IdentityMap:
        return self

    def to(self, device: torch.device | str) -> IdentityMap:
        return IdentityMap(self.length, self.data_type, torch.device(device))

    def cast(self, dtype: torch.dtype) -> IdentityMap:
        return IdentityMap(self.length, dtype, self.on)


@dataclass(frozen=True, eq=False)
class ComposedMap(LinearMap):
    """outer ∘ inner, kept as two factors."""

    outer: LinearMap
    inner: LinearMap

    def __post_init__(self) -> None:
        _check_composable(self.outer, self.inner)

    @property
    def shape(self) -> tuple[int, int]:
        return self.outer.shape[0], self.inner.shape[1]

    @property
    def batch(self) -> int | None:
        return self.outer.batch if self.outer.batch is not None else self.inner.batch

    @property
    def dtype(self) -> torch.dtype:
        return self.outer.dtype

    @property
    def device(self) -> torch.device:
        return self.outer.device

    @property
    def orthonormal(self) -> bool:
        return self.outer.orthonormal and self.inner.orthonormal

    def apply(self, x: Tensor) -> Tensor:
        return self.outer.apply(self.inner.apply(x))

    def adjoint(self, y: Tensor) -> Tensor:
        return self.inner.adjoint(self.outer.adjoint(y))

    def apply_block(self, x: Tensor) -> Tensor:
        return self.outer.apply_block(self.inner.apply_block(x))

    def columns(self, index: Tensor) -> Tensor:
        return self.outer.apply_block(self.inner.columns(index))

    def squared_frobenius_norm(self) -> Tensor:
        return self.outer.squared_frobenius_norm() if self.inner.orthonormal else super().squared_frobenius_norm()

    def gram(self) -> Tensor:
        return self.outer.gram() if self.inner.orthonormal else super().gram()

    def materialize(self) -> Tensor:
        return self.outer.materialize() @ self.inner.materialize()

    def select(self, index: Tensor) -> ComposedMap:
        return ComposedMap(self.outer.select(index), self.inner.select(index))

    def to(self, device: torch.device | str) -> ComposedMap:
        return ComposedMap(self.outer.to(device), self.inner.to(device))

    def cast(self, dtype: torch.dtype) -> ComposedMap:
        return ComposedMap(self.outer.cast(dtype), self.inner.cast(dtype))


@dataclass(frozen=True, eq=False)
class ScaledMap(LinearMap):
    """scale · A, with one real scale for all samples or one for each `[batch]`."""

    base: LinearMap
    scale: Tensor

    def __post_init__(self) -> None:
        real = torch.empty((), dtype=self.base.dtype).real.dtype
        if self.scale.ndim > 1 or self.scale.dtype != real:
            raise ValueError(
                f"scale must be a {real} tensor of shape [] or [batch], got {self.scale.dtype} {[*self.scale.shape]}"
            )
        if self.scale.ndim == 1 and self.base.batch not in (None, self.scale.shape[0]):
            raise ValueError(
                f"scale must hold {self.base.batch} values, one for each sample, got {self.scale.shape[0]}"
            )

    @property
    def shape(self) -> tuple[int, int]:
        return self.base.shape

    @property
    def batch(self) -> int | None:
        return self.scale.shape[0] if self.scale.ndim == 1 else self.base.batch

    @property
    def dtype(self) -> torch.dtype:
        return self.base.dtype

    @property
    def device(self) -> torch.device:
        return self.base.device

    def apply(self, x: Tensor) -> Tensor:
        self._check_input("x", x, self.shape[1])
        return self.scale[..., None] * self.base.apply(x)

    def adjoint(self, y: Tensor) -> Tensor:
        self._check_input("y", y, self.shape[0])
        return self.scale[..., None] * self.base.adjoint(y)

    def apply_block(self, x: Tensor) -> Tensor:
        return self.scale[..., None, None] * self.base.apply_block(x)

    def columns(self, index: Tensor) -> Tensor:
        return self.scale[..., None, None] * self.base.columns(index)

    def column_norms(self) -> Tensor:
        return self.scale[..., None].abs() * self.base.column_norms()

    def materialize(self) -> Tensor:
        return self.scale[..., None, None] * self.base.materialize()

    def select(self, index: Tensor) -> ScaledMap:
        return ScaledMap(self.base.select(index), self.scale[index] if self.scale.ndim == 1 else self.scale)

    def to(self, device: torch.device | str) -> ScaledMap:
        return ScaledMap(self.base.to(device), self.scale.to(device))

    def cast(self, dtype: torch.dtype) -> ScaledMap:
        return ScaledMap(self.base.cast(dtype), self.scale.to(torch.empty((), dtype=dtype).real.dtype))


def as_map(matrix: LinearMap | Tensor) -> LinearMap:
    """A LinearMap as it is; a tensor [m, n] or [batch, m, n] as a DenseMap."""
    return matrix if isinstance(matrix, LinearMap) else DenseMap(matrix)


def _check_composable(outer: LinearMap, inner: LinearMap) -> None:
    if outer.shape[1] != inner.shape[0]:
        raise ValueError(
            f"cannot compose maps of shapes {outer.shape} and {inner.shape}: {outer.shape[1]} is not {inner.shape[0]}"
        )
    if outer.batch is not None and inner.batch is not None and outer.batch != inner.batch:
        raise ValueError(f"cannot compose maps of {outer.batch} and {inner.batch} samples")
    if outer.dtype != inner.dtype:
        raise ValueError(f"cannot compose maps of dtypes {outer.dtype} and {inner.dtype}")
