"""What y = Φs + n says of a Gaussian signal: the one place that factorises C = ΦRΦᴴ + σ²I.

With s ~ CN(0, R) and n ~ CN(0, σ²I) the measurement is y ~ CN(0, C). Given y,
    mean         E s = RΦᴴC⁻¹y
    covariance   R - RΦᴴC⁻¹ΦR
    evidence     log p(y) = -yᴴC⁻¹y - log det C, up to the constant -m log π.
Real signals have N in place of CN, and half the evidence.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from vlista_core.estimate import Measurement
from vlista_core.linalg import cholesky, has_values
from vlista_core.linops import DenseMap, LinearMap
from vlista_core.prox import squared_modulus

_LEAST_PIVOT, _MOST_DOUBLINGS = 0.7, 16
LEAST_SHARE = 1e-2
"""Least variance of an entry, as a share of the mean over its sample: what lies below is rounding of an R that a file
stores in half precision and that need not be definite."""


@dataclass(frozen=True, eq=False)
class Covariance(LinearMap):
    """R = E ssᴴ: what is believed of a signal before y. A Hermitian map, one for all samples or one for each.

    A kind is a frozen dataclass whose tensors have a leading dimension: the samples, the members of a family, or one for an R
    that all share. It gives `length`, `apply` and `materialize`, and `seen` where its structure makes that cheap. What the
    signal is made of (transmit, receive, delay) is known to the kind and to Φ alone.
    """

    @property
    @abstractmethod
    def length(self) -> int:
        """n."""

    def seen(self, phi: LinearMap) -> Tensor:
        """ΦRΦᴴ: [batch, m, m], or [1, m, m] where Φ and R are shared."""
        once = phi.apply_block(self.materialize())
        return phi.apply_block(once.mH.contiguous())

    def posterior(self, measured: Measurement, probes: LinearMap | None) -> "Posterior | None":
        """The posterior by a structure of ΦRΦᴴ that makes it cheaper than a Cholesky factor of C; None where there is none."""
        return None

    def blocks_seen(self, phi: LinearMap) -> Tensor | None:
        """The blocks of a block diagonal ΦRΦᴴ, one where all are alike: [batch or 1, blocks, k, k]. None if not known to be."""
        return None

    def variances(self) -> Tensor:
        """The diagonal of R: [batch or 1, n]."""
        return self.materialize().diagonal(dim1=1, dim2=2).real

    def members(self) -> Iterator[Self]:
        """One after another, each shared by all samples."""
        for k in range(self.batch or 1):
            yield self.select(slice(k, k + 1))

    def mixture(self, weights: Tensor) -> "Covariance":
        """Σ_k weight_k R_k over the members of this family. weights: [batch, members], not negative."""
        return DenseCovariance(torch.einsum("bk,knm->bnm", weights.to(self.dtype), self.materialize()))

    @property
    def shape(self) -> tuple[int, int]:
        return self.length, self.length

    @property
    def batch(self) -> int | None:
        size = max(part.shape[0] for part in self._parts() if isinstance(part, Tensor))
        return None if size == 1 else size

    def adjoint(self, y: Tensor) -> Tensor:
        return self.apply(y)

    def select(self, index: Tensor | slice) -> Self:
        """The covariances of the chosen samples, or the chosen members. index: [k] integer, [batch] bool or a slice."""
        return self._with(lambda tensor: tensor if tensor.shape[0] == 1 else tensor[index], lambda part: part)


@dataclass(frozen=True, eq=False)
class DenseCovariance(Covariance):
    """A stored matrix."""

    matrix: Tensor
    """[batch or 1, n, n]."""

    @property
    def length(self) -> int:
        return self.matrix.shape[2]

    def apply(self, x: Tensor) -> Tensor:
        self._check_input("x", x, self.length)
        return x @ self.matrix[0].mT if len(self.matrix) == 1 else DenseMap(self.matrix).apply(x)

    def materialize(self) -> Tensor:
        return self.matrix


@dataclass(frozen=True, eq=False)
class WhiteCovariance(Covariance):
    """R = p·I: every direction counts alike. Without noise its mean is the least squares estimate of least norm."""

    power: Tensor
    """p, in the dtype of the signal: [batch or 1]."""
    size: int

    @property
    def length(self) -> int:
        return self.size

    def apply(self, x: Tensor) -> Tensor:
        self._check_input("x", x, self.length)
        return self.power[:, None] * x

    def seen(self, phi: LinearMap) -> Tensor:
        return self.power[:, None, None] * phi.gram()

    def blocks_seen(self, phi: LinearMap) -> Tensor | None:
        block, count = phi.blocks()
        return None if count == 1 else self.seen(block)[:, None]

    def variances(self) -> Tensor:
        return self.power.real[:, None].expand(-1, self.size)

    def materialize(self) -> Tensor:
        return self.power[:, None, None] * torch.eye(self.size, dtype=self.dtype, device=self.device)


class LowRank(Covariance):
    """R = UUᴴ with fewer columns than measurements: systems of as many unknowns as there are columns are solved."""

    @abstractmethod
    def gram_seen(self, phi: LinearMap) -> Tensor:
        """(ΦU)ᴴΦU: [batch, columns, columns]."""

    @abstractmethod
    def matched(self, phi: LinearMap, y: Tensor) -> Tensor:
        """(ΦU)ᴴy: [batch, columns]."""

    @abstractmethod
    def combine(self, coefficients: Tensor) -> Tensor:
        """U c. coefficients: [batch, columns] -> [batch, n]."""

    @property
    @abstractmethod
    def columns_held(self) -> int:
        """How many columns U has."""


@dataclass(frozen=True, eq=False)
class Posterior:
    """The signal given y. What is asked for is worked out then, and once."""

    prior: Covariance
    measured: Measurement
    factor: Tensor
    """L with LLᴴ = C: [batch, m, m], or [1, m, m] where all samples share it; what a subclass says in its place."""
    probes: LinearMap | None

    @cached_property
    def whitened(self) -> Tensor:
        """C⁻¹y: [batch, m]."""
        return self.solve(self.measured.y)

    @cached_property
    def gradient(self) -> Tensor:
        """ΦᴴC⁻¹y, the gradient of the evidence along the signal: [batch, n]."""
        return self.measured.phi.adjoint(self.whitened)

    @cached_property
    def mean(self) -> Tensor:
        """E s, or E Ps with probes: [batch, n or p]."""
        signal = self.prior.apply(self.gradient)
        return signal if self.probes is None else self.probes.apply(signal)

    @cached_property
    def variance(self) -> Tensor:
        """The diagonal of the covariance of s, or of Ps with probes: [batch, n or p]."""
        if self.probes is None:
            across, before = self.prior.materialize(), self.prior.variances()
        else:
            rows = self.probes.materialize()
            across = self.prior.apply_block(rows.mH)
            before = (rows * across.mT).sum(-1).real
        white = self.whiten(self.measured.phi.apply_block(across))
        left = (before - squared_modulus(white).sum(-2)).clamp_min(0.0)
        if self.probes is None:
            left = left.maximum(LEAST_SHARE * left.mean(1, keepdim=True))
        return left.expand(len(self.measured.y), -1)

    @cached_property
    def log_evidence(self) -> Tensor:
        """log p(y) without its constant: [batch]."""
        fit = (self.measured.y.conj() * self.whitened).real.sum(1)
        log_volume = 2 * self.factor.diagonal(dim1=1, dim2=2).real.log().sum(1)
        return -(fit + log_volume) * (1.0 if self.measured.y.is_complex() else 0.5)

    @cached_property
    def precision(self) -> Tensor:
        """C⁻¹: [batch or 1, m, m]."""
        return torch.cholesky_inverse(self.factor)

    def solve(self, right: Tensor) -> Tensor:
        """C⁻¹ times a vector per sample: [batch, m] -> [batch, m]."""
        if self.factor.shape[0] == 1:
            return torch.cholesky_solve(right.mT[None], self.factor)[0].mT
        return torch.cholesky_solve(right[..., None], self.factor)[..., 0]

    def whiten(self, block: Tensor) -> Tensor:
        """L⁻¹ times a block per sample: [batch or 1, m, k] -> [batch or 1, m, k]."""
        white: Tensor = torch.linalg.solve_triangular(self.factor, block, upper=False)
        return white


@dataclass(frozen=True, eq=False)
class BlockPosterior(Posterior):
    """The same for a block diagonal C. `factor`: of the blocks, one where all are alike, [batch or 1, blocks, k, k]."""

    @property
    def _blocks(self) -> int:
        return self.measured.y.shape[1] // self.factor.shape[3]

    @cached_property
    def log_evidence(self) -> Tensor:
        fit = (self.measured.y.conj() * self.whitened).real.sum(1)
        log_volume = 2 * self.factor.diagonal(dim1=2, dim2=3).real.log().sum(2).expand(-1, self._blocks).sum(1)
        return -(fit + log_volume) * (1.0 if self.measured.y.is_complex() else 0.5)

    @cached_property
    def precision(self) -> Tensor:
        inverse = torch.cholesky_inverse(self.factor).expand(-1, self._blocks, -1, -1)
        identity = torch.eye(self._blocks, dtype=inverse.dtype, device=inverse.device)
        return torch.einsum("kl,bkmn->bkmln", identity, inverse).flatten(3).flatten(1, 2)

    def solve(self, right: Tensor) -> Tensor:
        parts = right.reshape(len(right), self._blocks, -1)
        if self.factor.shape[1] == 1:
            return torch.cholesky_solve(parts.mT, self.factor[:, 0]).mT.flatten(1)
        return torch.cholesky_solve(parts[..., None], self.factor).flatten(1)

    def whiten(self, block: Tensor) -> Tensor:
        parts = block.reshape(len(block), self._blocks, -1, block.shape[2])
        white: Tensor = torch.linalg.solve_triangular(self.factor, parts, upper=False)
        return white.flatten(1, 2)


@dataclass(frozen=True, eq=False)
class LowRankPosterior(Posterior):
    """The same for R = UUᴴ, through G = (ΦU)ᴴΦU + σ²I: the mean is UG⁻¹(ΦU)ᴴy. `factor` is that of G."""

    prior: LowRank

    @cached_property
    def matched(self) -> Tensor:
        """(ΦU)ᴴy: [batch, columns]."""
        return self.prior.matched(self.measured.phi, self.measured.y)

    @cached_property
    def coefficients(self) -> Tensor:
        """G⁻¹(ΦU)ᴴy: [batch, columns]."""
        return self.solve(self.matched)

    @cached_property
    def mean(self) -> Tensor:
        signal = self.prior.combine(self.coefficients)
        return signal if self.probes is None else self.probes.apply(signal)

    @cached_property
    def variance(self) -> Tensor:
        """σ² diag(PUG⁻¹UᴴPᴴ)."""
        identity = torch.eye(self.factor.shape[1], dtype=self.factor.dtype, device=self.factor.device)
        signals = [self.prior.combine(row.expand(len(self.measured.y), -1)) for row in identity]
        seen = [signal if self.probes is None else self.probes.apply(signal) for signal in signals]
        white = self.whiten(torch.stack(seen, 2).mH)
        return self.measured.noise_var[:, None] * squared_modulus(white).sum(1)

    @cached_property
    def whitened(self) -> Tensor:
        """C⁻¹y = (y - ΦUG⁻¹(ΦU)ᴴy)/σ²."""
        fitted = self.measured.phi.apply(self.prior.combine(self.coefficients))
        return (self.measured.y - fitted) / self.measured.noise_var[:, None]

    @cached_property
    def log_evidence(self) -> Tensor:
        y, noise_var = self.measured.y, self.measured.noise_var
        fit = (squared_modulus(y).sum(1) - (self.matched.conj() * self.coefficients).real.sum(1)) / noise_var
        log_volume = 2 * self.factor.diagonal(dim1=1, dim2=2).real.log().sum(1)
        rest = (y.shape[1] - self.factor.shape[1]) * noise_var.log()
        return -(fit + log_volume + rest) * (1.0 if y.is_complex() else 0.5)

    @cached_property
    def precision(self) -> Tensor:
        raise ValueError("a posterior of low rank does not hold the inverse of C; ask for `whitened` or `mean`")


def condition(
    prior: Covariance, measured: Measurement, probes: LinearMap | None = None, *, floor: float = 0.0
) -> Posterior:
    """The posterior of s ~ CN(0, R) given y; with probes P, of Ps.

    prior: R, shared or one per sample. C is factorised once for all samples where they share R, Φ and the noise.
    floor: added to the noise, in units of the mean power of a measurement, where there may be no noise at all.
    """
    if isinstance(prior, LowRank) and prior.columns_held < measured.y.shape[1]:
        gram = _with_noise(prior.gram_seen(measured.phi), measured.noise_var, floor)
        return LowRankPosterior(prior, measured, cholesky(gram), probes)
    if floor == 0.0 and (found := prior.posterior(measured, probes)) is not None:
        return found
    if (blocks := prior.blocks_seen(measured.phi)) is not None:
        blocks = blocks.expand(len(measured.noise_var), -1, -1, -1)
        noise_var = measured.noise_var.repeat_interleave(blocks.shape[1])
        factor = _definite(_with_noise(blocks.flatten(0, 1), noise_var, floor), noise_var)
        return BlockPosterior(prior, measured, factor.reshape(blocks.shape), probes)
    total = _with_noise(prior.seen(measured.phi), measured.noise_var, floor)
    return Posterior(prior, measured, _definite(total, measured.noise_var), probes)


def _definite(total: Tensor, noise_var: Tensor) -> Tensor:
    """The Cholesky factor of C = ΦRΦᴴ + σ²I, for an R that rounding may have made slightly negative.

    A pivot below σ² shows that: such a sample gets the least multiple 1, 3, 7, … of σ² that leaves none on its diagonal.
    """
    factor, noise = cholesky(total), noise_var[: total.shape[0]]
    for _ in range(_MOST_DOUBLINGS):
        poor = factor.diagonal(dim1=1, dim2=2).real.amin(1).square() < _LEAST_PIVOT * noise
        if not has_values(poor) or not bool(poor.any()):
            break
        total = total + torch.diag_embed((poor * noise)[:, None].expand(-1, total.shape[1])).to(total.dtype)
        noise = torch.where(poor, 2 * noise, noise)
        factor = factor.index_put((poor,), cholesky(total[poor]))
    return factor


def _with_noise(seen: Tensor, noise_var: Tensor, floor: float) -> Tensor:
    """seen + σ²I and the floor. seen: [batch or 1, m, m], noise_var: [batch] -> [batch or 1, m, m]."""
    if floor > 0:
        noise_var = noise_var + floor * seen.diagonal(dim1=1, dim2=2).real.mean(1)
    if has_values(noise_var) and len(seen) == 1 < len(noise_var) and bool((noise_var == noise_var[0]).all()):
        noise_var = noise_var[:1]
    total = seen.expand(*noise_var.shape, -1, -1).clone()
    total.diagonal(dim1=1, dim2=2).add_(noise_var[:, None])
    return total
