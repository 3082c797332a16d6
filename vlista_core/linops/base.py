"""What a linear map is, and what follows from apply and adjoint alone."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

_BLOCK_BYTES = 64 * 2**20
_DEAD = 64.0
"""Columns shorter than so many units of rounding of the longest are dead. What Φ does not see of Ψ is left with a length of one
to six units, whatever the precision, because an entry of ΦΨ is off by about one unit of ‖φ‖‖ψ‖; 64 is 7.6e-6 of the longest
in single and 1.4e-14 in double precision, far below any column that a measurement in that precision can tell from noise."""


@cache
def _start(n: int) -> Tensor:
    """Where power iterations start: [n], of length one."""
    start = torch.randn(n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    unit: Tensor = start / start.norm()
    return unit


class LinearMap(ABC):
    """A real or complex linear map for every sample of a batch; frozen after construction.

    A subclass is a frozen dataclass whose fields are tensors, tuples of tensors, maps and options. It gives `shape`, `apply`,
    `adjoint`, `materialize`, and `batch` where samples have matrices of their own; everything else follows from these and the
    fields, and may be overridden where the structure allows something faster (`_column_norms` in place of `column_norms`).
    """

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """(m, n): output and input length."""

    @property
    def batch(self) -> int | None:
        """How many samples have a matrix of their own; None when one matrix serves any batch."""
        return None

    @property
    def dtype(self) -> torch.dtype:
        """That of the first field with data."""
        return next(self._parts()).dtype

    @property
    def device(self) -> torch.device:
        """That of the first field with data."""
        return next(self._parts()).device

    @property
    def rows_orthonormal(self) -> bool:
        """Whether A Aᴴ = I is known to hold by construction (so that (ΦA)(ΦA)ᴴ = ΦΦᴴ needs no product)."""
        return False

    @abstractmethod
    def apply(self, x: Tensor) -> Tensor:
        """A x. x: [batch, n] -> [batch, m]."""

    @abstractmethod
    def adjoint(self, y: Tensor) -> Tensor:
        """Aᴴ y. y: [batch, m] -> [batch, n]."""

    @abstractmethod
    def materialize(self) -> Tensor:
        """The matrix itself: [batch, m, n], batch 1 for a shared map. Costly: ask only where the method needs it."""

    def tensors(self) -> tuple[Tensor, ...]:
        """The data that the map stores, that of maps among its fields included."""
        return tuple(
            tensor for part in self._parts() for tensor in (part.tensors() if isinstance(part, LinearMap) else (part,))
        )

    def with_tensors(self, tensors: Sequence[Tensor]) -> Self:
        """The same map with other data, as of other samples: what `tensors` gave of it, in that order."""
        left = iter(tensors)

        def change(_: Tensor) -> Tensor:
            return next(left)

        def change_map(part: "LinearMap") -> "LinearMap":
            return part._with(change, change_map)

        return self._with(change, change_map)

    def select(self, index: Tensor) -> "LinearMap":
        """The map of the chosen samples. index: [k] integer or [batch] bool. A shared map returns itself.

        Where `batch` is set, the first dimension of a tensor must be that of the samples; scalars are shared.
        """
        if self.batch is None:
            return self
        return self._with(lambda tensor: tensor[index] if tensor.ndim else tensor, lambda part: part.select(index))

    def to(self, device: torch.device | str) -> Self:
        """The same map with its data on `device`."""
        return self._with(lambda tensor: tensor.to(device), lambda part: part.to(device))

    def cast(self, dtype: torch.dtype) -> Self:
        """The same map in another precision of the same kind, real or complex; real fields of complex maps stay real."""

        def change(tensor: Tensor) -> Tensor:
            if tensor.is_complex():
                return tensor.to(dtype)
            return tensor.to(dtype.to_real()) if tensor.is_floating_point() else tensor

        return self._with(change, lambda part: part.cast(dtype))

    def distinct(self) -> "tuple[LinearMap, int]":
        """The map of the matrices that differ, and how many samples in a row share each: for work on matrices themselves."""
        return self, 1

    def blocks(self) -> "tuple[LinearMap, int]":
        """A₁ and k where A = I_k ⊗ A₁, one map for every part of the input; A and 1 otherwise. For work on matrices."""
        return self, 1

    def apply_block(self, x: Tensor) -> Tensor:
        """A X for several vectors per sample. x: [batch or 1, n, k] -> [batch or 1, m, k]."""
        size = self.batch if self.batch is not None else x.shape[0]
        x = x.expand(size, -1, -1)
        return torch.stack([self.apply(x[:, :, j]) for j in range(x.shape[2])], dim=2)

    def columns(self, index: Tensor) -> Tensor:
        """Chosen columns a_j. index: [batch or 1, k] -> [batch or 1, m, k]."""
        identity = torch.nn.functional.one_hot(index, self.shape[1]).to(self.dtype)
        return self.apply_block(identity.transpose(1, 2))

    def column_norms(self) -> Tensor:
        """Euclidean norm of every column: [batch or 1, n]; exactly 0 for a dead one, whose norm is rounding of the largest.

        Nobody may divide by a norm that is rounding: a solver leaves out the columns that have none. Ask the map in the
        precision its data came in; `cast` to double does not make rounding any smaller.
        """
        norms = self._column_norms()
        least = _DEAD * torch.finfo(norms.dtype).eps * norms.amax(1, keepdim=True)
        return torch.where(norms > least, norms, 0.0)

    def _column_norms(self) -> Tensor:
        """The norms as they are computed, from a block of columns at a time and never all: [batch or 1, n]."""
        m, n = self.shape
        width = max(1, _BLOCK_BYTES // ((self.batch or 1) * m * self.dtype.itemsize))
        blocks = torch.arange(n, device=self.device)[None].split(width, dim=1)
        return torch.cat([torch.linalg.vector_norm(self.columns(block), dim=1) for block in blocks], dim=1)

    def column_norms_after(self, inner: "LinearMap") -> Tensor | None:
        """Norms of the columns of A ∘ inner where the structure of both gives them cheaply: [batch or 1, atoms], else None.

        As they are computed: `column_norms` of the product tells which are dead.
        """
        return None

    def materialize_after(self, inner: "LinearMap") -> Tensor | None:
        """The matrix of A ∘ inner where the structure of both gives it without a product of their matrices, else None:
        [batch or 1, m, atoms]."""
        return None

    def squared_frobenius_norm(self) -> Tensor:
        """‖A‖_F², the sum of squared column norms: [batch or 1]."""
        return self.column_norms().square().sum(1)

    def gram(self) -> Tensor:
        """A Aᴴ: [batch or 1, m, m]."""
        matrix = self.materialize()
        return matrix @ matrix.mH

    def spectral_norm(self, *, iterations: int = 200, tolerance: float = 1e-4) -> Tensor:
        """Largest singular value by power iteration on AᴴA: [batch or 1].

        Every sample starts from the same fixed vector and keeps the value at which its own relative change fell below
        `tolerance`, so the result does not depend on what else is in the batch. The value is a lower estimate.
        """
        n = self.shape[1]
        x = _start(n).to(self.dtype).to(self.device).expand(self.batch or 1, n)
        norm = torch.zeros(x.shape[0], dtype=x.real.dtype, device=self.device)
        settled = torch.zeros(x.shape[0], dtype=torch.bool, device=self.device)
        for step in range(iterations):
            forward = self.apply(x)
            value = torch.linalg.vector_norm(forward, dim=1)
            now_settled = settled | ((value - norm).abs() <= tolerance * value)
            norm = torch.where(settled, norm, value)
            settled = now_settled
            if step % 8 == 7 and not torch.compiler.is_exporting() and (settled.is_meta or bool(settled.all())):
                break
            x = self.adjoint(forward)
            x = x / torch.linalg.vector_norm(x, dim=1, keepdim=True).clamp_min(torch.finfo(x.real.dtype).tiny)
        return norm

    def __matmul__(self, other: "LinearMap") -> "LinearMap":
        """Lazy composition: (a @ b).apply(x) = a.apply(b.apply(x))."""
        from vlista_core.linops.composed import compose

        return compose(self, other)

    def _parts(self) -> "Iterator[Tensor | LinearMap]":
        """The tensors and maps among the fields, in their order."""
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            for entry in value if isinstance(value, tuple) else (value,):
                if isinstance(entry, (Tensor, LinearMap)):
                    yield entry

    def _with(self, change: Callable[[Tensor], Tensor], change_map: "Callable[[LinearMap], LinearMap]") -> Self:
        """The same kind of map with every tensor and every map among the fields changed."""

        def changed(value: object) -> object:
            if isinstance(value, Tensor):
                return change(value)
            if isinstance(value, LinearMap):
                return change_map(value)
            return tuple(changed(entry) for entry in value) if isinstance(value, tuple) else value

        build: Callable[..., Self] = type(self)
        return build(**{name: changed(getattr(self, name)) for name in self.__dataclass_fields__})

    def _check_input(self, name: str, x: Tensor, length: int) -> None:
        if x.ndim != 2 or x.shape[1] != length:
            raise ValueError(
                f"{name} must have shape [batch, {length}] for a map of shape {self.shape}, got {[*x.shape]}"
            )
        if self.batch is not None and x.shape[0] != self.batch:
            raise ValueError(f"{name} must hold {self.batch} samples, one for each matrix of the map, got {x.shape[0]}")
        if x.dtype != self.dtype and not torch.is_autocast_enabled(x.device.type):
            raise ValueError(f"{name} must have the map's dtype {self.dtype}, got {x.dtype}")
