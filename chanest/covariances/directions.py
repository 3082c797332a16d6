"""Directions of departure and arrival as a dictionary: an atom a_t,i ⊗ a_r,j for every pair of them.

Atoms are phase ramps over uniform arrays, with entries of modulus one. So the covariance Σ p_ij (a_t,i a_t,iᴴ) ⊗ (a_r,j a_r,jᴴ)
that powers p of the atoms give a channel is a table of lags: two small products, whatever the number of atoms.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from chanest.arrays import Array
from chanest.channels.coefficients import RayFactors
from chanest.covariances.angular import elements, ramps
from chanest.covariances.families import k_means
from chanest.covariances.lag_layout import LagLayout, array_lags
from chanest.covariances.lags import BeamView, LagCovariance
from chanest.dictionaries import KroneckerMap
from vlista_core.gaussian import Covariance
from vlista_core.linops import LinearMap

_SAME = 1e4
"""Phases are the same where they agree to this many parts of a radian."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Directions(KroneckerMap):
    """Ψ from the phases between neighbouring columns and rows: a code [batch, departures·arrivals] -> vec(H)."""

    departing: Tensor
    """Phase from one column to the next and from one row to the next: [departures, 2]."""
    arriving: Tensor
    """[arrivals, 2]."""
    layout: LagLayout

    @classmethod
    def of(cls, departing: Tensor, arriving: Tensor, layout: LagLayout) -> "Directions":
        """From phases alone; the factors are the atoms of both ends."""
        rx, tx = ramps(arriving, elements(layout.rx)), ramps(departing, elements(layout.tx))
        return cls(rx, tx, departing=departing, arriving=arriving, layout=layout)

    @cached_property
    def lags(self) -> KroneckerMap:
        """What every atom adds to the covariance at each lag: powers [batch, atoms] -> [batch, transmit·receive lags]."""
        receive, transmit = array_lags(self.layout.rx)[-self.layout.shape[0] :], array_lags(self.layout.tx)
        return KroneckerMap(ramps(self.arriving, receive), ramps(self.departing, transmit))

    def sums(self, table: Tensor) -> Tensor:
        """aᴴQa of every atom a from the lag sums of Q (see `BeamView.pulled_back`): -> [batch, departures·arrivals]."""
        return self.lags.adjoint((self.layout.sides.to(table.device) * table).mT.flatten(1)).real


@dataclass(frozen=True, eq=False)
class DirectionCovariance(Covariance):
    """R = Ψ diag(p) Ψᴴ for powers p of the atoms of some directions."""

    powers: Tensor
    """[batch or 1, departures·arrivals], real."""
    directions: Directions
    view: "SeenDirections | None" = None
    """Φ prepared, where the caller looks through the same Φ more than once."""

    @property
    def length(self) -> int:
        return self.directions.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        return self.directions.dtype

    @cached_property
    def as_lags(self) -> LagCovariance:
        """The same covariance as a table of lags."""
        layout, lags = self.directions.layout, self.directions.lags
        table = lags.apply(self.powers.to(lags.dtype)).reshape(len(self.powers), *reversed(layout.shape)).mT
        return LagCovariance(table.contiguous(), layout)

    def apply(self, x: Tensor) -> Tensor:
        self._check_input("x", x, self.length)
        return self.directions.apply(self.powers * self.directions.adjoint(x))

    def seen(self, phi: LinearMap) -> Tensor:
        view = self.view if self.view is not None and self.view.phi is phi else SeenDirections(self.directions, phi)
        if view.beams is None:
            return self.as_lags.seen(phi)
        ramps = self.directions.lags.rx
        powers = self.powers.reshape(self.powers.shape[0], len(self.directions.departing), -1)
        return view.seen_at(view.sent, view.sent_conjugate, (powers.to(ramps.dtype) @ ramps.mT).mT)

    def mixture(self, weights: Tensor) -> "DirectionCovariance":
        return DirectionCovariance(weights @ self.powers, self.directions)

    def variances(self) -> Tensor:
        return self.powers.sum(1, keepdim=True).expand(-1, self.length)

    def materialize(self) -> Tensor:
        return self.as_lags.materialize()


class SeenDirections(BeamView):
    """A front end and some directions: what each pilot sends into each direction of departure is worked out once."""

    def __init__(self, directions: Directions, phi: LinearMap) -> None:
        super().__init__(directions.layout, phi)
        self.directions = directions
        if self.beams is not None:
            self.sent = self.beams.transmit.mT @ directions.tx
            self.sent_conjugate = self.sent.conj().resolve_conj()


def ray_phases(factors: RayFactors, layout: LagLayout) -> tuple[Tensor, Tensor]:
    """The phases of all rays at the transmitter and at the receiver: [batch·rays, 2] each."""
    return _phases(factors.tx, layout.tx), _phases(factors.rx, layout.rx)


def distinct(phases: Tensor, most: int, seed: int) -> tuple[Tensor, Tensor]:
    """The distinct rows of `phases` [rays, 2], or their k-means where there are more than `most`.

    Returns the directions, [at most `most`, 2], and for each ray the index of its direction, [rays].
    """
    found, which = torch.unique((phases * _SAME).round(), dim=0, return_inverse=True)
    if len(found) > most:  # On the torus: -π and π are one place.
        which, _ = k_means(torch.cat([phases.cos(), phases.sin()], 1), most, seed)
        used, which = torch.unique(which, return_inverse=True)
        found = found[: len(used)]
    turns = torch.polar(torch.ones_like(phases), phases)
    mean = torch.zeros(len(found), 2, dtype=turns.dtype).index_add_(0, which, turns)
    return mean.angle(), which


def _phases(steering: Tensor, array: Array) -> Tensor:
    """From one column to the next and from one row to the next. [batch, rays, N] -> [batch·rays, 2]."""
    grid = steering.reshape(-1, array.columns, array.rows)
    steps = [grid.narrow(axis, min(1, grid.shape[axis] - 1), 1)[:, 0, 0] / grid[:, 0, 0] for axis in (1, 2)]
    return torch.stack(steps, 1).angle()
