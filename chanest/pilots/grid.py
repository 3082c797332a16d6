"""What is sent on a resource grid: `Pilots`, and the tiles of resource elements that a front end measures at a time.

A grid has `symbols` × `subcarriers` resource elements. A stream is one sequence of pilots; several streams can share resource
elements when a code separates them. A `PilotPattern` lays pilots onto any grid that has room for them.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from vlista_core.problems import check_count

_SEPARATED = 1e-4
"""The largest correlation of two streams that a code separates; what rounding leaves is a thousandth of it."""


@dataclass(frozen=True)
class Tile:
    """A product set of measured resource elements: in each snapshot the same subcarriers, in as many symbols."""

    snapshots: tuple[int, ...]
    subcarriers: tuple[int, ...]
    symbols: tuple[tuple[int, ...], ...]
    """Of each snapshot, the symbols of the grid that carry its pilots."""

    @property
    def elements(self) -> int:
        """How many resource elements."""
        return len(self.subcarriers) * sum(map(len, self.symbols))


@dataclass(frozen=True, eq=False)
class Pilots:
    """What every stream sends on every resource element, and where nobody sends data."""

    values: Tensor
    """[streams, symbols, subcarriers], complex; 0 where a stream is silent. Streams run user by user."""
    reserved: Tensor
    """Resource elements without data: [symbols, subcarriers], bool."""
    users: int = 1
    """Among whom the streams are divided equally."""

    def __post_init__(self) -> None:
        values, reserved = self.values, self.reserved
        if values.ndim != 3 or not values.is_complex():
            expected = "complex [streams, symbols, subcarriers]"
            raise ValueError(f"values must be {expected}, got {values.dtype} {[*values.shape]}")
        if reserved.shape != values.shape[1:] or reserved.dtype != torch.bool:
            expected = f"bool {[*values.shape[1:]]} to match values"
            raise ValueError(f"reserved must be {expected}, got {reserved.dtype} {[*reserved.shape]}")
        check_count("users", self.users)
        if values.shape[0] % self.users:
            raise ValueError(f"users must share the {values.shape[0]} streams equally, got {self.users} users")
        silent = (values == 0).all(2).all(1)
        if bool(silent.any()):
            raise ValueError(f"values must have a pilot of every stream, got none of stream {int(silent.nonzero()[0])}")
        if bool((self.sent & ~reserved).any()):
            symbol, subcarrier = (self.sent & ~reserved).nonzero()[0].tolist()
            where = f"symbol {symbol} and subcarrier {subcarrier}"
            raise ValueError(f"reserved must hold every pilot, got one at {where} that it does not hold")
        self._check_separated()

    def _check_separated(self) -> None:
        """Streams on the same resource elements must be orthogonal over them."""
        flat = self.values.flatten(1)
        power = flat.abs().square()
        shared = power @ (flat != 0).to(power).mT  # energy of stream i on the resource elements of stream j
        overlap = (flat @ flat.mH).abs() > _SEPARATED * (shared * shared.mT).sqrt()
        found = overlap.triu(1).nonzero()
        if len(found):
            first, second = found[0].tolist()
            owners = first * self.users // len(flat), second * self.users // len(flat)
            who = f"streams {first} and {second}" + (f", of users {owners[0]} and {owners[1]}," * (self.users > 1))
            raise ValueError(f"{who} send on the same resource elements without a code that separates them")

    @classmethod
    def of_users(cls, pilots: "Sequence[Pilots]") -> "Pilots":
        """The pilots of several users of one grid, with as many streams each; what one reserves is free of all data."""
        grids = {(one.values.shape, one.users) for one in pilots}
        if len(grids) != 1 or next(iter(grids))[1] != 1:
            came = ", ".join(f"{[*one.values.shape]}" for one in pilots)
            raise ValueError(f"pilots must be of single users with as many streams on the same grid, got {came}")
        reserved = torch.stack([one.reserved for one in pilots]).any(0)
        return cls(torch.cat([one.values for one in pilots]), reserved, len(pilots))

    @property
    def streams(self) -> int:
        return self.values.shape[0]

    @property
    def symbols(self) -> int:
        """Of the grid."""
        return self.values.shape[1]

    @property
    def subcarriers(self) -> int:
        """Of the grid."""
        return self.values.shape[2]

    @cached_property
    def sent(self) -> Tensor:
        """Where some stream sends, which is what a receiver measures: [symbols, subcarriers], bool."""
        return (self.values != 0).any(0)

    @cached_property
    def pilot_symbols(self) -> tuple[int, ...]:
        """The symbols that carry pilots, each with a beam of its own."""
        return tuple(self.sent.any(1).nonzero()[:, 0].tolist())

    @property
    def elements(self) -> int:
        """How many resource elements are measured."""
        return int(self.sent.sum())

    def with_users(self, users: int) -> Self:
        """The same pilots with the streams divided among users."""
        return replace(self, users=users)

    def tiles(self, snapshots: int = 1) -> tuple[Tile, ...]:
        """The measured resource elements as few tiles, no two of which see the same subcarrier in the same snapshot.

        The grid's symbols are divided equally among `snapshots`. Every pattern whose pilot symbols all have the same
        subcarriers is one tile, if each snapshot that is measured has as many of them.
        """
        check_count("snapshots", snapshots)
        if self.symbols % snapshots:
            raise ValueError(f"snapshots must divide the {self.symbols} symbols of the grid, got {snapshots}")
        length = self.symbols // snapshots
        tiles: dict[tuple[tuple[int, ...], int], list[tuple[int, tuple[int, ...]]]] = {}
        for snapshot in range(snapshots):
            seen = self.sent[snapshot * length : (snapshot + 1) * length]
            by_symbols: dict[tuple[bool, ...], list[int]] = {}
            for subcarrier, column in enumerate(seen.mT.tolist()):
                if any(column):
                    by_symbols.setdefault(tuple(column), []).append(subcarrier)
            for column, subcarriers in by_symbols.items():
                symbols = tuple(snapshot * length + symbol for symbol, here in enumerate(column) if here)
                tiles.setdefault((tuple(subcarriers), len(symbols)), []).append((snapshot, symbols))
        return tuple(
            Tile(tuple(snapshot for snapshot, _ in places), subcarriers, tuple(symbols for _, symbols in places))
            for (subcarriers, _), places in tiles.items()
        )


class PilotPattern(ABC):
    """A rule for pilots on any grid. A subclass is a frozen dataclass, checked when made, and one file."""

    @abstractmethod
    def on(self, symbols: int, subcarriers: int) -> Pilots:
        """The pilots on a grid of this size; ValueError where some would lie outside."""


def check_symbols(symbols: tuple[int, ...]) -> None:
    """ValueError unless they are distinct symbols in their order."""
    if not symbols or any(symbol < 0 for symbol in symbols) or list(symbols) != sorted(set(symbols)):
        raise ValueError(f"symbols must be distinct, from 0 and in their order, got {[*symbols]}")


def check_inside(symbols: tuple[int, ...], grid: int) -> None:
    """ValueError where a pilot symbol lies outside the grid."""
    if symbols[-1] >= grid:
        raise ValueError(f"symbols must lie within the {grid} of the grid, 0 to {grid - 1}, got {[*symbols]}")
