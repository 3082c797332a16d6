"""Sionna's Kronecker pattern: whole symbols, whose subcarriers the streams take in turn."""

from dataclasses import dataclass

import torch

from chanest.pilots.grid import PilotPattern, Pilots, check_inside, check_symbols
from chanest.pilots.sequences import qpsk
from vlista_core.problems import check_count


@dataclass(frozen=True)
class Kronecker(PilotPattern):
    """Stream p of P has subcarriers p, p + P, … of every pilot symbol: sionna.phy.ofdm.KroneckerPilotPattern.

    Each stream sends QPSK with mean energy one over the pilot symbols, its silent subcarriers included, so that
    a pilot has the energy P.
    """

    symbols: tuple[int, ...] = (2, 11)
    streams: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("streams", self.streams)
        check_symbols(self.symbols)

    def on(self, symbols: int, subcarriers: int) -> Pilots:
        check_inside(self.symbols, symbols)
        if subcarriers % self.streams:
            raise ValueError(f"streams must divide the {subcarriers} subcarriers of the grid, got {self.streams}")
        count = len(self.symbols)
        drawn = qpsk(count * subcarriers, self.seed).reshape(self.streams, count, -1)
        sent = torch.zeros(self.streams, count, subcarriers, dtype=torch.complex64)
        for stream in range(self.streams):
            sent[stream, :, stream :: self.streams] = drawn[stream]
        sent = sent * (1 / sent.flatten(1).abs().square().mean(1).sqrt())[:, None, None]
        values = torch.zeros(self.streams, symbols, subcarriers, dtype=torch.complex64)
        values[:, list(self.symbols)] = sent
        return Pilots(values, (values != 0).any(0))
