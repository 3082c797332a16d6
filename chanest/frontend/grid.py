"""Pilots on a resource grid as a linear map of the channel over snapshots, subcarriers, transmit and receive antennas."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from chanest.dictionaries import KroneckerMap
from chanest.frontend.base import FrontEnd
from chanest.frontend.tile import TileMap
from chanest.pilots.grid import Pilots, Tile
from vlista_core.linalg import cholesky
from vlista_core.linops import LinearMap

Index = slice | Tensor


@dataclass(frozen=True, eq=False)
class GridMap(FrontEnd):
    """h -> y on the resource elements that carry pilots; h is ordered as `chanest.frontend.base` says.

    y runs by snapshot, by subcarrier, by the pilot symbols of that snapshot, by chain: `elements` lists them. That is today's
    order of `BeamformingMap` where there is one snapshot, and that of Sionna (symbol by symbol) where every symbol is one.
    Pilots whose symbols have different subcarriers make several tiles, one after the other. `GridMap.of` makes one.
    """

    parts: tuple[TileMap, ...]
    tiles: tuple[Tile, ...]
    """Where each part is on the grid."""
    antennas: int
    subcarriers: int
    whiten: bool
    snapshots: int = 1

    @classmethod
    def of(
        cls,
        pilots: Pilots,
        transmit: Tensor | None = None,
        combiner: Tensor | None = None,
        *,
        antennas: int = 0,
        whiten: bool = True,
        snapshots: int = 1,
    ) -> "GridMap":
        """From pilots, the beams of their T symbols [batch, N_u, T, streams], and combiners [batch, T, N_r, N_RF].

        transmit None: every stream is an antenna; [batch, N_u, T] does for a single stream. Each user has N_u antennas, and
        its streams go through these alone. combiner None: a digital receiver of `antennas`. The grid's symbols are divided
        equally among `snapshots` of the channel: 1 for a channel that stays, as many as symbols for one that moves.
        Without beams and combiners one map serves any batch.
        """
        beams = transmit[..., None] if transmit is not None and transmit.ndim == 3 else transmit
        _check(pilots, beams, combiner, antennas)
        tiles = pilots.tiles(snapshots)
        parts = tuple(_part(tile, pilots, beams, combiner, antennas) for tile in tiles)
        made = cls(parts, tiles, parts[0].antennas, pilots.subcarriers, combiner is None, snapshots)
        return made.whitened() if whiten else made

    @property
    def chains(self) -> int:
        """Outputs of one resource element: N_RF, or N_r for a fully digital receiver."""
        return self.parts[0].chains

    @property
    def pilots(self) -> int:
        return len({symbol for tile in self.tiles for symbols in tile.symbols for symbol in symbols})

    @property
    def users(self) -> int:
        """Whose channels are stacked along the transmit antennas."""
        return self.parts[0].sizes[3]

    @property
    def arriving(self) -> int:
        return sum(part.elements for part in self.parts) * self.antennas

    @property
    def shape(self) -> tuple[int, int]:
        return sum(part.shape[0] for part in self.parts), self.snapshots * self.subcarriers * self._entries

    @property
    def batch(self) -> int | None:
        return self.parts[0].batch

    @cached_property
    def elements(self) -> Tensor:
        """Symbol and subcarrier of every measured resource element, in the order of y: [elements, 2]."""
        found = [
            (symbol, subcarrier)
            for tile in self.tiles
            for symbols in tile.symbols
            for subcarrier in tile.subcarriers
            for symbol in symbols
        ]
        return torch.tensor(found, device=self.device)

    def collect(self, grid: Tensor) -> Tensor:
        """y from what arrived at the antennas on the whole grid: [batch, symbols, subcarriers, N_r] -> [batch, m]."""
        symbol, subcarrier = self.elements.unbind(1)
        return self.combine(grid[:, symbol, subcarrier].flatten(1))

    def apply(self, x: Tensor) -> Tensor:
        self._check_input("x", x, self.shape[1])
        seen = (part.apply(here.flatten(1)) for part, here in self._split(x))
        return torch.cat(tuple(seen), dim=1)

    def apply_block(self, x: Tensor) -> Tensor:
        columns = x.mT
        seen = (
            part.apply_block(here.reshape(*columns.shape[:2], -1).mT)
            for part, here in self._split(columns.reshape(-1, x.shape[1]))
        )
        return torch.cat(tuple(seen), dim=1)

    def adjoint(self, y: Tensor) -> Tensor:
        self._check_input("y", y, self.shape[0])
        return self._placed([part.adjoint(mine) for part, mine in self._outputs(y)], len(y))

    def combine(self, received: Tensor) -> Tensor:
        pieces = received.split([part.elements * self.antennas for part in self.parts], dim=1)
        return torch.cat([part.combine(piece) for part, piece in zip(self.parts, pieces, strict=True)], dim=1)

    def whitened(self) -> "GridMap":
        if self.whiten:
            return self
        return replace(self, parts=tuple(part.whitened() for part in self.parts), whiten=True)

    def whitened_output(self, y: Tensor) -> Tensor:
        return torch.cat([part.whitened_output(mine) for part, mine in self._outputs(y)], dim=1)

    def first_pilots(self, count: int) -> "GridMap":
        if len(self.tiles) > 1 or len(self.tiles[0].snapshots) > 1:
            raise ValueError("the first pilots of several snapshots or tiles are no front end by themselves")
        tile = replace(self.tiles[0], symbols=(self.tiles[0].symbols[0][:count],))
        return replace(self, parts=(self.parts[0].first_symbols(count),), tiles=(tile,))

    def _column_norms(self) -> Tensor:
        return self._placed([part._column_norms() for part in self.parts], self.batch or 1)

    def column_norms_after(self, inner: LinearMap) -> Tensor | None:
        """Of a Kronecker dictionary of one snapshot: ‖Φ(a_d ⊗ a_t ⊗ a_r)‖² = Σ_k |a_dk|²·Σ_t |g_ktᵀa_t|²·‖W_tᴴa_r‖²."""
        if not isinstance(inner, KroneckerMap) or inner.batch is not None or self.snapshots > 1:
            return None
        total = torch.zeros((), device=self.device)
        for part, (_, subcarriers) in zip(self.parts, self._indices, strict=True):
            powers = part.powers_after(inner)[:, 0]
            if inner.delay is None:
                total = total + powers[:, 0, None]
            else:
                delay = inner.delay.abs().square()[subcarriers].to(powers.dtype)
                total = total + torch.einsum("kd,bkta->bdta", delay, powers)
        return total.sqrt().flatten(1).expand(self.batch or 1, -1)

    def gram(self) -> Tensor:
        """ΦΦᴴ, in which nothing is between two tiles, nor between two snapshots or subcarriers of one."""
        grams = [part.gram() for part in self.parts]
        if len(grams) == 1:
            return grams[0]
        whole = grams[0].new_zeros(self.batch or 1, self.shape[0], self.shape[0])
        first = 0
        for gram in grams:
            last = first + gram.shape[1]
            whole[:, first:last, first:last] = gram
            first = last
        return whole

    def materialize(self) -> Tensor:
        return torch.cat(
            [self._rows(part, index) for part, index in zip(self.parts, self._indices, strict=True)], dim=1
        )

    def _rows(self, part: TileMap, index: tuple[Index, Index]) -> Tensor:
        """The matrix of a part as rows of that of the whole: [batch or 1, m of the part, n]."""
        matrix = part.materialize()
        rows = matrix.new_zeros(*matrix.shape[:2], self.snapshots, self.subcarriers, self._entries)
        tile = part.sizes[:2]
        rows[:, :, index[0], index[1]] = matrix.reshape(*matrix.shape[:2], *tile, self._entries)
        return rows.flatten(2)

    @property
    def _entries(self) -> int:
        """N_t·N_r: the entries of h in one snapshot and on one subcarrier."""
        _, _, _, users, _, ports = self.parts[0].sizes
        return users * ports * self.antennas

    @cached_property
    def _indices(self) -> tuple[tuple[Index, Index], ...]:
        """The snapshots and subcarriers of each tile, as slices where they are evenly spaced."""
        return tuple(self._index(tile) for tile in self.tiles)

    def _index(self, tile: Tile) -> tuple[Index, Index]:
        snapshots, subcarriers = (_evenly(numbers) for numbers in (tile.snapshots, tile.subcarriers))
        if snapshots is not None:
            return snapshots, torch.tensor(tile.subcarriers, device=self.device) if subcarriers is None else subcarriers
        which = torch.tensor(tile.snapshots, device=self.device)
        if subcarriers is not None:
            return which, subcarriers
        return which[:, None], torch.tensor(tile.subcarriers, device=self.device)

    def _split(self, x: Tensor) -> list[tuple[TileMap, Tensor]]:
        """Each part, and h in the snapshots and on the subcarriers that it sees: [batch, G, K, N_t·N_r]."""
        grid = x.reshape(len(x), self.snapshots, self.subcarriers, self._entries)
        return [(part, grid[:, index[0], index[1]]) for part, index in zip(self.parts, self._indices, strict=True)]

    def _outputs(self, y: Tensor) -> list[tuple[TileMap, Tensor]]:
        """Each part and its own outputs among y."""
        return list(zip(self.parts, y.split([part.shape[0] for part in self.parts], dim=1), strict=True))

    def _placed(self, values: list[Tensor], batch: int) -> Tensor:
        """Numbers of each part's own entries of h among all, with zeros where nothing is measured: [batch, n]."""
        grid = values[0].new_zeros(batch, self.snapshots, self.subcarriers, self._entries)
        for part, index, mine in zip(self.parts, self._indices, values, strict=True):
            grid[:, index[0], index[1]] = mine.reshape(len(mine), *part.sizes[:2], self._entries)
        return grid.flatten(1)


