"""Covariances of low rank: one column per unknown coefficient, with or without a floor."""

from dataclasses import dataclass

import torch
from torch import Tensor

from chanest.frontend import BeamformingMap
from vlista_core.gaussian import Covariance, LowRank
from vlista_core.linops import LinearMap


@dataclass(frozen=True, eq=False)
class ColumnCovariance(LowRank):
    """Channels h = Σ_k c_k (d_k ⊗ a_k) with coefficients of variance one: a column per ray, delay and space apart."""

    delay: Tensor
    """d_k: [batch, S, columns]."""
    space: Tensor
    """a_k, columns of vec(H) of one subcarrier: [batch, n/S, columns]."""

    @property
    def length(self) -> int:
        return self.delay.shape[1] * self.space.shape[1]

    @property
    def columns_held(self) -> int:
        return self.space.shape[2]

    def combine(self, coefficients: Tensor) -> Tensor:
        return ((self.delay * coefficients[:, None, :]) @ self.space.mT).flatten(1)

    def matched_with(self, h: Tensor) -> Tensor:
        """The inner products of all columns with h: [batch, n] -> [batch, columns]."""
        grid = h.reshape(len(h), self.delay.shape[1], -1)
        return (self.delay.conj() * (grid @ self.space.conj())).sum(1)

    def inner_products(self) -> Tensor:
        """UᴴU, the inner products of all columns: [batch, columns, columns]."""
        return (self.delay.mH @ self.delay) * (self.space.mH @ self.space)

    def through(self, phi: LinearMap) -> "ColumnCovariance":
        """The columns as they appear in y, where Φ serves every subcarrier alike."""
        if self.delay.shape[1] == 1:
            return ColumnCovariance(self.delay, phi.apply_block(self.space))
        if not isinstance(phi, BeamformingMap):
            raise ValueError(f"phi must be a BeamformingMap to see columns of rays, got {type(phi).__name__}")
        return ColumnCovariance(self.delay, phi.one_subcarrier().apply_block(self.space))

    def gram_seen(self, phi: LinearMap) -> Tensor:
        return self.through(phi).inner_products()

    def matched(self, phi: LinearMap, y: Tensor) -> Tensor:
        return self.matched_with(phi.adjoint(y))

    def seen(self, phi: LinearMap) -> Tensor:
        return self.through(phi).materialize()

    def columns_matrix(self) -> Tensor:
        """U: [batch, n, columns]."""
        return (self.delay[:, :, None] * self.space[:, None]).flatten(1, 2)

    def apply(self, x: Tensor) -> Tensor:
        self._check_input("x", x, self.length)
        return self.combine(self.matched_with(x))

    def materialize(self) -> Tensor:
        columns = self.columns_matrix()
        return columns @ columns.mH


@dataclass(frozen=True, eq=False)
class MainDirections(Covariance):
    """R = UUᴴ + floor·I: the main eigenvectors of a sample covariance, each times the root of its eigenvalue."""

    factor: Tensor
    """U: [1, n, rank]."""
    floor: Tensor
    """In the dtype of U: [1]."""

    @property
    def length(self) -> int:
        return self.factor.shape[1]

    def apply(self, x: Tensor) -> Tensor:
        self._check_input("x", x, self.length)
        factor = self.factor[0]
        return (x @ factor.conj()) @ factor.mT + self.floor * x

    def seen(self, phi: LinearMap) -> Tensor:
        seen = phi.apply_block(self.factor)
        return seen @ seen.mH + self.floor * phi.gram()

    def materialize(self) -> Tensor:
        identity = torch.eye(self.length, dtype=self.dtype, device=self.device)
        return self.factor @ self.factor.mH + self.floor * identity
