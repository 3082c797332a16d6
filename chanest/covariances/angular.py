"""Powers on a grid of directions at both ends, for arrays of any polarisation: R = Ψ diag(p) Ψᴴ without Ψ, and ΦRΦᴴ without ΦΨ.

An atom is a pair of a departure and an arrival: a phase ramp over the elements of one polarisation at each end, with entries of
modulus one. Atoms are counted as [transmit polarisations, departures, receive polarisations, arrivals]. Polarisations have
coefficients of their own, independent of each other. Two elements of a uniform array see a phase that depends on how far apart
they are, so sums over arrivals are sums over receive lags, of which half suffice.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache

import torch
from torch import Tensor

from chanest.arrays import Array
from chanest.covariances.lag_layout import LagLayout, array_lags, lag_between, sums_at_lags
from chanest.covariances.lags import combine_pairs, spread_pairs
from chanest.dictionaries import KroneckerMap
from chanest.frontend import BeamformingMap
from vlista_core.gaussian import Covariance
from vlista_core.linops import LinearMap

_GROUP_ENTRIES = 2**18
"""Pilots times departures times receive lags times samples that are worked on at once: small enough to stay in cache."""
FEWEST = 3
"""Points along an axis of more than one element: fewer could not tell a direction from its neighbours."""


@dataclass(frozen=True)
class AngularGrid:
    """Directions with phase steps spread evenly over the circle along the columns and the rows of both arrays."""

    rx: Array
    tx: Array
    oversampling: float
    dtype: torch.dtype = torch.complex64
    """Of the atoms; directions are of its real part."""

    @cached_property
    def axes(self) -> tuple[int, int, int, int]:
        """Points along columns and rows of the transmitter, then of the receiver."""
        sizes = (self.tx.columns, self.tx.rows, self.rx.columns, self.rx.rows)
        columns, rows, receive_columns, receive_rows = (self._points(size) for size in sizes)
        return columns, rows, receive_columns, receive_rows

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Of a tensor of atoms with the directions of each axis apart: (pol_t, columns, rows, pol_r, columns, rows)."""
        axes = self.axes
        return len(self.tx.slants), *axes[:2], len(self.rx.slants), *axes[2:]

    @property
    def atoms(self) -> int:
        return math.prod(self.shape)

    @cached_property
    def departing(self) -> Tensor:
        """Phase from one column and from one row to the next: [departures, 2]."""
        return _directions(*self.axes[:2], self.dtype.to_real())

    @cached_property
    def arriving(self) -> Tensor:
        """[arrivals, 2]."""
        return _directions(*self.axes[2:], self.dtype.to_real())

    @cached_property
    def layout(self) -> LagLayout:
        """The lags of the elements of one polarisation."""
        return LagLayout(replace(self.rx, polarization="V"), replace(self.tx, polarization="V"))

    @cached_property
    def dictionary(self) -> KroneckerMap:
        """Ψ: [n, atoms]."""
        rx, tx = (_per_polarisation(ramps(each, elements(array)), len(array.slants)) for each, array in self._ends)
        return KroneckerMap(rx, tx)

    @cached_property
    def coordinates(self) -> tuple[Tensor, Tensor]:
        """Where departures and arrivals of each polarisation lie: the squared length of their direction cosines in the plane of
        the array, beyond one where no wave comes from, and the cosine towards its zenith: [departures, 2], [arrivals, 2]."""
        arriving, departing = (_place(each, array).repeat(len(array.slants), 1) for each, array in self._ends)
        return departing, arriving

    @cached_property
    def receive_ramps(self) -> Tensor:
        """exp(j·phase·lag) of every arrival at the receive lags of the layout: [lags, arrivals]."""
        return ramps(self.arriving, array_lags(self.layout.rx)[-self.layout.shape[0] :])

    @cached_property
    def transmit_ramps(self) -> Tensor:
        """The same of every departure at all transmit lags: [lags, departures]."""
        return ramps(self.departing, array_lags(self.layout.tx))

    def cast(self, dtype: torch.dtype) -> "AngularGrid":
        """The same grid with atoms of another precision."""
        return self if self.dtype == dtype else angular_grid_of(self.rx, self.tx, self.oversampling, dtype)

    @property
    def _ends(self) -> tuple[tuple[Tensor, Array], tuple[Tensor, Array]]:
        return (self.arriving, self.rx), (self.departing, self.tx)

    def _points(self, size: int) -> int:
        return 1 if size == 1 else max(FEWEST, math.ceil(self.oversampling * size))


