"""Block pilots: all subcarriers of some symbols."""

import math
from dataclasses import dataclass

import torch

from chanest.pilots.grid import PilotPattern, Pilots, check_inside, check_symbols
from chanest.pilots.sequences import qpsk
from vlista_core.problems import check_count


@dataclass(frozen=True)
class Block(PilotPattern):
    """Stream p sends exp(-j2πpt/T) in the t-th of T pilot symbols, on all subcarriers: as many streams as symbols."""

    symbols: tuple[int, ...] = (0,)
    streams: int = 1
    seed: int | None = None
    """Of QPSK values that all streams send times their code; None sends ones."""

    def __post_init__(self) -> None:
        check_count("streams", self.streams)
        check_symbols(self.symbols)
        if self.streams > len(self.symbols):
            raise ValueError(f"streams must be at most the {len(self.symbols)} pilot symbols, got {self.streams}")

    def on(self, symbols: int, subcarriers: int) -> Pilots:
        check_inside(self.symbols, symbols)
        count = len(self.symbols)
        turns = torch.outer(torch.arange(self.streams), torch.arange(count)) % count
        phase = -2 * math.pi / count * turns.double()
        code = torch.polar(torch.ones_like(phase), phase).to(torch.complex64)
        symbol_values = torch.ones(count, subcarriers, dtype=torch.complex64)
        if self.seed is not None:
            symbol_values = qpsk(count * subcarriers, self.seed).reshape(count, subcarriers)
        values = torch.zeros(self.streams, symbols, subcarriers, dtype=torch.complex64)
        values[:, list(self.symbols)] = code[:, :, None] * symbol_values
        return Pilots(values, (values != 0).any(0))
