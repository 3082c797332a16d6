"""Covariances of slots: channels over snapshots, subcarriers and antennas, in modes of time and of delay.

A slot of a user that moves slowly and whose delays are short spans few directions along each axis: with orthonormal modes
U_t [L, D_t] of the snapshots and U_f [S, D_f] of the subcarriers h = (U_t ⊗ U_f ⊗ I) z, and z has D_t·D_f·N entries, N of the
antennas. R = AAᴴ with A = (U_t ⊗ U_f ⊗ I) F couples all of them. Pilots may be anywhere on the grid: Φ sees the columns of A,
and what lies between pilots comes out with its variance.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from chanest.covariances.columns import ColumnCovariance
from vlista_core.estimate import Measurement
from vlista_core.gaussian import LEAST_SHARE, Covariance, LowRankPosterior, Posterior, condition
from vlista_core.linops import DenseMap, LinearMap


@dataclass(frozen=True, eq=False)
class SlotColumns(LinearMap):
    """A = (U_t ⊗ U_f ⊗ I) F."""

    time: Tensor
    """U_t: [L, D_t]."""
    delay: Tensor
    """U_f: [S, D_f]."""
    factor: Tensor
    """F: [D_t·D_f·N, r]."""

    @property
    def antennas(self) -> int:
        """N."""
        return self.factor.shape[0] // (self.time.shape[1] * self.delay.shape[1])

    @property
    def shape(self) -> tuple[int, int]:
        return self.time.shape[0] * self.delay.shape[0] * self.antennas, self.factor.shape[1]

    def apply(self, x: Tensor) -> Tensor:
        self._check_input("x", x, self.shape[1])
        modes = (x @ self.factor.mT).reshape(len(x), self.time.shape[1], self.delay.shape[1], -1)
        return torch.einsum("lt,btsn->blsn", self.time, self.delay @ modes).flatten(1)

    def adjoint(self, y: Tensor) -> Tensor:
        self._check_input("y", y, self.shape[0])
        return in_slot_modes(y, self.time, self.delay) @ self.factor.conj()

    def materialize(self) -> Tensor:
        identity = torch.eye(self.shape[1], dtype=self.dtype, device=self.device)
        return self.apply(identity).mT[None]


def in_slot_modes(h: Tensor, time: Tensor, delay: Tensor) -> Tensor:
    """(U_t ⊗ U_f ⊗ I)ᴴ h: [batch, L·S·N] -> [batch, D_t·D_f·N]."""
    grid = h.reshape(len(h), time.shape[0], delay.shape[0], -1)
    return torch.einsum("lt,blsn->btsn", time.conj(), delay.mH @ grid).flatten(1)


@dataclass(frozen=True, eq=False)
class SlotCovariance(Covariance):
    """R = AAᴴ, one for all samples."""

    map: SlotColumns
    """A."""

    @property
    def length(self) -> int:
        return self.map.shape[0]

    @property
    def batch(self) -> int | None:
        return None

    @property
    def dtype(self) -> torch.dtype:
        return self.map.dtype

    def select(self, index: Tensor | slice) -> "SlotCovariance":
        return self

    def apply(self, x: Tensor) -> Tensor:
        return self.map.apply(self.map.adjoint(x))

    def seen(self, phi: LinearMap) -> Tensor:
        columns = phi.apply_block(self.map.materialize())
        return columns @ columns.mH

    def variances(self) -> Tensor:
        return _on_grid(self.map, torch.eye(self.map.shape[1], dtype=self.dtype, device=self.device)[None])

    def materialize(self) -> Tensor:
        columns = self.map.materialize()
        return columns @ columns.mH

    @property
    def _coefficients(self) -> ColumnCovariance:
        """Of the coefficients of the columns: I."""
        identity = torch.eye(self.map.shape[1], dtype=self.dtype, device=self.device)
        return ColumnCovariance(identity.new_ones(1, 1, len(identity)), identity[None])

    def posterior(self, measured: Measurement, probes: LinearMap | None) -> "SlotPosterior":
        """Through the coefficients of the columns, which are independent and of variance one."""
        seen = measured.phi.apply_block(self.map.materialize())
        inside = Measurement(measured.y, DenseMap(seen[0] if len(seen) == 1 else seen), measured.noise_var)
        inner = condition(self._coefficients, inside)
        return SlotPosterior(self, measured, inner.factor, probes, inner)


@dataclass(frozen=True, eq=False)
class SlotPosterior(Posterior):
    """The posterior of the coefficients, and what it says of the grid."""

    prior: SlotCovariance
    inner: Posterior
    """Of the coefficients."""

    @cached_property
    def whitened(self) -> Tensor:
        return self.inner.whitened

    @cached_property
    def mean(self) -> Tensor:
        signal = self.prior.map.apply(self.inner.mean)
        return signal if self.probes is None else self.probes.apply(signal)

    @cached_property
    def left(self) -> Tensor:
        """The covariance of the coefficients: [batch or 1, r, r]."""
        identity = self.inner.prior.materialize()
        if isinstance(self.inner, LowRankPosterior):
            white = self.inner.whiten(identity.expand(len(self.factor), -1, -1))
            noise = self.measured.noise_var if len(white) > 1 else self.measured.noise_var[:1]
            return noise[:, None, None] * (white.mH @ white)
        white = self.inner.whiten(self.inner.measured.phi.materialize())
        return identity - white.mH @ white

    @cached_property
    def variance(self) -> Tensor:
        if self.probes is None:
            left = _on_grid(self.prior.map, self.left)
            left = left.maximum(LEAST_SHARE * left.mean(1, keepdim=True))
        else:
            rows = self.probes.apply_block(self.prior.map.materialize())
            left = ((rows @ self.left) * rows.conj()).sum(2).real.clamp_min(0.0)
        return left.expand(len(self.measured.y), -1)

    @cached_property
    def log_evidence(self) -> Tensor:
        return self.inner.log_evidence

    @cached_property
    def precision(self) -> Tensor:
        return self.inner.precision

    def solve(self, right: Tensor) -> Tensor:
        raise ValueError("a posterior of a slot solves no systems of the measurements; ask it for `whitened`")

    def whiten(self, block: Tensor) -> Tensor:
        raise ValueError("a posterior of a slot whitens no block of the grid; ask it for `variance`")


def _on_grid(columns: SlotColumns, covariance: Tensor) -> Tensor:
    """diag(A C Aᴴ), of every entry of a slot. covariance: C, [batch or 1, r, r] -> [batch or 1, n], real."""
    times, delays = columns.time.shape[1], columns.delay.shape[1]
    modes = columns.factor @ covariance @ columns.factor.mH
    each = modes.unflatten(2, (times, delays, -1)).unflatten(1, (times, delays, -1))
    between = each.diagonal(dim1=3, dim2=6)  # [batch, D_t, D_f, D_t, D_f, N]
    at_times = torch.einsum("lt,btsuvn,lu->blnsv", columns.time, between, columns.time.conj())
    turned = columns.delay @ at_times
    return (turned * columns.delay.conj()).sum(4).real.mT.flatten(1).clamp_min(0.0)