@lru_cache(maxsize=32)
def angular_grid_of(rx: Array, tx: Array, oversampling: float, dtype: torch.dtype = torch.complex64) -> AngularGrid:
    """The grid of two arrays, made once."""
    return AngularGrid(rx, tx, oversampling, dtype)


class GridView:
    """What a front end sees of a grid, worked out once for a batch of Φ.

    A beamformer is used pilot by pilot: what each pilot sends into each direction of departure. Any other map is given the
    atoms one by one, which forms ΦΨ: it has no structure to use.
    """

    def __init__(self, grid: AngularGrid, phi: LinearMap) -> None:
        self.grid, self.phi = grid, phi
        self.beams = phi if isinstance(phi, BeamformingMap) and phi.subcarriers == 1 else None

    @cached_property
    def sent(self) -> Tensor:
        """What each pilot sends into each departure of each polarisation: [batch, pilots, pol_t·departures]."""
        return self._beamformer().transmit.mT @ self.grid.dictionary.tx.to(self.phi.device)

    @cached_property
    def conjugate(self) -> Tensor:
        """Of `sent`, in memory."""
        return self.sent.conj().resolve_conj()

    @cached_property
    def formed(self) -> Tensor:
        """ΦΨ for a map without structure: [batch, m, atoms]."""
        return self.phi.apply_block(self.grid.dictionary.to(self.phi.device).materialize())

    def select(self, some: Tensor, phi: LinearMap) -> "GridView":
        """What the chosen samples' Φ see. some: [k] integer, phi: of these samples."""
        view = GridView(self.grid, phi)
        if "sent" in vars(self):
            view.sent, view.conjugate = self.sent[some], self.conjugate[some]
        return view

    def seen(self, powers: Tensor) -> Tensor:
        """ΦRΦᴴ. powers: [batch, atoms] -> [batch, m, m]."""
        if self.beams is None:
            return (self.formed * powers[:, None, :]) @ self.formed.mH
        return group_by_group(self._seen, (powers, self.sent, self.conjugate, *self._weights), self._group)

    def _seen(self, powers: Tensor, sent: Tensor, conjugate: Tensor, *weights: Tensor) -> Tensor:
        grid, layout, lags = self.grid, self.grid.layout, self.grid.receive_ramps.to(powers.device)
        at_receiver = powers.reshape(len(powers), -1, len(grid.rx.slants), lags.shape[1]).to(lags.dtype) @ lags.mT
        total = None
        for q, levels in enumerate(at_receiver.unbind(2)):
            weighted = sent[:, :, None] * levels.mT.contiguous()[:, None]
            between = (weighted.flatten(1, 2) @ conjugate.mT).reshape(*weighted.shape[:3], -1)
            both = torch.cat([between, between.transpose(1, 3).conj()], 2)
            pairs = both[:, :, layout.pairs.to(both.device)]
            part = (
                combine_pairs(self._combiner(q, *weights), pairs) if weights else _placed(pairs, q, len(grid.rx.slants))
            )
            total = part if total is None else total + part
        assert total is not None
        return total

    def forms(self, matrix: Tensor) -> Tensor:
        """ψᴴΦᴴMΦψ of every atom, for Hermitian M: [batch, m, m] -> [batch, atoms], real."""
        if self.beams is None:
            return (self.formed.conj() * (matrix @ self.formed)).sum(1).real
        return group_by_group(self._forms, (matrix, self.sent, self.conjugate, *self._weights), self._group)

    def _forms(self, matrix: Tensor, sent: Tensor, conjugate: Tensor, *weights: Tensor) -> Tensor:
        grid, layout, receive = self.grid, self.grid.layout, self.grid.rx.elements
        pilots, polarisations = sent.shape[1], len(grid.rx.slants)
        found, lags = [], grid.receive_ramps.to(matrix.device).conj()
        for q in range(polarisations):
            if weights:
                pairs = spread_pairs(self._combiner(q, *weights), matrix)
            else:
                parts = matrix.reshape(len(matrix), pilots, polarisations, receive, pilots, polarisations, receive)
                pairs = parts[:, :, q, :, :, q].transpose(3, 4)
            sums = sums_at_lags(layout, pairs)
            beamed = (sums.flatten(1, 2) @ sent).reshape(*sums.shape[:3], -1)
            power = (conjugate[:, None] * beamed).sum(2)
            found.append(((layout.sides.to(power.device) * power).mT @ lags).real)
        return torch.stack(found, 2).flatten(1)

    def matched(self, received: Tensor) -> Tensor:
        """ψᴴΦᴴz of every atom. received: z, [batch, m] -> [batch, atoms]."""
        if self.beams is None:
            return torch.bmm(self.formed.mH.expand(len(received), -1, -1), received[:, :, None])[:, :, 0]
        antennas, pilots = received.unflatten(1, (self.sent.shape[1], -1)), self.conjugate
        if self.beams.weights is not None:
            antennas = (self.beams.weights @ antennas[..., None])[..., 0]
        receive = self.grid.dictionary.rx.to(received.device).conj()
        return (torch.bmm(pilots.mT, antennas) @ receive).flatten(1)

    @property
    def _group(self) -> int:
        """Samples at a time."""
        return _GROUP_ENTRIES // (self.sent[0].numel() * self.grid.layout.shape[0])

    @property
    def _weights(self) -> tuple[Tensor, ...]:
        """The combiners; none for a fully digital receiver."""
        weights = self._beamformer().weights
        return () if weights is None else (weights,)

    def _combiner(self, q: int, weights: Tensor) -> Tensor:
        """The part of the combiners for the elements of one polarisation: [batch, T, elements, N_RF]."""
        elements_each = self.grid.rx.elements
        return weights[:, :, q * elements_each : (q + 1) * elements_each]

    def _beamformer(self) -> BeamformingMap:
        if self.beams is None:
            raise TypeError(f"only a beamformer sends into directions, got {type(self.phi).__name__}")
        return self.beams


