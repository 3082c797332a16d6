"""What a scenario file says of where pilots are on the resource grid of a sample."""

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Annotated, Literal

from pydantic import Field

from chanest.channels.section import Section
from chanest.pilots import DMRS, Comb, Kronecker, Pilots
from chanest.pilots.dmrs import SLOT

Symbols = Annotated[tuple[Annotated[int, Field(ge=0, lt=2**10)], ...], Field(strict=False, min_length=1)]
_MOST = 2**24
"""Streams × symbols × subcarriers of a grid: 128 MB."""


class PatternSection(Section, ABC):
    """Which resource elements carry pilots. A subclass has `kind: Literal["…"]`, the keys of its pattern, and a line below."""

    @abstractmethod
    def positions(self, beams: int) -> int:
        """How many times on the grid beams are set; streams that share a position have one each."""

    @abstractmethod
    def grid_symbols(self, beams: int) -> int:
        """Symbols of the grid."""

    @abstractmethod
    def pilots(self, beams: int, subcarriers: int) -> Pilots:
        """The pilots of a front end with so many beams; ValueError where the grid has no room for them."""


class CombSection(PatternSection):
    """Every beam in a symbol of its own, on every `spacing`-th subcarrier."""

    kind: Literal["comb"]
    """Which pattern this is."""
    spacing: int = Field(ge=1, le=2**16)
    """From one pilot subcarrier to the next."""
    offset: int = Field(default=0, ge=0, le=2**16)
    """The first pilot subcarrier."""
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    """Of QPSK values; none sends ones."""
    symbols: Symbols | None = None
    """One for each beam; the first ones of the slot unless said."""
    slot: int | None = Field(default=None, ge=1, le=2**10)
    """Symbols of the grid; as many as it takes unless said."""

    def positions(self, beams: int) -> int:
        return beams

    def grid_symbols(self, beams: int) -> int:
        if self.slot is not None:
            return self.slot
        return beams if self.symbols is None else max(self.symbols) + 1

    def pilots(self, beams: int, subcarriers: int) -> Pilots:
        slot = self.grid_symbols(beams)
        if beams > slot:
            raise ValueError(f"pilots must be at most the {slot} symbols of the slot, got {beams}")
        symbols = tuple(range(beams)) if self.symbols is None else self.symbols
        if len(symbols) != beams:
            raise ValueError(f"symbols must be one for each of the {beams} pilots of a comb, got {len(symbols)}")
        return Comb(self.spacing, self.offset, symbols, seed=self.seed).on(slot, subcarriers)


class KroneckerSection(PatternSection):
    """Whole symbols, in each of which as many beams take the subcarriers in turn."""

    kind: Literal["kronecker"]
    """Which pattern this is."""
    symbols: Symbols = (2, 11)
    """Symbols of the slot that carry pilots."""
    slot: int = Field(default=SLOT, ge=1, le=2**10)
    """Symbols of the grid."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Of the QPSK values."""

    def positions(self, beams: int) -> int:
        return len(self.symbols)

    def grid_symbols(self, beams: int) -> int:
        return self.slot

    def pilots(self, beams: int, subcarriers: int) -> Pilots:
        streams = _streams(beams, len(self.symbols))
        if streams > subcarriers:
            room = f"the {subcarriers * len(self.symbols)} resource elements of its pilot symbols"
            raise ValueError(f"pilots must be at most {room}, got {beams}")
        return Kronecker(self.symbols, streams, self.seed).on(self.slot, subcarriers)


class DMRSSection(PatternSection):
    """5G NR uplink DMRS of a slot: in each position as many beams as antenna ports, 0, 1, …, separated by codes."""

    kind: Literal["dmrs"]
    """Which pattern this is."""
    type: Literal[1, 2] = 1
    """Configuration type of TS 38.211."""
    length: Literal[1, 2] = 1
    """Symbols of a position: single or double."""
    additional: Literal[0, 1, 2, 3] = 0
    """Further positions in the slot."""
    groups: Literal[1, 2, 3] = 2
    """CDM groups that carry no data."""
    identity: int = Field(default=1, ge=0, lt=2**16)
    """Scrambling identity of the sequence."""

    def positions(self, beams: int) -> int:
        return len(self._of((0,)).positions(SLOT)) // self.length

    def grid_symbols(self, beams: int) -> int:
        return SLOT

    def pilots(self, beams: int, subcarriers: int) -> Pilots:
        streams = _streams(beams, self.positions(beams))
        return self._of(tuple(range(streams))).on(SLOT, subcarriers)

    def _of(self, ports: tuple[int, ...]) -> DMRS:
        return DMRS(ports, self.type, self.length, self.additional, groups=self.groups, identity=self.identity)


def _streams(beams: int, positions: int) -> int:
    """Beams of each position."""
    if beams % positions:
        raise ValueError(f"pilots must be a multiple of the {positions} positions of the pattern, got {beams}")
    return beams // positions


AnyPattern = CombSection | KroneckerSection | DMRSSection
"""The registry of patterns."""


@lru_cache(maxsize=8)
def layout(pattern: AnyPattern, beams: int, subcarriers: int) -> Pilots:
    """The pilots of so many beams; ValueError where the grid has no room for them, or memory none for the grid."""
    streams, symbols = -(-beams // pattern.positions(beams)), pattern.grid_symbols(beams)
    if streams * symbols * subcarriers > _MOST:
        size = f"{streams} streams on {symbols} symbols and {subcarriers} subcarriers"
        raise ValueError(f"pilots must have at most {_MOST} values of streams on a grid, got {size}")
    return pattern.pilots(beams, subcarriers)
