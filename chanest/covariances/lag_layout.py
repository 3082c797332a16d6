"""How tables of lags are laid out: covariances between uniform arrays are block Toeplitz, so a table holds all of R.

E h[t, r] h[t', r']* depends on the distances of the elements alone. With the lags d_t = t - t' of the transmit array on its
(column, row) grid and d_r of the receive array, R is Σ_l T_l ⊗ S_l: T_l is the Toeplitz matrix of the transmit lags at
receive lag l, S_l the shift by l. Half of the receive lags suffice because R is Hermitian.

With two polarisations at an end, E h[a, t, b, r] h[a', t', b', r']* depends on the transmit polarisations a, a' and the receive
ones b, b' besides. So every pair of polarisations is taken to have receive elements of its own: (a, b, r) takes the place of r,
and (a, b), (a', b') and d_r together, a kind of pair of those, that of a receive lag.
"""

from functools import cache, cached_property

import torch
from torch import Tensor

from chanest.arrays import Array
from chanest.channels.rays import Rays
from chanest.channels.source import ChannelSource
from chanest.covariances.rays import polarised_products

_RAYS_BLOCK = 250


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
        return from_spectrum(self, power[..., 0])

    def angles(self, h: Tensor) -> Tensor:
        """The Fourier transform over the transmit array: [batch, n] -> [batch, points, P·N_r]."""
        grid = h.reshape(h.shape[0], self._sent, self.tx.columns, self.tx.rows, self.rx.ports)
        angles: Tensor = torch.fft.fftn(grid, s=self.grid, dim=(2, 3))
        return angles.permute(0, 2, 3, 1, 4).reshape(h.shape[0], -1, self.parts)

    def channel(self, angles: Tensor) -> Tensor:
        """The inverse of `angles`: [batch, points, P·N_r] -> [batch, n]."""
        grid: Tensor = torch.fft.ifftn(angles.reshape(angles.shape[0], *self.grid, self._sent, -1), dim=(1, 2))
        kept = grid[:, : self.tx.columns, : self.tx.rows]
        return kept.permute(0, 3, 1, 2, 4).reshape(angles.shape[0], -1)

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


def from_spectrum(layout: LagLayout, spectrum: Tensor) -> Tensor:
    """What `LagLayout.spectrum` was made from: [batch, receive kinds, points] -> tables."""
    lags = torch.fft.ifft2(spectrum.reshape(*spectrum.shape[:2], *layout.grid))
    table: Tensor = torch.fft.fftshift(lags, dim=(2, 3))
    return table.flatten(2)


def sums_at_lags(layout: LagLayout, pairs: Tensor) -> Tensor:
    """Sums over the pairs of parts of each kind. [batch, T, P·N_r, P·N_r, T'] -> [batch, receive kinds, T, T']."""
    return pair_sums(pairs, layout.members)


def pair_sums(pairs: Tensor, members: Tensor) -> Tensor:
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