@dataclass(frozen=True, eq=False)
class AngularCovariance(Covariance):
    """R = Ψ diag(p) Ψᴴ for powers p of the atoms of a grid."""

    powers: Tensor
    """[batch or 1, atoms], real."""
    grid: AngularGrid
    view: GridView | None = None
    """Φ prepared, where the caller looks through the same Φ more than once."""

    @property
    def length(self) -> int:
        return self.grid.rx.ports * self.grid.tx.ports

    @property
    def dtype(self) -> torch.dtype:
        return self.powers.dtype.to_complex()

    def apply(self, x: Tensor) -> Tensor:
        self._check_input("x", x, self.length)
        dictionary = self._grid.dictionary.to(self.powers.device)
        return dictionary.apply(self.powers * dictionary.adjoint(x))

    def seen(self, phi: LinearMap) -> Tensor:
        known = self.view is not None and self.view.phi is phi
        return self._through_view if known else GridView(self._grid, phi).seen(self.powers)

    def among(self, some: Tensor, phi: LinearMap) -> "AngularCovariance":
        """The covariances of the chosen samples with what was worked out of them. some: [k] integer, phi: of these samples."""
        assert self.view is not None
        chosen = AngularCovariance(self.powers[some], self.grid, self.view.select(some, phi))
        if "_through_view" in vars(self):
            vars(chosen)["_through_view"] = self._through_view[some]
        return chosen

    @cached_property
    def _through_view(self) -> Tensor:
        """ΦRΦᴴ of the Φ that was prepared, worked out once."""
        assert self.view is not None
        return self.view.seen(self.powers)

    def mixture(self, weights: Tensor) -> "AngularCovariance":
        return AngularCovariance(weights @ self.powers, self.grid)

    def variances(self) -> Tensor:
        transmit, receive = len(self.grid.tx.slants), len(self.grid.rx.slants)
        power = self.powers.reshape(len(self.powers), transmit, -1, receive, self.grid.arriving.shape[0]).sum((2, 4))
        spread_out = power.repeat_interleave(self.grid.tx.elements, 1).repeat_interleave(self.grid.rx.elements, 2)
        return spread_out.flatten(1)

    def materialize(self) -> Tensor:
        grid, (batch, _) = self._grid, self.powers.shape
        transmit, receive = len(grid.tx.slants), len(grid.rx.slants)
        field = self.powers.reshape(batch, transmit, len(grid.departing), receive, -1).to(self.dtype)
        receive_ramps = ramps(grid.arriving, array_lags(grid.layout.rx))
        left, right = (each.to(field.device, self.dtype) for each in (grid.transmit_ramps, receive_ramps))
        table = torch.einsum("ad,bpdqe,ce->bpqac", left, field, right)
        entries = table[..., lag_between(grid.layout.tx)[:, :, None, None], lag_between(grid.layout.rx)]
        entries = entries.permute(0, 1, 3, 2, 5, 4, 6)  # [batch, pol_t, t, pol_r, r, t', r']
        result = entries.new_zeros(batch, transmit, grid.tx.elements, receive, grid.rx.elements, transmit,
                                   grid.tx.elements, receive, grid.rx.elements)  # fmt: skip
        for p in range(transmit):
            for q in range(receive):
                result[:, p, :, q, :, p, :, q] = entries[:, p, :, q]
        return result.reshape(batch, self.length, self.length)

    @property
    def _grid(self) -> AngularGrid:
        """In the precision of the powers."""
        return self.grid.cast(self.dtype)


