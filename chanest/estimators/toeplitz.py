"""Covariances of channels between uniform arrays: block Toeplitz, so a table of lags holds all of an n×n matrix.

E h[t, r] h[t', r']* depends on the distances of the elements alone. With the lags d_t = t - t' of the transmit array on its
(column, row) grid and d_r of the receive array, R is Σ_l T_l ⊗ S_l: T_l is the Toeplitz matrix of the transmit lags at
receive lag l, S_l the shift by l. Half of the receive lags suffice because R is Hermitian.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor, nn

from chanest.arrays import Array
from chanest.channels.rays import Rays
from chanest.channels.source import ChannelSource
from chanest.frontend import BeamformingMap
from vlista_core.linops import LinearMap

_RAYS_BLOCK = 250


class LagTable:
    """The layout of tables [batch, receive lags, transmit lags] for a pair of arrays of one polarisation."""

    def __init__(self, rx: Array, tx: Array) -> None:
        for name, array in (("rx", rx), ("tx", tx)):
            if len(array.slants) > 1:
                raise ValueError(
                    f"{name} must have one polarisation for a Toeplitz covariance, got {array.polarization}"
                )
        self.rx, self.tx = rx, tx
        lags = [(c, r) for c in range(rx.columns) for r in range(1 - rx.rows, rx.rows) if c > 0 or r >= 0]
        self.receive_lags = lags
        """(columns, rows) between two receive elements, the first at (0, 0); the mirrored ones are implied."""

    @property
    def shape(self) -> tuple[int, int]:
        """Receive lags, transmit lags."""
        return len(self.receive_lags), (2 * self.tx.columns - 1) * (2 * self.tx.rows - 1)

    @cached_property
    def pairs(self) -> Tensor:
        """Which receive lag a pair of elements has, those that are mirrored counted after the others: [N_r, N_r]."""
        place = {lag: index for index, lag in enumerate(self.receive_lags)}
        elements = [(c, r) for c in range(self.rx.columns) for r in range(self.rx.rows)]
        index = torch.empty(self.rx.elements, self.rx.elements, dtype=torch.int64)
        for i, (column, row) in enumerate(elements):
            for j, (other_column, other_row) in enumerate(elements):
                lag = (column - other_column, row - other_row)
                mirrored = lag not in place
                index[i, j] = place[(-lag[0], -lag[1])] + len(place) if mirrored else place[lag]
        return index

    @cached_property
    def multiplicity(self) -> Tensor:
        """How many entries of R a lag stands for, its mirrored ones included: [receive lags, transmit lags]."""
        across = _triangle(self.tx.columns)[:, None] * _triangle(self.tx.rows)[None, :]
        counts = torch.bincount(self.pairs.flatten(), minlength=2 * len(self.receive_lags)).reshape(2, -1).sum(0)
        return counts[:, None].float() * across.flatten()[None, :]

    def blocks(self, table: Tensor) -> Tensor:
        """T_l with the columns in reverse order (then no index runs backwards): [batch, receive lags · N_t, N_t]."""
        columns, rows = self.tx.columns, self.tx.rows
        grid = table.reshape(*table.shape[:2], 2 * columns - 1, 2 * rows - 1).contiguous()
        batch, lag, across, down = grid.stride()
        view = grid.as_strided(
            (*grid.shape[:2], columns, rows, columns, rows), (batch, lag, across, down, across, down)
        )
        return view.reshape(len(table), -1, self.tx.elements)

    def apply(self, blocks: Tensor, h: Tensor) -> Tensor:
        """R h from `blocks`. h: [batch, N_t·N_r] -> [batch, N_t·N_r]."""
        batch, elements = len(h), self.rx.elements
        grid = h.reshape(batch, self.tx.elements, elements)
        both = torch.cat([grid.flip(1), grid.conj()], 2)  # The second half serves T_lᴴ, by Tᵀ = JTJ.
        product = blocks.expand(batch, -1, -1) @ both
        product = product.reshape(batch, -1, self.tx.elements, 2, elements)
        shifted = torch.cat([product[:, :, :, 0], product[:, :, :, 1].flip(2).conj()], 1)
        receive = torch.arange(elements, device=h.device)
        chosen = shifted.permute(1, 3, 0, 2)[self.pairs.to(h.device), receive]
        return chosen.sum(1).permute(1, 2, 0).reshape(batch, -1)

    def matrix(self, table: Tensor) -> Tensor:
        """R itself: [batch, n, n]."""
        size = self.tx.elements
        blocks = self.blocks(table).reshape(len(table), -1, size, size).flip(3)
        both = torch.cat([blocks, blocks.mH], 1)[:, self.pairs.to(table.device)]
        return both.permute(0, 3, 1, 4, 2).reshape(len(table), size * self.rx.elements, -1)

    def of_channels(self, h: Tensor, weights: Tensor) -> Tensor:
        """Σ_b weight_b·h_b h_bᴴ averaged along its diagonals. h: [batch, n], weights: [batch, tables] -> tables."""
        grid = h.reshape(-1, self.tx.columns, self.tx.rows, self.rx.columns, self.rx.rows)
        sizes = [2 * size for size in grid.shape[1:]]
        power = torch.fft.fftn(grid, s=sizes, dim=(1, 2, 3, 4)).abs().square().flatten(1)
        total = (weights.mT @ power).reshape(-1, *sizes)
        lags = torch.fft.ifftn(total, dim=(1, 2, 3, 4))
        columns = torch.arange(1 - self.tx.columns, self.tx.columns)
        rows = torch.arange(1 - self.tx.rows, self.tx.rows)
        receive = [lags[:, :, :, column, row][:, columns][:, :, rows] for column, row in self.receive_lags]
        once = self.multiplicity.clone()
        once[1:] /= 2.0
        return torch.stack(receive, 1).flatten(2) / once

    def of_matrix(self, matrix: Tensor) -> Tensor:
        """The table nearest to Hermitian matrices [batch, n, n]: averages along their diagonals."""
        elements, receive = self.tx.elements, self.rx.elements
        pairs = matrix.reshape(len(matrix), elements, receive, elements, receive).transpose(3, 4)
        once = self.multiplicity.to(matrix.device).clone()
        once[1:] /= 2.0
        return _fold(self, _at_lags(self, pairs)) / once

    def of_rays(self, source: ChannelSource, rays: Rays) -> Tensor:
        """The covariance of each sample given its clusters: Σ_c P_c R_tx,c ⊗ R_rx,c. -> [batch, receive, transmit lags].

        A cluster's factors are averages over its rays; which ray of one end goes with which of the other is not known.
        """
        parts = []
        for first in range(0, len(rays), _RAYS_BLOCK):
            some = rays.select(torch.arange(first, min(len(rays), first + _RAYS_BLOCK)))
            parts.append(self._of_rays(source, some))
        return torch.cat(parts)

    def _of_rays(self, source: ChannelSource, rays: Rays) -> Tensor:
        factors = source.factors(rays)
        clusters, per_cluster = rays.aoa.shape[1:]
        power = factors.gains.abs().square().sum(dim=(1, 2)) * source.scale**2
        table = self._clusters(factors.rx, factors.tx, power, slice(0, clusters * per_cluster), clusters)
        if power.shape[1] > clusters * per_cluster:  # The last ray is the line of sight: a cluster of its own.
            table = table + self._clusters(factors.rx, factors.tx, power, slice(clusters * per_cluster, None), 1)
        return table

    def _clusters(self, rx: Tensor, tx: Tensor, power: Tensor, some: slice, clusters: int) -> Tensor:
        """Σ_c P_c R_tx,c ⊗ R_rx,c over the rays in `some`, equally many a cluster."""
        width = 2 * self.rx.rows - 1
        kept = [(c + self.rx.columns - 1) * width + r + self.rx.rows - 1 for c, r in self.receive_lags]
        receive = _mean_lags(rx[:, some], self.rx, clusters)[:, :, kept]
        transmit = _mean_lags(tx[:, some], self.tx, clusters)
        total = power[:, some].reshape(len(rx), clusters, -1).sum(2)
        return (receive * total[:, :, None]).mT @ transmit


def seen_covariance(layout: LagTable, table: Tensor, blocks: Tensor, phi: LinearMap) -> Tensor:
    """ΦRΦᴴ: [batch, m, m]. A beamformer is used frame by frame, R is not formed; any other map is applied to R."""
    if not isinstance(phi, BeamformingMap) or phi.subcarriers > 1:
        once = phi.apply_block(layout.matrix(table))
        return phi.apply_block(once.mH.contiguous())
    beams = phi.transmit
    batch, elements, frames = beams.shape
    right = blocks.expand(batch, -1, -1) @ beams.flip(1).conj()
    right = right.reshape(batch, -1, elements, frames)
    between = beams.mT[:, None] @ right
    both = torch.cat([between, between.mH], 1)
    by_frame = both.transpose(1, 2).contiguous()
    pairs = by_frame[:, :, layout.pairs.to(beams.device)]
    if phi.weights is None:
        return pairs.transpose(3, 4).reshape(batch, frames * layout.rx.elements, -1)
    return _combined(phi.weights, pairs)


def _combined(weights: Tensor, pairs: Tensor) -> Tensor:
    """Wᴴ M W frame by frame. weights: [batch, T, N_r, N_RF], pairs: M as [batch, T, N_r, N_r', T'] -> [batch, m, m]."""
    batch, frames, elements, chains = weights.shape
    left = weights.mH @ pairs.reshape(batch, frames, elements, -1)
    left = left.reshape(batch, frames * chains, elements, frames).permute(0, 3, 1, 2)
    return (left @ weights).transpose(1, 2).reshape(batch, frames * chains, -1)


def _spread(weights: Tensor, matrix: Tensor) -> Tensor:
    """W M Wᴴ frame by frame, the adjoint of `_combined`: [batch, m, m] -> [batch, T, N_r, N_r', T']."""
    batch, frames, elements, chains = weights.shape
    right = matrix.reshape(batch, frames * chains, frames, chains).transpose(1, 2) @ weights.mH
    right = right.reshape(batch, frames, frames, chains, elements).permute(0, 2, 3, 4, 1)
    spread = weights @ right.reshape(batch, frames, chains, -1)
    return spread.reshape(batch, frames, elements, elements, frames)


def pulled_back(layout: LagTable, matrix: Tensor, phi: LinearMap) -> Tensor:
    """The sums of Q = ΦᴴMΦ over the entries of each lag, so that tr(RQ) = Re Σ R's table · conj(sums) · weight.

    matrix: M, Hermitian, [batch, m, m] -> [batch, receive lags, transmit lags]. The weight is 2 but for receive lag zero.
    """
    elements, receive = layout.tx.elements, layout.rx.elements
    if not isinstance(phi, BeamformingMap) or phi.subcarriers > 1:
        identity = torch.eye(phi.shape[1], dtype=phi.dtype, device=phi.device)
        whole = phi.apply_block(identity[None])
        between = (whole.mH @ matrix @ whole).reshape(len(matrix), elements, receive, elements, receive)
        return _fold(layout, _at_lags(layout, between.transpose(3, 4)))
    if phi.weights is None:
        pairs = matrix.reshape(len(matrix), phi.frames, receive, phi.frames, receive).transpose(3, 4)
    else:
        pairs = _spread(phi.weights, matrix)
    beams = phi.transmit[:, None]
    return _fold(layout, beams.conj() @ _at_lags(layout, pairs) @ beams.mT)


def _at_lags(layout: LagTable, pairs: Tensor) -> Tensor:
    """Sums over the pairs of receive elements at each lag. [batch, T, N_r, N_r, T'] -> [batch, receive lags, T, T']."""
    return torch.stack([pairs[:, :, layout.pairs == lag].sum(2) for lag in range(len(layout.receive_lags))], 1)


def _fold(layout: LagTable, matrices: Tensor) -> Tensor:
    """Sums over the pairs of transmit elements at each lag. [batch, lags, N_t, N_t] -> [batch, lags, transmit lags]."""
    columns, rows = layout.tx.columns, layout.tx.rows
    grid = matrices.reshape(*matrices.shape[:2], columns, rows, columns, rows).flip(4, 5)
    by_rows = _skewed_sum(grid.permute(0, 1, 2, 4, 3, 5))
    return _skewed_sum(by_rows.movedim(4, 2)).mT.flatten(2)


def _skewed_sum(matrix: Tensor) -> Tensor:
    """Σ over i + j = k. [..., size, size] -> [..., 2·size - 1]: row i is moved right by i, then rows are added up."""
    size = matrix.shape[-1]
    padded = nn.functional.pad(matrix, (0, size)).flatten(-2)[..., : size * (2 * size - 1)]
    return padded.reshape(*matrix.shape[:-2], size, 2 * size - 1).sum(-2)


def _mean_lags(steering: Tensor, array: Array, clusters: int) -> Tensor:
    """Mean over the rays of a cluster of exp(j·phase·lag). steering: [batch, rays, N] -> [batch, clusters, lags]."""
    grid = steering.reshape(len(steering), clusters, -1, array.columns, array.rows)
    grid = grid / grid[..., :1, :1]
    across, down = _both_ways(grid[..., 0]), _both_ways(grid[..., 0, :])
    return (across.mT @ down).flatten(2) / grid.shape[2]


def _both_ways(powers: Tensor) -> Tensor:
    """exp(j·n·phase) for n = 0 … N - 1 -> for n = 1 - N … N - 1, in the last dimension."""
    return torch.cat([powers[..., 1:].flip(-1).conj(), powers], -1)


def _triangle(size: int) -> Tensor:
    """How many pairs of `size` elements are at each lag: [2·size - 1]."""
    return size - torch.arange(1 - size, size).abs().float()
