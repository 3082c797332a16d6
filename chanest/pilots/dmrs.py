"""Demodulation reference signals of the 5G NR uplink (TS 38.211, 6.4.1.1), without hopping and transform precoding."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from chanest.pilots.grid import PilotPattern, Pilots
from chanest.pilots.sequences import gold_sequence
from vlista_core.problems import check_count

Mapping = Literal["A", "B"]
SLOT, RESOURCE_BLOCK = 14, 12
"""Symbols of a slot, and subcarriers of a resource block."""
_SINGLE, _DOUBLE = ((),) * 4, ((),) * 2
_ADDITIONAL: dict[tuple[Mapping, int], dict[int, tuple[tuple[int, ...], ...]]] = {
    ("A", 1): {
        4: _SINGLE,
        8: ((), (7,), (7,), (7,)),
        10: ((), (9,), (6, 9), (6, 9)),
        12: ((), (9,), (6, 9), (5, 8, 11)),
        13: ((), (11,), (7, 11), (5, 8, 11)),
    },
    ("B", 1): {
        1: _SINGLE,
        5: ((), (4,), (4,), (4,)),
        8: ((), (6,), (3, 6), (3, 6)),
        10: ((), (8,), (4, 8), (3, 6, 9)),
        12: ((), (10,), (5, 10), (3, 6, 9)),
    },
    ("A", 2): {4: _DOUBLE, 10: ((), (8,)), 13: ((), (10,))},
    ("B", 2): {5: _DOUBLE, 8: ((), (5,)), 10: ((), (7,)), 12: ((), (9,))},
}
"""Of mapping and length: from how many symbols on, which symbols follow the first for each `additional`.

As in Tables 6.4.1.1.3-3 and 6.4.1.1.3-4."""


@dataclass(frozen=True)
class DMRS(PilotPattern):
    """One stream for each antenna port; ports of a code division multiplexing (CDM) group share resource elements.

    Type 1 has two groups on every second subcarrier, type 2 three groups on pairs of subcarriers; codes over two subcarriers,
    and over two symbols where `length` is 2, separate the ports of a group.
    """

    ports: tuple[int, ...] = (0,)
    type: int = 1
    length: int = 1
    """Symbols in a row: 1 or 2."""
    additional: int = 0
    """How many further positions are wanted; a short grid has fewer."""
    mapping: Mapping = "A"
    first: int = 2
    """The first symbol with mapping A, 2 or 3; with B it is symbol 0."""
    groups: int = 2
    """CDM groups that are free of data; a pilot has as much energy."""
    identity: int = 1
    """Scrambling identity, that of the cell unless set."""
    initialisation: int = 0
    """n_SCID, 0 or 1."""
    slot: int = 0
    """Number of the slot in its frame."""

    def __post_init__(self) -> None:
        for name, allowed in (
            ("type", (1, 2)), ("length", (1, 2)), ("additional", range(4 if self.length == 1 else 2)),
            ("mapping", get_args(Mapping)), ("first", (2, 3)), ("groups", range(1, self.type + 2)), ("initialisation", (0, 1)),
        ):  # fmt: skip
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(map(str, allowed))}, got {getattr(self, name)!r}")
        check_count("identity", self.identity, least=0)
        check_count("slot", self.slot, least=0)
        if self.additional == 3 and self.mapping == "A" and self.first != 2:
            raise ValueError("first must be 2 with three additional positions and mapping A, got 3")
        known = [port for port in range(self._family * self.length) if self._group(port) < self.groups]
        if not self.ports or set(self.ports) - set(known) or len(set(self.ports)) < len(self.ports):
            which = f"type {self.type}, length {self.length} and {self.groups} groups without data"
            raise ValueError(f"ports must be different ones of {known} with {which}, got {[*self.ports]}")

    @property
    def _family(self) -> int:
        """Ports that one symbol separates."""
        return 2 + 2 * self.type

    def _group(self, port: int) -> int:
        """The CDM group of a port."""
        return port % self._family // 2

    def positions(self, symbols: int) -> tuple[int, ...]:
        """The symbols with pilots, of an allocation of `symbols` from the beginning of the slot."""
        table = _ADDITIONAL[self.mapping, self.length]
        if not min(table) <= symbols <= SLOT:
            raise ValueError(f"symbols must be {min(table)} to {SLOT} for this DMRS, got {symbols}")
        further = table[max(least for least in table if least <= symbols)][self.additional]
        starts = (self.first if self.mapping == "A" else 0, *further)
        found = tuple(start + second for start in starts for second in range(self.length))
        if found[-1] >= symbols:
            raise ValueError(f"pilots must lie within the {symbols} symbols of the grid, got symbols {[*found]}")
        return found

    def on(self, symbols: int, subcarriers: int) -> Pilots:
        if subcarriers < 1 or subcarriers % RESOURCE_BLOCK:
            raise ValueError(f"subcarriers must be whole resource blocks of {RESOURCE_BLOCK}, got {subcarriers}")
        values = torch.zeros(len(self.ports), symbols, subcarriers, dtype=torch.complex128)
        reserved = torch.zeros(symbols, subcarriers, dtype=torch.bool)
        for index, symbol in enumerate(self.positions(symbols)):
            sequence = self._sequence(symbol, subcarriers)
            for group in range(self.groups):
                reserved[symbol, self._subcarriers(group, subcarriers)] = True
            for stream, port in enumerate(self.ports):
                where = self._subcarriers(self._group(port), subcarriers)
                second = torch.arange(len(where)) % 2
                turned = second * (port % 2) + index % self.length * (port // self._family)
                code = 1 - 2 * (turned % 2)
                values[stream, symbol, where] = math.sqrt(self.groups) * (sequence[: len(where)] * code)
        return Pilots(values.to(torch.complex64), reserved)

    def _subcarriers(self, group: int, subcarriers: int) -> torch.Tensor:
        """Those of a CDM group: 4n + 2k' + Δ of type 1, 6n + k' + Δ of type 2."""
        every = torch.arange(subcarriers)
        chosen = every % 2 == group if self.type == 1 else every % 6 // 2 == group
        return every[chosen]

    def _sequence(self, symbol: int, subcarriers: int) -> torch.Tensor:
        """r of a symbol: [subcarriers], complex128."""
        start = (SLOT * self.slot + symbol + 1) * (2 * self.identity + 1) * 2**17
        bits = gold_sequence(2 * subcarriers, (start + 2 * self.identity + self.initialisation) % 2**31)
        signs = (1 - 2 * bits).double().reshape(-1, 2)
        return 1 / math.sqrt(2) * torch.complex(signs[:, 0], signs[:, 1])
