"""Comb pilots: every k-th subcarrier of some symbols."""

from dataclasses import dataclass

import torch

from chanest.pilots.grid import PilotPattern, Pilots, check_inside, check_symbols
from chanest.pilots.sequences import qpsk
from vlista_core.problems import check_count


@dataclass(frozen=True)
class Comb(PilotPattern):
    """Stream p has subcarriers offset + p, offset + p + spacing, … of every pilot symbol; the others are for data."""

    spacing: int
    offset: int = 0
    symbols: tuple[int, ...] = (0,)
    streams: int = 1
    seed: int | None = None
    """Of QPSK values; None sends ones."""

    def __post_init__(self) -> None:
        check_count("spacing", self.spacing)
        check_count("streams", self.streams)
        check_count("offset", self.offset, least=0)
        check_symbols(self.symbols)
        if self.offset + self.streams > self.spacing:
            came = f"offset {self.offset} with {self.streams} streams"
            raise ValueError(f"offset + streams must be at most the spacing of {self.spacing} subcarriers, got {came}")

    def on(self, symbols: int, subcarriers: int) -> Pilots:
        check_inside(self.symbols, symbols)
        if self.offset + self.streams > subcarriers:
            came = f"offset {self.offset} with {self.streams} streams"
            raise ValueError(f"pilots must lie within the {subcarriers} subcarriers of the grid, got {came}")
        values = torch.zeros(self.streams, symbols, subcarriers, dtype=torch.complex64)
        mine = torch.zeros(values.shape, dtype=torch.bool)
        for stream in range(self.streams):
            mine[stream, list(self.symbols), self.offset + stream :: self.spacing] = True
        values[mine] = 1.0 if self.seed is None else qpsk(int(mine.sum()), self.seed)
        return Pilots(values, mine.any(0))
