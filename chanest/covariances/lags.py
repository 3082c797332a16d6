"""Covariances of channels between uniform arrays: block Toeplitz, so a table of lags holds all of an n×n matrix.

E h[t, r] h[t', r']* depends on the distances of the elements alone. With the lags d_t = t - t' of the transmit array on its
(column, row) grid and d_r of the receive array, R is Σ_l T_l ⊗ S_l: T_l is the Toeplitz matrix of the transmit lags at
receive lag l, S_l the shift by l. Half of the receive lags suffice because R is Hermitian.

With two polarisations at an end, E h[a, t, b, r] h[a', t', b', r']* depends on the transmit polarisations a, a' and the receive
ones b, b' besides. So every pair of polarisations is taken to have receive elements of its own: (a, b, r) takes the place of r,
and (a, b), (a', b') and d_r together, a kind of pair of those, that of a receive lag.
"""

from dataclasses import dataclass
from functools import cache, cached_property

import torch
from torch import Tensor

from chanest.arrays import Array
from chanest.channels.rays import Rays
from chanest.channels.source import ChannelSource
from chanest.covariances.rays import polarised_products
from chanest.frontend import BeamformingMap
from chanest.problem import ChannelProblem
from vlista_core.gaussian import Covariance
from vlista_core.linops import LinearMap

_RAYS_BLOCK = 250


def has_lags(problem: ChannelProblem) -> bool:
    """Whether tables of lags hold the covariances of a problem: one subcarrier, one polarisation at both ends."""
    return problem.subcarriers == 1 and all(len(array.slants) == 1 for array in problem.arrays)


@cache
def array_lags(array: Array) -> Tensor:
    """(columns, rows) between two elements, in the order of a table, (0, 0) in the middle: [lags, 2]."""
    return torch.cartesian_prod(
        torch.arange(1 - array.columns, array.columns), torch.arange(1 - array.rows, array.rows)
    )


def lag_between(array: Array) -> Tensor:
    """Which of `array_lags` any two elements have: [N, N]."""
    place = torch.arange(array.elements)
    lag = place // array.rows * (2 * array.rows - 1) + place % array.rows
    return lag[:, None] - lag + len(array_lags(array)) // 2


