"""The covariances of a Gaussian mixture, kept with the structure that the arrays give them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from chanest.arrays import Array
from chanest.estimators.toeplitz import LagTable, View
from chanest.frontend import BeamformingMap
from vlista_core.linalg import cholesky
from vlista_core.linops import LinearMap

_FLOOR = 2e-3
"""Least eigenvalue that a component may have: E|h|² is one."""
ASSUMED_NOISE = 0.1
"""Of channels when they are given to components. Without it the faintest directions decide, and a few components take all."""
_PROJECTIONS = 3
_FLIPS = 2


class ToeplitzComponents(nn.Module):
    """R_k as tables of lags."""

    def __init__(self, rx: Array, tx: Array, size: int) -> None:
        super().__init__()
        self.layout = LagTable(rx, tx)
        self.tables: Tensor
        self.register_buffer("tables", torch.zeros(size, *self.layout.shape, dtype=torch.complex64))

    def view(self, phi: LinearMap) -> View:
        """Φ, prepared for `seen`."""
        return View(self.layout, phi)

    def seen(self, k: int, view: View) -> Tensor:
        """ΦR_kΦᴴ: [batch, m, m], or [1, m, m] for a Φ that all samples share."""
        table = self.tables[k : k + 1]
        return view.seen(table, self.layout.spectrum(table))

    def times(self, k: int, h: Tensor) -> Tensor:
        """R_k h: [batch, n] -> [batch, n]."""
        return h @ self.matrix(k).mT

    def matrix(self, k: int) -> Tensor:
        """R_k itself: [n, n]."""
        return self.layout.matrix(self.tables[k : k + 1])[0]

    def matrices(self, k: Tensor) -> Tensor:
        """R_k for several k: [count] -> [count, n, n]."""
        return self.layout.matrix(self.tables[k])

    def estimate(self, k: int, channels: Tensor) -> None:
        """R_k from channels [count, n]: averages along diagonals, then back and forth to positive definite."""
        self._store(k, self.layout.of_channels(channels, torch.full((len(channels), 1), 1.0 / len(channels))))

    def estimate_from(self, k: int, covariance: Tensor) -> None:
        """R_k from any covariance [n, n], in the same way."""
        self._store(k, self.layout.of_matrix(covariance[None]))

    def _store(self, k: int, table: Tensor) -> None:
        for _ in range(_PROJECTIONS):
            values, vectors = torch.linalg.eigh(self.layout.matrix(table))
            positive = (vectors * values.clamp_min(_FLOOR)[:, None, :]) @ vectors.mH
            table = self.layout.of_matrix(positive)
        least = float(torch.linalg.eigvalsh(self.layout.matrix(table)).min())
        table[:, 0, self.layout.shape[1] // 2] += max(0.0, 0.5 * _FLOOR - least)
        self.tables[k] = table[0]

    def log_density(self, k: int, channels: Tensor) -> Tensor:
        """log CN(h; 0, R_k + noise) up to a constant: [count, n] -> [count]."""
        matrix = self.matrix(k)
        factor = cholesky(matrix + ASSUMED_NOISE * torch.eye(len(matrix), dtype=matrix.dtype))
        white = torch.linalg.solve_triangular(factor, channels.mT, upper=False)
        distance: Tensor = white.abs().square().sum(0)
        return -distance - 2 * factor.diagonal().real.log().sum()


class KroneckerComponents(nn.Module):
    """R_k = T_k ⊗ S_k, transmit and receive covariance."""

    def __init__(self, rx: Array, tx: Array, size: int) -> None:
        super().__init__()
        self.transmit: Tensor
        self.receive: Tensor
        self.register_buffer("transmit", torch.eye(tx.ports, dtype=torch.complex64).repeat(size, 1, 1))
        self.register_buffer("receive", torch.eye(rx.ports, dtype=torch.complex64).repeat(size, 1, 1))

    def view(self, phi: LinearMap) -> LinearMap:
        """Φ: there is nothing to prepare."""
        return phi

    def seen(self, k: int, phi: LinearMap) -> Tensor:
        """ΦR_kΦᴴ: [batch, m, m], or [1, m, m] for a Φ that all samples share."""
        transmit, receive = self.transmit[k], self.receive[k]
        if not isinstance(phi, BeamformingMap) or phi.subcarriers > 1:
            once = phi.apply_block(torch.kron(transmit, receive)[None])
            return phi.apply_block(once.mH.contiguous())
        beams = phi.transmit.mT @ transmit @ phi.transmit.conj()
        batch, frames, _ = beams.shape
        if phi.weights is None:
            product = beams[:, :, None, :, None] * receive[None, None, :, None, :]
        else:
            columns = phi.weights.movedim(2, 1).flatten(2)
            combined = columns.mH @ (receive @ columns)
            product = combined.reshape(batch, frames, phi.chains, frames, phi.chains) * beams[:, :, None, :, None]
        return product.reshape(batch, frames * phi.chains, -1)

    def times(self, k: int, h: Tensor) -> Tensor:
        """R_k h: [batch, n] -> [batch, n]."""
        grid = h.reshape(len(h), self.transmit.shape[1], -1)
        return (self.transmit[k] @ grid @ self.receive[k].mT).flatten(1)

    def matrices(self, k: Tensor) -> Tensor:
        """R_k for several k: [count] -> [count, n, n]."""
        transmit, receive = self.transmit[k], self.receive[k]
        both = transmit[:, :, None, :, None] * receive[:, None, :, None, :]
        return both.reshape(len(k), transmit.shape[1] * receive.shape[1], -1)

    def estimate(self, k: int, channels: Tensor) -> None:
        """T_k and S_k from channels [count, n] by turns, each with the other whitened."""
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
        """log CN(h; 0, R_k) up to a constant, the noise put on both factors: [count, n] -> [count]."""
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
