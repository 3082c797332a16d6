"""Families of covariances that are fitted to channels, kept with the structure that the arrays give them."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn

from chanest.arrays import Array
from chanest.covariances.kronecker import KroneckerCovariance
from chanest.covariances.lags import LagCovariance, LagLayout
from vlista_core.estimate import Measurement
from vlista_core.gaussian import Covariance, condition
from vlista_core.linalg import cholesky
from vlista_core.linops import IdentityMap

_FLOOR = 2e-3
"""Least eigenvalue that a component may have: E|h|² is one."""
ASSUMED_NOISE = 0.1
"""Of channels when they are given to components. Without it the faintest directions decide, and a few components take all."""
_PROJECTIONS = 3
_FLIPS = 2


class Components(nn.Module):
    """R_1 … R_K, stored as buffers."""

    @abstractmethod
    def covariances(self) -> Covariance:
        """All of them, as one family."""

    @abstractmethod
    def estimate(self, k: int, channels: Tensor) -> None:
        """Set R_k from channels [count, n]."""

    @abstractmethod
    def log_density(self, k: int, channels: Tensor) -> Tensor:
        """log CN(h; 0, R_k + noise) up to a constant: [count, n] -> [count]."""

    def member(self, k: int) -> Covariance:
        """R_k."""
        return self.covariances().select(torch.tensor([k]))


class LagComponents(Components):
    """R_k as tables of lags."""

    def __init__(self, rx: Array, tx: Array, size: int) -> None:
        super().__init__()
        self.layout = LagLayout(rx, tx)
        self.tables: Tensor
        self.register_buffer("tables", torch.zeros(size, *self.layout.shape, dtype=torch.complex64))

    def covariances(self) -> LagCovariance:
        return LagCovariance(self.tables, self.layout)

    def estimate(self, k: int, channels: Tensor) -> None:
        """Averages along diagonals, then back and forth to positive definite."""
        self.estimate_from(k, channels.mT @ channels.conj() / len(channels))

    def estimate_from(self, k: int, covariance: Tensor) -> None:
        """R_k from any covariance [n, n], in the same way."""
        table = self.layout.of_matrix(covariance[None])
        for _ in range(_PROJECTIONS):
            values, vectors = torch.linalg.eigh(self.layout.matrix(table))
            positive = (vectors * values.clamp_min(_FLOOR)[:, None, :]) @ vectors.mH
            table = self.layout.of_matrix(positive)
        least = float(torch.linalg.eigvalsh(self.layout.matrix(table)).min())
        table[:, 0, self.layout.shape[1] // 2] += max(0.0, 0.5 * _FLOOR - least)
        self.tables[k] = table[0]

    def log_density(self, k: int, channels: Tensor) -> Tensor:
        noise = torch.full((len(channels),), ASSUMED_NOISE)
        direct = Measurement(channels, IdentityMap(channels.shape[1], channels.dtype), noise)
        return condition(self.member(k), direct).log_evidence


class KroneckerComponents(Components):
    """R_k = T_k ⊗ S_k, transmit and receive covariance."""

    def __init__(self, rx: Array, tx: Array, size: int) -> None:
        super().__init__()
        self.transmit: Tensor
        self.receive: Tensor
        self.register_buffer("transmit", torch.eye(tx.ports, dtype=torch.complex64).repeat(size, 1, 1))
        self.register_buffer("receive", torch.eye(rx.ports, dtype=torch.complex64).repeat(size, 1, 1))

    def covariances(self) -> KroneckerCovariance:
        return KroneckerCovariance(self.transmit[:, None], self.receive[:, None])

    def estimate(self, k: int, channels: Tensor) -> None:
        """T_k and S_k by turns, each with the other whitened."""
        grid = channels.reshape(len(channels), self.transmit.shape[1], -1)
        transmit = torch.eye(grid.shape[1], dtype=grid.dtype)
        receive = torch.eye(grid.shape[2], dtype=grid.dtype)
        for _ in range(_FLIPS):
            left = _inverse_factor(transmit) @ grid
            receive = _floored((left.mT @ left.conj()).mean(0) / grid.shape[1])
            right = grid @ _inverse_factor(receive).mT
            transmit = _floored((right @ right.mH).mean(0) / grid.shape[2])
        self.transmit[k], self.receive[k] = transmit, receive

    def log_density(self, k: int, channels: Tensor) -> Tensor:
        """The noise is put on both factors, so that nothing of size n × n is factorised."""
        grid = channels.reshape(len(channels), self.transmit.shape[1], -1)
        left, right = (
            _inverse_factor(_floored(matrix, ASSUMED_NOISE)) for matrix in (self.transmit[k], self.receive[k])
        )
        distance = (left @ grid @ right.mT).abs().square().sum(dim=(1, 2))
        volumes = [-2 * factor.diagonal().real.log().sum() for factor in (left, right)]
        return -distance - grid.shape[2] * volumes[0] - grid.shape[1] * volumes[1]


def _inverse_factor(covariance: Tensor) -> Tensor:
    """L⁻¹ with LLᴴ = covariance: [n, n]."""
    identity = torch.eye(len(covariance), dtype=covariance.dtype)
    inverse: Tensor = torch.linalg.solve_triangular(cholesky(covariance), identity, upper=False)
    return inverse


def _floored(covariance: Tensor, share: float = _FLOOR) -> Tensor:
    """With a share of its mean diagonal added to the diagonal."""
    level = share * covariance.diagonal().real.mean()
    return covariance + level * torch.eye(len(covariance), dtype=covariance.dtype)