def ramps(phases: Tensor, places: Tensor) -> Tensor:
    """exp(j·phases·place). phases: [directions, 2] per column and row, places: [places, 2] -> [places, directions]."""
    angle = phases @ places.to(phases).mT
    return torch.polar(torch.ones_like(angle), angle).mT


@cache
def elements(array: Array) -> Tensor:
    """(column, row) of the elements of one polarisation in the order of vec(H): [N, 2]."""
    return torch.cartesian_prod(torch.arange(array.columns), torch.arange(array.rows)).reshape(-1, 2)


def group_by_group(function: Callable[..., Tensor], tensors: Sequence[Tensor], size: int) -> Tensor:
    """function of all tensors, at most `size` samples at a time: for large intermediate results that are to stay in cache."""
    if len(tensors[0]) <= max(1, size):
        return function(*tensors)
    return torch.cat([function(*some) for some in zip(*(each.split(max(1, size)) for each in tensors), strict=True)])


def _directions(columns: int, rows: int, dtype: torch.dtype) -> Tensor:
    """All pairs of phases that are spread evenly over the circle: [columns·rows, 2]."""
    phases = (2 * math.pi * (torch.arange(points, dtype=dtype) - points // 2) / points for points in (columns, rows))
    return torch.cartesian_prod(*phases).reshape(-1, 2)


def _place(phases: Tensor, array: Array) -> Tensor:
    """Squared length of the direction cosines along an array, and the one towards its zenith: [directions, 2]."""
    across = phases[:, 0] / (2 * math.pi * array.horizontal_spacing)
    up = -phases[:, 1] / (2 * math.pi * array.vertical_spacing)
    return torch.stack([across.square() + up.square(), up], 1)


def _per_polarisation(atoms: Tensor, polarisations: int) -> Tensor:
    """The same atoms for every polarisation: [N, G] -> [pol·N, pol·G]."""
    return torch.kron(torch.eye(polarisations, dtype=atoms.dtype), atoms.contiguous())


def _placed(pairs: Tensor, q: int, polarisations: int) -> Tensor:
    """What a digital receiver measures of one polarisation among all: [batch, T, N, N, T'] -> [batch, m, m]."""
    batch, pilots, count = pairs.shape[:3]
    block = pairs.transpose(3, 4)
    if polarisations == 1:
        return block.reshape(batch, pilots * count, -1)
    whole = block.new_zeros(batch, pilots, polarisations, count, pilots, polarisations, count)
    whole[:, :, q, :, :, q] = block
    return whole.reshape(batch, pilots * polarisations * count, -1)
