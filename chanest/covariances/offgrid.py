"""Plane waves of any direction, and powers on a grid together with some of them as a covariance."""

from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from chanest.arrays import Array
from chanest.covariances.angular import AngularCovariance, elements
from chanest.frontend import BeamformingMap
from vlista_core.gaussian import Covariance
from vlista_core.linops import LinearMap
from vlista_core.prox import squared_modulus


@dataclass(frozen=True, eq=False)
class Paths:
    """Plane waves by the phases between neighbouring columns and rows of both arrays: [batch, paths, 2] each."""

    departing: Tensor
    arriving: Tensor
    rx: Array
    tx: Array

    def moved(self, steps: Tensor) -> "Paths":
        """With the phases changed by steps: [batch, 4, paths]."""
        departing, arriving = steps[:, :2].mT, steps[:, 2:].mT
        return replace(self, departing=self.departing + departing, arriving=self.arriving + arriving)

    def steering(self) -> tuple[Tensor, Tensor]:
        """Of the transmitter and of the receiver, and their slopes along columns and rows: [batch, 3, paths, elements] each.

        Slopes are about the middle of an array, so that a turn does not change the phase of the gain.
        """
        return _with_slopes(self.departing, self.tx), _with_slopes(self.arriving, self.rx)

    def columns(self, phi: LinearMap, *, slopes: bool = False) -> Tensor:
        """Φψ of every path and pair of polarisations: [batch, paths, pol_t·pol_r, m].

        With slopes: [batch, 5, paths, pol_t·pol_r, m], the columns themselves first, then their slopes along the four axes.
        """
        if not slopes:
            return self._seen(phi, *self._vectors())
        transmit, receive = self.steering()
        sent = torch.cat([transmit, transmit[:, :1], transmit[:, :1]], 1)
        received = torch.cat([receive[:, :1], receive[:, :1], receive], 1)
        found = self._seen(phi, sent.flatten(1, 2), received.flatten(1, 2))
        return found.reshape(*sent.shape[:3], *found.shape[2:])

    def signals(self) -> Tensor:
        """ψ of every path and pair of polarisations: [batch, paths, pol_t·pol_r, n]."""
        return self._placed(*self._vectors()).flatten(3)

    def _vectors(self) -> tuple[Tensor, Tensor]:
        """Steering vectors of the transmitter and of the receiver: [batch, paths, elements] each."""
        return _steering(self.departing, self.tx), _steering(self.arriving, self.rx)

    def _seen(self, phi: LinearMap, transmit: Tensor, receive: Tensor) -> Tensor:
        """Φ(a_t ⊗ a_r) for each pair of polarisations: [batch, paths, elements] each -> [batch, paths, pol_t·pol_r, m]."""
        batch, paths, _ = transmit.shape
        if not isinstance(phi, BeamformingMap) or phi.subcarriers > 1:
            every = self._placed(transmit, receive).reshape(batch, -1, phi.shape[1])
            return phi.apply_block(every.mT).mT.reshape(batch, paths, -1, phi.shape[0])
        pol_t, pol_r = len(self.tx.slants), len(self.rx.slants)
        beams = phi.transmit.reshape(batch, pol_t, self.tx.elements, -1)
        sent = transmit[:, None] @ beams  # [batch, pol_t, paths, T]
        if phi.weights is None:
            received = torch.eye(pol_r, dtype=receive.dtype, device=receive.device)[:, None, None, :, None]
            received = (received * receive[:, None, :, None, None, :]).flatten(4)  # [batch, pol_r, paths, 1, ports]
        else:
            combiners = phi.weights.conj().reshape(batch, phi.pilots, pol_r, self.rx.elements, -1)
            received = torch.einsum("btqrc,bkr->bqktc", combiners, receive)
        both = sent[:, :, None, :, :, None] * received[:, None]  # [batch, pol_t, pol_r, paths, T, chains]
        return both.movedim(3, 1).reshape(batch, paths, pol_t * pol_r, -1)

    def _placed(self, transmit: Tensor, receive: Tensor) -> Tensor:
        """a_t ⊗ a_r among the ports: [batch, paths, pol_t·pol_r, ports of the transmitter, ports of the receiver]."""
        pol_t, pol_r = len(self.tx.slants), len(self.rx.slants)
        ports = []
        for steering, count in ((transmit, pol_t), (receive, pol_r)):
            identity = torch.eye(count, dtype=steering.dtype, device=steering.device)
            ports.append((identity[:, :, None] * steering[:, :, None, None]).flatten(3))
        sent, received = ports
        return (sent[:, :, :, None, :, None] * received[:, :, None, :, None]).flatten(2, 3)


@dataclass(frozen=True, eq=False)
class PathCovariance(Covariance):
    """R = Ψ diag(p) Ψᴴ + Σ_k P_k ψ_kψ_kᴴ: powers on a grid, and paths off it."""

    grid: AngularCovariance
    powers: Tensor
    """P of every path and pair of polarisations: [batch, paths, pol_t·pol_r], real."""
    signals: Tensor
    """ψ of each: [batch, paths, pol_t·pol_r, n]."""

    @property
    def length(self) -> int:
        return self.grid.length

    @property
    def dtype(self) -> torch.dtype:
        return self.signals.dtype

    def select(self, index: Tensor | slice) -> "PathCovariance":
        return PathCovariance(self.grid.select(index), self.powers[index], self.signals[index])

    @property
    def _scaled(self) -> Tensor:
        """√P ψ as rows: [batch, columns, n]."""
        return (self.powers.sqrt()[..., None] * self.signals).flatten(1, 2)

    def apply(self, x: Tensor) -> Tensor:
        self._check_input("x", x, self.length)
        rows = self._scaled
        inside = (rows.conj() @ x[:, :, None])[:, None, :, 0] @ rows
        return self.grid.apply(x) + inside[:, 0]

    def seen(self, phi: LinearMap) -> Tensor:
        columns = phi.apply_block(self._scaled.mT)
        return self.grid.seen(phi) + columns @ columns.mH

    def variances(self) -> Tensor:
        return self.grid.variances() + squared_modulus(self._scaled).sum(1)

    def materialize(self) -> Tensor:
        rows = self._scaled
        return self.grid.materialize() + rows.mT @ rows.conj()


def _steering(phases: Tensor, array: Array) -> Tensor:
    """Steering vectors: [batch, paths, 2] -> [batch, paths, elements]."""
    angle = phases @ _places(array, phases.dtype)[0].to(phases.device).mT
    return torch.polar(torch.ones_like(angle), angle)


def _with_slopes(phases: Tensor, array: Array) -> Tensor:
    """Steering vectors and their slopes along columns and rows: [batch, paths, 2] -> [batch, 3, paths, elements]."""
    return _steering(phases, array)[:, None] * _places(array, phases.dtype)[1].to(phases.device)


@cache
def _places(array: Array, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Column and row of every element, [elements, 2]; factors of a steering vector and of its slopes, [3, 1, elements]."""
    places = elements(array).to(dtype)
    middle = (places - places.mean(0)).mT
    return places, torch.cat([torch.ones_like(middle[:1]), 1j * middle])[:, None]