class LagLayout:
    """The layout of tables [batch, receive kinds, transmit lags] for a pair of arrays.

    A receive kind is a receive lag where both arrays have one polarisation, else a lag and two pairs of polarisations.
    """

    def __init__(self, rx: Array, tx: Array) -> None:
        self.rx, self.tx = rx, tx

    @property
    def shape(self) -> tuple[int, int]:
        """Receive kinds from lag (0, 0) on, the mirrored ones are implied; transmit lags."""
        return len(self.kinds), len(array_lags(self.tx))

    @property
    def polarisations(self) -> int:
        """P, pairs (a, b) of a transmit and a receive polarisation."""
        return len(self.tx.slants) * len(self.rx.slants)

    @property
    def parts(self) -> int:
        """P·N_r: what is received of every transmit polarisation by every port, in the order (a, b, r)."""
        return self.polarisations * self.rx.elements

    @cached_property
    def kinds(self) -> Tensor:
        """(a, b) of one part, (a', b') of the other, and which receive lag; those of a and a' together: [kinds, 3]."""
        middle, every = len(array_lags(self.rx)) // 2, range(self.polarisations)
        same_place = [(one, other, middle) for one in every for other in every if one <= other]
        apart = [(one, other, lag) for one in every for other in every for lag in range(middle + 1, 2 * middle + 1)]
        receive = len(self.rx.slants)
        order = sorted([*same_place, *apart], key=lambda kind: (kind[0] // receive, kind[1] // receive, kind[2]))
        return torch.tensor(order)

    @cached_property
    def groups(self) -> list[tuple[int, int, slice]]:
        """The kinds of each pair of transmit polarisations: a, a', and where they are."""
        of_transmitter = (self.kinds[:, :2] // len(self.rx.slants)).tolist()
        found = []
        for a, other in sorted({(a, other) for a, other in of_transmitter}):
            first, count = of_transmitter.index([a, other]), of_transmitter.count([a, other])
            found.append((a, other, slice(first, first + count)))
        return found

    @cached_property
    def own(self) -> Tensor:
        """The kinds of a part with itself: [P]. They hold the powers, and are their own mirror images."""
        one, other, lag = self.kinds.unbind(1)
        return ((one == other) & (lag == len(array_lags(self.rx)) // 2)).nonzero()[:, 0]

    @cached_property
    def pairs(self) -> Tensor:
        """Which kind a pair of parts is, those that are mirrored counted after the others: [P·N_r, P·N_r]."""
        one, other, lag = self.kinds.unbind(1)
        lags, index = len(array_lags(self.rx)), torch.arange(len(self.kinds))
        kind = torch.zeros(self.polarisations, self.polarisations, lags, dtype=torch.int64)
        kind[other, one, lags - 1 - lag] = index + len(index)
        kind[one, other, lag] = index
        part = torch.arange(self.parts)
        polarisation, place = part // self.rx.elements, part % self.rx.elements
        return kind[polarisation[:, None], polarisation, lag_between(self.rx)[place[:, None], place]]

    @cached_property
    def members(self) -> Tensor:
        """Which pairs of parts are of each kind, those that are mirrored left out: [(P·N_r)², receive kinds], 0 or 1."""
        return (self.pairs.reshape(-1, 1) == torch.arange(self.shape[0])).to(torch.float32)

    @cached_property
    def sides(self) -> Tensor:
        """How often a table implies its rows: once for parts with themselves, twice, mirrored, else: [receive kinds, 1]."""
        sides = torch.full((self.shape[0], 1), 2.0)
        sides[self.own] = 1.0
        return sides

    @cached_property
    def multiplicity(self) -> Tensor:
        """How many entries of R a lag stands for, its mirrored ones included: [receive kinds, transmit lags]."""
        receive = torch.bincount(self.pairs.flatten(), minlength=2 * self.shape[0]).reshape(2, -1).sum(0)
        return torch.outer(receive, torch.bincount(self.lag_of.flatten())).float()

    @cached_property
    def lag_of(self) -> Tensor:
        """Which transmit lag a pair of elements has: [N_t, N_t]."""
        return lag_between(self.tx)

    @property
    def grid(self) -> tuple[int, int]:
        """Points of the Fourier transform over transmit lags: one for each, so that nothing wraps around."""
        return 2 * self.tx.columns - 1, 2 * self.tx.rows - 1

    def spectrum(self, table: Tensor) -> Tensor:
        """The Fourier transform of a table over its transmit lags: [batch, receive kinds, points]."""
        lags = table.reshape(*table.shape[:2], *self.grid)
        spectrum: Tensor = torch.fft.fft2(torch.fft.ifftshift(lags, dim=(2, 3)))
        return spectrum.flatten(2)

    def products(self, h: Tensor) -> Tensor:
        """The sums of hhᴴ over the entries of each lag, as `BeamView.pulled_back` gives them: [batch, n] -> tables."""
        angles = self.angles(h)
        power = sums_at_lags(self, (angles[..., :, None] * angles[..., None, :].conj())[..., None])
        return _from_spectrum(self, power[..., 0])

    def angles(self, h: Tensor) -> Tensor:
        """The Fourier transform over the transmit array: [batch, n] -> [batch, points, P·N_r]."""
        grid = h.reshape(len(h), self._sent, self.tx.columns, self.tx.rows, self.rx.ports)
        angles: Tensor = torch.fft.fftn(grid, s=self.grid, dim=(2, 3))
        return angles.permute(0, 2, 3, 1, 4).reshape(len(h), -1, self.parts)

    def channel(self, angles: Tensor) -> Tensor:
        """The inverse of `angles`: [batch, points, P·N_r] -> [batch, n]."""
        grid: Tensor = torch.fft.ifftn(angles.reshape(len(angles), *self.grid, self._sent, -1), dim=(1, 2))
        kept = grid[:, : self.tx.columns, : self.tx.rows]
        return kept.permute(0, 3, 1, 2, 4).reshape(len(angles), -1)

    def matrix(self, table: Tensor) -> Tensor:
        """R itself: [batch, n, n]."""
        blocks = table[:, :, self.lag_of.to(table.device)]
        both = torch.cat([blocks, blocks.mH], 1)[:, self.pairs.to(table.device)]
        apart = both.unflatten(2, (self._sent, -1)).unflatten(1, (self._sent, -1))
        matrix: Tensor = apart.permute(0, 1, 5, 2, 3, 6, 4).reshape(len(table), self.tx.ports * self.rx.ports, -1)
        return matrix

    def of_matrix(self, matrix: Tensor, *, mean: bool = True) -> Tensor:
        """Averages (or sums) of Hermitian matrices [batch, n, n] over the entries of each lag: the nearest table."""
        one = (self._sent, self.tx.elements, self.rx.ports)
        pairs = matrix.reshape(len(matrix), *one, *one).permute(0, 2, 1, 3, 4, 6, 5).flatten(4, 5).flatten(2, 3)
        blocks = sums_at_lags(self, pairs).flatten(2)
        sums = blocks.new_zeros(len(matrix), *self.shape)
        sums.index_add_(2, self.lag_of.flatten().to(matrix.device), blocks)
        return sums / (self.multiplicity / self.sides).to(matrix.device) if mean else sums

    def of_rays(self, source: ChannelSource, rays: Rays) -> Tensor:
        """The covariance of each sample given its clusters: Σ_c P_c R_tx,c ⊗ R_rx,c, and with polarisations the products of
        the gains of each ray, its phases known. -> [batch, receive kinds, transmit lags]."""
        one, other, lag = self.kinds.unbind(1)
        least = int(lag.min())
        tables = [
            polarised_products(
                source,
                rays.select(some),
                lambda steering: mean_lags(steering, self.rx)[..., least:],
                lambda steering: mean_lags(steering, self.tx),
            )[:, one, other, lag - least]
            for some in torch.split(torch.arange(len(rays)), _RAYS_BLOCK)
        ]
        return torch.cat(tables)

    @property
    def _sent(self) -> int:
        """Transmit polarisations."""
        return len(self.tx.slants)


@dataclass(frozen=True, eq=False)
class LagCovariance(Covariance):
    """R as a table of lags."""

    table: Tensor
    """[batch or 1, receive kinds, transmit lags]."""
    layout: LagLayout
    view: "BeamView | None" = None
    """Φ prepared, where the caller looks through the same Φ more than once."""

    @property
    def length(self) -> int:
        return self.layout.tx.ports * self.layout.rx.ports

    @cached_property
    def spectrum(self) -> Tensor:
        """The Fourier transform of the table over its transmit lags."""
        return self.layout.spectrum(self.table)

    def apply(self, x: Tensor) -> Tensor:
        self._check_input("x", x, self.length)
        layout = self.layout
        if len(self.table) == 1:
            return x @ self.materialize()[0].mT
        both = torch.cat([self.spectrum, self.spectrum.conj()], 1).mT[:, :, layout.pairs.to(x.device)]
        return layout.channel((both @ layout.angles(x)[..., None])[..., 0])

    def seen(self, phi: LinearMap) -> Tensor:
        view = self.view if self.view is not None and self.view.phi is phi else BeamView(self.layout, phi)
        if view.beams is None:
            return super().seen(phi)
        return view.seen_at(view.spectra, view.conjugate, self.spectrum / self.spectrum.shape[2])

    def mixture(self, weights: Tensor) -> "LagCovariance":
        mixed = weights.to(self.dtype) @ self.table.flatten(1)
        return LagCovariance(mixed.reshape(-1, *self.table.shape[1:]), self.layout)

    def variances(self) -> Tensor:
        power = self.table[:, self.layout.own, self.table.shape[2] // 2].real
        tx, rx = self.layout.tx, self.layout.rx
        parts = power.reshape(len(power), len(tx.slants), 1, len(rx.slants), 1)
        return parts.expand(-1, -1, tx.elements, -1, rx.elements).flatten(1)

    def materialize(self) -> Tensor:
        return self.layout.matrix(self.table)


class BeamView:
    """A front end as covariances need it: what its beams send into directions, worked out once.

    A beamformer is used pilot by pilot, through the angular spectra of its beams. For any other map `beams` is None, and
    covariances are given to it column by column.
    """

    def __init__(self, layout: LagLayout, phi: LinearMap) -> None:
        self.layout, self.phi = layout, phi
        self.beams = phi if isinstance(phi, BeamformingMap) and phi.subcarriers == 1 else None

    @cached_property
    def spectra(self) -> Tensor:
        """Σ_i f_t[i] exp(jω·i) at the points ω of the layout's grid, of each polarisation: [batch, pol_t·pilots, points]."""
        transmit, (columns, rows) = self._beamformer().transmit, self.layout.grid
        by_polarisation = transmit.unflatten(1, (len(self.layout.tx.slants), -1)).mT
        grid = by_polarisation.reshape(len(transmit), -1, self.layout.tx.columns, self.layout.tx.rows)
        spectra: Tensor = torch.fft.ifft2(grid, s=self.layout.grid).flatten(2) * (columns * rows)
        return spectra

    @cached_property
    def conjugate(self) -> Tensor:
        """Of `spectra`, in memory."""
        return self.spectra.conj().resolve_conj()

    def seen_at(self, sent: Tensor, conjugate: Tensor, weights: Tensor) -> Tensor:
        """ΦRΦᴴ of an R that is a sum over directions: [batch, m, m].

        sent: what each pilot sends into each direction, [batch, pol_t·pilots, directions], and its conjugate; weights: of
        each direction for each receive kind, [batch or 1, receive kinds, directions].
        """
        combiners, layout, transmit = self._beamformer().weights, self.layout, len(self.layout.tx.slants)
        by_polarisation, conjugates = (each.unflatten(1, (transmit, -1)) for each in (sent, conjugate))
        found = []
        for a, other, kinds in layout.groups:
            weighted = by_polarisation[:, a, None] * weights[:, kinds, None]
            between = weighted.flatten(1, 2) @ conjugates[:, other].mT
            found.append(between.reshape(*weighted.shape[:3], -1))
        between = torch.cat(found, 1)
        both = torch.cat([between, between.mH], 1).transpose(1, 2).contiguous()
        pairs = both[:, :, layout.pairs.to(both.device)]
        if transmit > 1:
            pairs = pairs.unflatten(3, (transmit, -1)).unflatten(2, (transmit, -1)).sum((2, 4))
        if combiners is None:
            return pairs.transpose(3, 4).reshape(len(pairs), pairs.shape[1] * pairs.shape[2], -1)
        return combine_pairs(combiners, pairs)

    def pulled_back(self, matrix: Tensor) -> Tensor:
        """The sums of Q = ΦᴴMΦ over the entries of each lag, so that tr(RQ) = Re Σ R's table · conj(sums) · sides.

        matrix: M, Hermitian, [batch, m, m] -> [batch, receive kinds, transmit lags]; sides: those of the layout.
        """
        layout, batch, receive, transmit = self.layout, len(matrix), self.layout.rx.ports, len(self.layout.tx.slants)
        if self.beams is None:
            identity = torch.eye(self.phi.shape[1], dtype=matrix.dtype, device=matrix.device)
            whole = self.phi.apply_block(identity[None])
            return layout.of_matrix(whole.mH @ matrix @ whole, mean=False)
        if self.beams.weights is None:
            pilots = self.beams.pilots
            pairs = matrix.reshape(batch, pilots, receive, pilots, receive).transpose(3, 4)
        else:
            pairs = spread_pairs(self.beams.weights, matrix)
        members = layout.members.reshape(transmit, receive, transmit, receive, -1)
        spectra, conjugates = (each.unflatten(1, (transmit, -1)) for each in (self.spectra, self.conjugate))
        powers = []
        for a, other, kinds in layout.groups:
            at_lags = _sums(pairs, members[a, :, other, :, kinds].reshape(receive**2, -1))
            beamed = (at_lags.flatten(1, 2) @ spectra[:, other]).reshape(*at_lags.shape[:3], -1)
            powers.append((conjugates[:, a, None] * beamed).sum(2))
        return _from_spectrum(layout, torch.cat(powers, 1))

    def _beamformer(self) -> BeamformingMap:
        if self.beams is None:
            raise TypeError(f"only a beamformer sends into directions, got {type(self.phi).__name__}")
        return self.beams


def _from_spectrum(layout: LagLayout, spectrum: Tensor) -> Tensor:
    """What `LagLayout.spectrum` was made from: [batch, receive kinds, points] -> tables."""
    lags = torch.fft.ifft2(spectrum.reshape(*spectrum.shape[:2], *layout.grid))
    table: Tensor = torch.fft.fftshift(lags, dim=(2, 3))
    return table.flatten(2)


def combine_pairs(weights: Tensor, pairs: Tensor) -> Tensor:
    """Wᴴ M W pilot by pilot. weights: [batch, T, N_r, N_RF], pairs: M as [batch, T, N_r, N_r', T'] -> [batch, m, m]."""
    batch, pilots, elements, chains = weights.shape
    left = weights.mH @ pairs.reshape(batch, pilots, elements, -1)
    left = left.reshape(batch, pilots * chains, elements, pilots).permute(0, 3, 1, 2)
    return (left @ weights).transpose(1, 2).reshape(batch, pilots * chains, -1)


def spread_pairs(weights: Tensor, matrix: Tensor) -> Tensor:
    """W M Wᴴ pilot by pilot, the adjoint of `combine_pairs`: [batch, m, m] -> [batch, T, N_r, N_r', T']."""
    batch, pilots, elements, chains = weights.shape
    right = matrix.reshape(batch, pilots * chains, pilots, chains).transpose(1, 2) @ weights.mH
    right = right.reshape(batch, pilots, pilots, chains, elements).permute(0, 2, 3, 4, 1)
    spread = weights @ right.reshape(batch, pilots, chains, -1)
    return spread.reshape(batch, pilots, elements, elements, pilots)


def sums_at_lags(layout: LagLayout, pairs: Tensor) -> Tensor:
    """Sums over the pairs of parts of each kind. [batch, T, P·N_r, P·N_r, T'] -> [batch, receive kinds, T, T']."""
    return _sums(pairs, layout.members)


def _sums(pairs: Tensor, members: Tensor) -> Tensor:
    """[batch, T, N, N, T'] and which of the pairs are of each kind, [N², kinds] -> [batch, kinds, T, T']."""
    batch, pilots, receive, _, others = pairs.shape
    flat = pairs.permute(0, 1, 4, 2, 3).reshape(batch, pilots * others, receive**2)
    return (members.to(pairs.device, pairs.dtype).mT @ flat.mT).reshape(batch, -1, pilots, others)


def mean_lags(steering: Tensor, array: Array) -> Tensor:
    """Mean over the rays of a cluster of exp(j·phase·lag). steering: [batch, clusters, rays, N] -> [batch, clusters, lags]."""
    grid = steering.reshape(*steering.shape[:3], array.columns, array.rows)
    grid = grid / grid[..., :1, :1]
    across, down = _both_ways(grid[..., 0]), _both_ways(grid[..., 0, :])
    return (across.mT @ down).flatten(2) / grid.shape[2]


def _both_ways(powers: Tensor) -> Tensor:
    """exp(j·n·phase) for n = 0 … N - 1 -> for n = 1 - N … N - 1, in the last dimension."""
    return torch.cat([powers[..., 1:].flip(-1).conj(), powers], -1)