def _evenly(numbers: tuple[int, ...]) -> slice | None:
    """The slice that has these numbers, if there is one."""
    step = numbers[1] - numbers[0] if len(numbers) > 1 else 1
    even = range(numbers[0], numbers[-1] + 1, step)
    return slice(even.start, even.stop, even.step) if tuple(even) == numbers else None


def _part(tile: Tile, pilots: Pilots, beams: Tensor | None, combiner: Tensor | None, antennas: int) -> TileMap:
    """The map of one tile, its combiners not yet whitened."""
    own = beams if beams is not None else combiner
    dtype = pilots.values.dtype if own is None else own.dtype
    symbols, users = torch.tensor(tile.symbols), pilots.users
    order = torch.tensor([[pilots.pilot_symbols.index(symbol) for symbol in row] for row in tile.symbols])
    chosen = pilots.values[:, symbols[:, :, None], torch.tensor(tile.subcarriers)]  # [users·streams, G, T, K]
    values: Tensor | None = chosen.permute(1, 3, 2, 0).unflatten(3, (users, -1))[None].to(dtype)
    sending = weights = factor = None
    if beams is not None:
        sending = beams[:, :, order].unflatten(4, (users, -1)).permute(0, 2, 4, 3, 5, 1).contiguous()
        if pilots.streams == 1 and bool((chosen == 1).all()):
            values = None
    if combiner is not None:
        weights = combiner[:, order]
        factor = cholesky(weights.mH @ weights)
        antennas = combiner.shape[2]
    if own is not None and values is not None:
        values = values.to(own.device).expand(len(own), *values.shape[1:])
    return TileMap(sending, values, weights, factor, antennas, len(tile.subcarriers), combiner is None)


