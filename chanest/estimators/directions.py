"""Directions of departure and arrival as a dictionary: an atom a_t,i ⊗ a_r,j for every pair of them.

Atoms are phase ramps over uniform arrays, so the covariance Σ p_ij (a_t,i a_t,iᴴ) ⊗ (a_r,j a_r,jᴴ) that powers p of the atoms
give a channel is a table of lags: two small products, whatever the number of atoms. Their entries have modulus one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from chanest.arrays import Array
from chanest.channels.coefficients import RayFactors
from chanest.estimators.codebook import k_means
from chanest.estimators.toeplitz import LagTable, View
from vlista_core.linops import LinearMap

_SAME = 1e4
"""Phases are the same where they agree to so many parts of a radian."""


@dataclass(frozen=True)
class Directions:
    """Phases from one column to the next and from one row to the next, of each direction, at both ends."""

    layout: LagTable
    departing: Tensor
    """[departures, 2]."""
    arriving: Tensor
    """[arrivals, 2]."""

    def table(self, powers: Tensor) -> Tensor:
        """The covariance of channels whose atoms have these powers: [batch, departures, arrivals] -> a table of lags."""
        across = powers.mT.to(torch.complex64) @ _ramps(self.departing, _transmit_lags(self.layout.tx))
        table: Tensor = self.receive_ramps().mT @ across
        return table

    def sums(self, table: Tensor) -> Tensor:
        """aᴴQa of every atom a from the lag sums of Q (see `View.pulled_back`): -> [batch, departures, arrivals]."""
        weight = torch.full((table.shape[1], 1), 2.0, device=table.device)
        weight[0] = 1.0
        transmit = _ramps(self.departing, _transmit_lags(self.layout.tx)).conj()
        return (transmit @ (weight * table).mT @ self.receive_ramps().mH).real

    def adjoint(self, h: Tensor) -> Tensor:
        """aᴴh of every atom a: [batch, n] -> [batch, departures, arrivals]."""
        transmit, receive = self.transmit_atoms(), self.receive_atoms()
        return transmit.conj() @ h.reshape(len(h), -1, receive.shape[1]) @ receive.mH

    def apply(self, code: Tensor) -> Tensor:
        """Σ x_ij a_t,i ⊗ a_r,j: [batch, departures, arrivals] -> [batch, n]."""
        return (self.transmit_atoms().mT @ code @ self.receive_atoms()).flatten(1)

    def transmit_atoms(self) -> Tensor:
        """a_t,i: [departures, N_t]."""
        return _ramps(self.departing, _elements(self.layout.tx))

    def receive_ramps(self) -> Tensor:
        """exp(j·phase·lag) of every arrival at the receive lags of a table: [arrivals, receive lags]."""
        return _ramps(self.arriving, torch.tensor(self.layout.receive_lags))

    def receive_atoms(self) -> Tensor:
        """a_r,j: [arrivals, N_r]."""
        return _ramps(self.arriving, _elements(self.layout.rx))


class SeenDirections:
    """What a front end sees of channels whose atoms have some powers; what it sends into each direction is worked out once."""

    def __init__(self, directions: Directions, phi: LinearMap) -> None:
        self.directions, self.view = directions, View(directions.layout, phi)
        if self.view.beams is not None:
            self.sent = self.view.beams.transmit.mT @ directions.transmit_atoms().mT
            self.conjugate = self.sent.conj().resolve_conj()

    def covariance(self, powers: Tensor) -> Tensor:
        """ΦΨ diag(p) (ΦΨ)ᴴ. powers: [batch or 1, departures, arrivals] -> [batch, m, m]."""
        directions = self.directions
        if self.view.beams is None:
            table = directions.table(powers)
            return self.view.seen(table, directions.layout.spectrum(table))
        lags = directions.receive_ramps()
        return self.view.seen_at(self.sent, self.conjugate, (powers.to(lags.dtype) @ lags).mT)


def ray_phases(factors: RayFactors, layout: LagTable) -> tuple[Tensor, Tensor]:
    """The phases of all rays at the transmitter and at the receiver: [batch·rays, 2] each."""
    return _phases(factors.tx, layout.tx), _phases(factors.rx, layout.rx)


def distinct(phases: Tensor, most: int, seed: int) -> tuple[Tensor, Tensor]:
    """The different ones among `phases` [rays, 2], or `most` k-means of them, and which of them each ray has."""
    found, which = torch.unique((phases * _SAME).round(), dim=0, return_inverse=True)
    if len(found) > most:  # On the torus: -π and π are one place.
        which, _ = k_means(torch.cat([phases.cos(), phases.sin()], 1), most, seed)
        used, which = torch.unique(which, return_inverse=True)
        found = found[: len(used)]
    turns = torch.polar(torch.ones_like(phases), phases)
    mean = torch.zeros(len(found), 2, dtype=turns.dtype).index_add_(0, which, turns)
    return mean.angle(), which


def _ramps(phases: Tensor, places: Tensor) -> Tensor:
    """exp(j·phases·place). phases: [directions, 2] a column and a row, places: [places, 2] -> [directions, places]."""
    angle = phases @ places.to(phases).mT
    return torch.polar(torch.ones_like(angle), angle)


def _phases(steering: Tensor, array: Array) -> Tensor:
    """From one column to the next and from one row to the next. [batch, rays, N] -> [batch·rays, 2]."""
    grid = steering.reshape(-1, array.columns, array.rows)
    steps = [grid.narrow(axis, min(1, grid.shape[axis] - 1), 1)[:, 0, 0] / grid[:, 0, 0] for axis in (1, 2)]
    return torch.stack(steps, 1).angle()


@cache
def _elements(array: Array) -> Tensor:
    """(column, row) of the elements in the order of vec(H): [N, 2]."""
    return torch.cartesian_prod(torch.arange(array.columns), torch.arange(array.rows))


@cache
def _transmit_lags(array: Array) -> Tensor:
    """(columns, rows) between two transmit elements, in the order of a table: [transmit lags, 2]."""
    return torch.cartesian_prod(
        torch.arange(1 - array.columns, array.columns), torch.arange(1 - array.rows, array.rows)
    )
