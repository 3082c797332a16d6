"""Front ends on a resource grid, ratios in one run: the flat map against its formula, a comb against what pilots it has.

python benchmarks/pilots.py
"""

from __future__ import annotations

import torch
from timing import best_time
from torch import Tensor

from chanest.frontend import BeamformingMap, FrontEnd, GridMap
from chanest.pilots import DMRS, Block, Comb, Kronecker

BATCH, TRANSMIT, RECEIVE, PILOTS, SUBCARRIERS, CHAINS = 16, 64, 4, 24, 64, 2


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.complex64, generator=torch.Generator().manual_seed(seed))


def times(phi: FrontEnd | GridMap) -> tuple[float, float]:
    """Seconds of apply and adjoint."""
    x, y = normal(BATCH, phi.shape[1], seed=1), normal(BATCH, phi.shape[0], seed=2)
    return best_time(lambda: phi.apply(x)), best_time(lambda: phi.adjoint(y))


def told(name: str, found: tuple[float, float], usual: tuple[float, float]) -> str:
    ratios = ", ".join(f"{one / other:5.2f}" for one, other in zip(found, usual, strict=True))
    milliseconds = ", ".join(f"{seconds * 1e3:6.2f}" for seconds in found)
    return f"  {name:32s} {milliseconds} ms, ratio {ratios}"


def formula(phi: BeamformingMap) -> tuple[float, float]:
    """The two products of the flat map written out, with nothing around them."""
    beams, weights = phi.transmit, phi.weights
    h = normal(BATCH, SUBCARRIERS, TRANSMIT, RECEIVE, seed=1)
    chains = normal(BATCH, SUBCARRIERS, PILOTS, phi.chains, seed=2)

    def forward() -> Tensor:
        arriving = beams.mT[:, None] @ h
        return arriving if weights is None else (arriving.transpose(1, 2) @ weights.conj()).transpose(1, 2).contiguous()

    def backward() -> Tensor:
        spread = chains if weights is None else (chains.transpose(1, 2) @ weights.mT).transpose(1, 2)
        return beams.conj()[:, None] @ spread

    return best_time(forward), best_time(backward)


def compare_flat(beams: Tensor, combiner: Tensor | None) -> None:
    flat = BeamformingMap.of(beams, combiner, antennas=RECEIVE, subcarriers=SUBCARRIERS)
    block = Block(tuple(range(PILOTS))).on(PILOTS, SUBCARRIERS)
    usual = times(flat)
    receiver = "digital" if combiner is None else f"{CHAINS} chains"
    print(f"{receiver}, {PILOTS} beams on {SUBCARRIERS} subcarriers, apply and adjoint, ratio to the flat map:")
    print(told("flat map", usual, usual))
    print(told("its formula", formula(flat), usual))
    print(told("grid map of the flat pattern", times(GridMap.of(block, beams, combiner, antennas=RECEIVE)), usual))
    for spacing in (2, 4, 8, 16):
        pilots = Comb(spacing, symbols=tuple(range(PILOTS)), seed=0).on(PILOTS, SUBCARRIERS)
        comb = times(GridMap.of(pilots, beams, combiner, antennas=RECEIVE))
        print(told(f"comb, {1 / spacing:.0%} of the pilots", comb, usual))


def compare_growth() -> None:
    """A slot of four users to 16 antennas, whose streams are antennas, against the size of the grid."""
    print(
        "slot of 14 symbols, four users, 16 receive antennas; microseconds of apply and adjoint per measured element:"
    )
    for blocks in (1, 4, 16, 52):
        for name, pattern in (
            ("Kronecker", Kronecker((2, 11), 4)),
            ("DMRS", DMRS((0, 1, 2, 3), additional=1)),
            ("comb of 8", Comb(8, symbols=(2, 11), streams=4)),
        ):
            phi = GridMap.of(pattern.on(14, 12 * blocks).with_users(4), antennas=16, snapshots=14)
            found = [seconds / BATCH / len(phi.elements) * 1e6 for seconds in times(phi)]
            print(f"  {12 * blocks:4d} subcarriers, {name:10s} {found[0]:.3f}, {found[1]:.3f}")


def main() -> None:
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, batch {BATCH}")
    beams = normal(BATCH, TRANSMIT, PILOTS)
    compare_flat(beams, None)
    compare_flat(beams, normal(BATCH, PILOTS, RECEIVE, CHAINS, seed=1))
    compare_growth()


if __name__ == "__main__":
    main()