def _check(pilots: Pilots, beams: Tensor | None, combiner: Tensor | None, antennas: int) -> None:
    symbols = len(pilots.pilot_symbols)
    if beams is not None and (
        beams.ndim != 4 or not beams.is_complex() or beams.shape[2:] != (symbols, pilots.streams)
    ):
        expected = f"complex [batch, N_u, {symbols}, {pilots.streams}], a beam per pilot symbol and stream"
        raise ValueError(f"transmit must be {expected}, got {beams.dtype} {[*beams.shape]}")
    if combiner is None:
        if antennas < 1:
            raise ValueError(f"antennas must be the number of receive antennas without a combiner, got {antennas!r}")
        return
    if combiner.ndim != 4 or not combiner.is_complex() or combiner.shape[1] != symbols:
        expected = f"complex [batch, {symbols}, N_r, N_RF], one per pilot symbol"
        raise ValueError(f"combiner must be {expected}, got {combiner.dtype} {[*combiner.shape]}")
    if beams is not None and (len(beams) != len(combiner) or beams.dtype != combiner.dtype):
        came = f"{combiner.dtype} of {len(combiner)}, {beams.dtype} of {len(beams)}"
        raise ValueError(f"combiner and transmit must have the same dtype and number of samples, got {came}")
    receive, chains = combiner.shape[2:]
    if chains > receive:
        raise ValueError(f"combiner must have no more chains than antennas, got {chains} of {receive}")
    if antennas not in (0, receive):
        raise ValueError(f"antennas must be {receive} to match combiner, got {antennas}")
