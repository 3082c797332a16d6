"""Angular and delay grids as Kronecker dictionaries: vec(H) = (A_delay ⊗ A_tx ⊗ A_rx) vec(X), never expanded.

The signal index is k·N_t·N_r + t·N_r + r, as in `chanest.frontend`; the code index is the same with grid points.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor, nn

from chanest.arrays import Array
from vlista_core.configured import argument
from vlista_core.dictionaries import LearnedMap
from vlista_core.linops import LinearMap

if TYPE_CHECKING:
    from chanest.problem import ChannelProblem


@argument
@dataclass(frozen=True, eq=False)
class KroneckerMap(LinearMap):
    """A_delay ⊗ A_tx ⊗ A_rx, shared by the batch or one for each sample, applied as two or three small products."""

    rx: Tensor
    """[N_r, G_r], or [batch, N_r, G_r] as the other factors then."""
    tx: Tensor
    """[N_t, G_t]."""
    delay: Tensor | None = None
    """[S, G_d]; None for a narrowband channel."""
    rows_orthonormal: bool = False

    def __post_init__(self) -> None:
        for name, factor in (("rx", self.rx), ("tx", self.tx), ("delay", self.delay)):
            if factor is not None and (
                factor.ndim not in (2, 3) or factor.shape[:-2] != self.rx.shape[:-2] or factor.dtype != self.rx.dtype
            ):
                expected = ", ".join([*map(str, self.rx.shape[:-2]), "N", "G"])
                raise ValueError(
                    f"{name} must be a matrix [{expected}] of dtype {self.rx.dtype}, got {factor.dtype} {[*factor.shape]}"
                )

    @property
    def factors(self) -> tuple[Tensor, ...]:
        """The factors, slowest index first."""
        return (self.tx, self.rx) if self.delay is None else (self.delay, self.tx, self.rx)

    @property
    def shape(self) -> tuple[int, int]:
        return math.prod(f.shape[-2] for f in self.factors), math.prod(f.shape[-1] for f in self.factors)

    @property
    def batch(self) -> int | None:
        return self.rx.shape[0] if self.rx.ndim == 3 else None

    def apply(self, x: Tensor) -> Tensor:
        self._check_input("x", x, self.shape[1])
        return _product(self.factors, x) if self.batch is None else _own_products(self.factors, x[:, None])[:, 0]

    def adjoint(self, y: Tensor) -> Tensor:
        self._check_input("y", y, self.shape[0])
        if self.batch is None:
            return _product(tuple(factor.mH for factor in self.factors), y)
        # conj(Fᵀ conj(y)): the factors, which are large together, are read in place and never copied.
        transposed = tuple(factor.mT for factor in self.factors)
        return _own_products(transposed, y.conj().resolve_conj()[:, None])[:, 0].conj().resolve_conj()

    def apply_block(self, x: Tensor) -> Tensor:
        if self.batch is not None:
            return _own_products(self.factors, x.expand(self.batch, -1, -1).mT).mT
        return _product(self.factors, x.mT.flatten(0, 1)).reshape(x.shape[0], x.shape[2], -1).mT

    def columns(self, index: Tensor) -> Tensor:
        if self.batch is not None:
            return super().columns(index)
        result = torch.ones(*index.shape, 1, dtype=self.dtype, device=self.device)
        for factor in reversed(self.factors):
            chosen = factor.mT[index % factor.shape[1]]
            index = index // factor.shape[1]
            result = (chosen[..., :, None] * result[..., None, :]).flatten(-2)
        return result.mT

    def _column_norms(self) -> Tensor:
        norms = [torch.linalg.vector_norm(factor, dim=-2, keepdim=True) for factor in self.factors]
        return _kron(norms)[..., 0, :].reshape(self.batch or 1, -1)

    def gram(self) -> Tensor:
        gram = _kron([factor @ factor.mH for factor in self.factors])
        return gram.reshape(-1, *gram.shape[-2:])

    def spectral_norm(self, *, iterations: int = 200, tolerance: float = 1e-4) -> Tensor:
        if self.batch is not None:
            return super().spectral_norm(iterations=iterations, tolerance=tolerance)
        norm = torch.ones(1, dtype=self.rx.real.dtype, device=self.device)
        for factor in self.factors:
            norm = norm * torch.linalg.matrix_norm(factor, ord=2)
        return norm

    def materialize(self) -> Tensor:
        return _kron(list(self.factors)).reshape(self.batch or 1, *self.shape)


@argument
class LearnedKronecker(LearnedMap):
    """A KroneckerMap whose complex factors are parameters, stored as real pairs."""

    def __init__(self, start: KroneckerMap) -> None:
        """start: the factors to begin with, such as those of `angular_dictionary`."""
        super().__init__()
        if not start.rx.is_complex():
            raise ValueError(f"start must have complex factors, got {start.rx.dtype}")
        self.rx_weight, self.tx_weight = _real_pairs(start.rx), _real_pairs(start.tx)
        self.delay_weight = None if start.delay is None else _real_pairs(start.delay)

    def frozen(self) -> KroneckerMap:
        rx, tx = torch.view_as_complex(self.rx_weight), torch.view_as_complex(self.tx_weight)
        return KroneckerMap(rx, tx, None if self.delay_weight is None else torch.view_as_complex(self.delay_weight))


@argument
@dataclass(frozen=True)
class Link:
    """The two arrays and the subcarriers: all that a grid of angles and delays depends on."""

    rx: Array
    tx: Array
    frequencies: tuple[float, ...] | None = None

    @classmethod
    def of(cls, problem: "ChannelProblem") -> Self:
        """The link of a problem."""
        return cls(*problem.arrays, problem.source.frequencies)

    @property
    def subcarriers(self) -> int:
        """S, one for a narrowband link."""
        return len(self.frequencies or (0.0,))

    @property
    def signal_length(self) -> int:
        """n = S·N_t·N_r."""
        return self.subcarriers * self.tx.ports * self.rx.ports


def angular_grid(array: Array, *, oversampling: float = 1.0) -> Tensor:
    """Steering vectors on a grid uniform in phase step along each axis, unit norm: [ports, atoms], complex64.

    At oversampling 1 this is an orthonormal (DFT) basis. A dual polarised array gets the grid once for each
    polarisation. An axis of one element gets one point.
    """
    if not 1.0 <= oversampling < math.inf:
        raise ValueError(f"oversampling must be at least 1, got {oversampling!r}")
    planar = torch.kron(_phase_grid(array.columns, oversampling), _phase_grid(array.rows, oversampling))
    polarisations = torch.eye(len(array.slants), dtype=torch.complex128)
    return torch.kron(polarisations, planar).to(torch.complex64)


def delay_grid(frequencies: tuple[float, ...], longest_delay: float, points: int) -> Tensor:
    """exp(-j2πfτ) for `points` delays from 0 up to `longest_delay`, unit norm: [subcarriers, points], complex64."""
    if points < 1 or not 0.0 <= longest_delay < math.inf:
        raise ValueError(f"points and longest_delay must be positive, got {points} and {longest_delay!r}")
    delays = torch.linspace(0.0, longest_delay, points, dtype=torch.float64)
    phase = -2 * math.pi * torch.outer(torch.tensor(frequencies, dtype=torch.float64), delays)
    return torch.polar(torch.full_like(phase, 1 / math.sqrt(len(frequencies))), phase).to(torch.complex64)


def angular_dictionary(
    rx: Array, tx: Array, frequencies: tuple[float, ...] | None = None, *, oversampling: float = 1.0
) -> KroneckerMap:
    """The beamspace dictionary of a link, with a delay grid where it has subcarriers.

    Delays are spaced by the inverse of the bandwidth over `oversampling`, up to half the symbol length.
    """
    arrival, departure = (angular_grid(array, oversampling=oversampling) for array in (rx, tx))
    tight = oversampling == 1.0 and frequencies is None
    return KroneckerMap(arrival, departure, _band_grid(frequencies, oversampling), tight)


def _band_grid(frequencies: tuple[float, ...] | None, oversampling: float) -> Tensor | None:
    if frequencies is None:
        return None
    if len(frequencies) == 1:
        return torch.ones(1, 1, dtype=torch.complex64)
    points = math.ceil(oversampling * len(frequencies) / 2)
    bandwidth = len(frequencies) * (frequencies[1] - frequencies[0])
    return delay_grid(frequencies, (points - 1) / (oversampling * bandwidth), points)


def delay_steps(frequencies: tuple[float, ...], oversampling: float) -> Tensor:
    """The phases per subcarrier, 2π·spacing·delay, of the delays of `angular_dictionary`: [points], float64."""
    points = math.ceil(oversampling * len(frequencies) / 2)
    return 2 * math.pi * torch.arange(points, dtype=torch.float64) / (oversampling * len(frequencies))


def grid_points(elements: int, oversampling: float) -> int:
    """How many phase steps the grid has along an axis of an array; they go round."""
    return 1 if elements == 1 else math.ceil(oversampling * elements)


def phase_steps(elements: int, oversampling: float) -> Tensor:
    """The phase steps of the grid along an axis of an array, spread evenly over [-π, π): [points], float64."""
    points = grid_points(elements, oversampling)
    return 2 * math.pi * (torch.arange(points, dtype=torch.float64) - points // 2) / points


def _phase_grid(elements: int, oversampling: float) -> Tensor:
    """Unit-norm phase ramps with the steps of the grid: [elements, points]."""
    steps = phase_steps(elements, oversampling)
    centred = torch.arange(elements, dtype=torch.float64) - (elements - 1) / 2
    phase = torch.outer(centred, steps)
    return torch.polar(torch.full_like(phase, 1 / math.sqrt(elements)), phase)


def _product(factors: tuple[Tensor, ...], x: Tensor) -> Tensor:
    """A shared factor at a time from the fastest index, each one large product. x: [batch, Π G_i] -> [batch, Π N_i]."""
    batch = x.shape[0]
    x = x.reshape(batch, *(factor.shape[1] for factor in factors))
    for axis in range(len(factors), 0, -1):
        x = (x.movedim(axis, -1) @ factors[axis - 1].mT).movedim(-1, axis)
    return x.reshape(batch, -1)


def _own_products(factors: tuple[Tensor, ...], x: Tensor) -> Tensor:
    """The same with factors of each sample's own, for k vectors each. x: [batch, k, Π G_i] -> [batch, k, Π N_i]."""
    batch, count = x.shape[:2]
    after = 1
    for factor in reversed(factors):
        rows, columns = factor.shape[-2:]
        if after == 1:
            x = x.reshape(batch, -1, columns) @ factor.mT
        else:
            x = factor[..., None, :, :] @ x.reshape(batch, -1, columns, after)
        after *= rows
    return x.reshape(batch, count, -1)


def _kron(matrices: list[Tensor]) -> Tensor:
    """[..., a, b] ⊗ [..., c, d] ⊗ … sample by sample."""
    product = matrices[0]
    for matrix in matrices[1:]:
        rows, columns = product.shape[-2] * matrix.shape[-2], product.shape[-1] * matrix.shape[-1]
        pairs = product[..., :, None, :, None] * matrix[..., None, :, None, :]
        product = pairs.reshape(*pairs.shape[:-4], rows, columns)
    return product


def _real_pairs(matrix: Tensor) -> nn.Parameter:
    return nn.Parameter(torch.view_as_real(matrix.detach().clone()).contiguous())
