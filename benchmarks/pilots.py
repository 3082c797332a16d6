"""Front ends on a resource grid, ratios in one run: the flat map against its formula, a comb against what pilots it has.

python benchmarks/pilots.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from chanest.frontend import BeamformingMap, FrontEnd, GridMap
from chanest.pilots import DMRS, Block, Comb, Kronecker

BATCH, TRANSMIT, RECEIVE, PILOTS, SUBCARRIERS, CHAINS = 16, 64, 4, 24, 64, 2
ROUNDS = 200

Runs = dict[str, Callable[[], Tensor]]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.complex64, generator=torch.Generator().manual_seed(seed))


def fastest(runs: Runs, rounds: int = ROUNDS) -> dict[str, float]:
    """Milliseconds of the fastest call of each, called in turn, so that what else the machine does is the same for all."""
    best = dict.fromkeys(runs, float("inf"))
    for number in range(rounds + 3):
        for name, run in runs.items():
            begin = time.perf_counter()
            run()
            if number >= 3:
                best[name] = min(best[name], (time.perf_counter() - begin) * 1e3)
    return best


def both_ways(maps: dict[str, FrontEnd], extra: tuple[Runs, Runs]) -> tuple[Runs, Runs]:
    """apply and adjoint of every map, beside what else there is."""
    forward, backward = dict(extra[0]), dict(extra[1])
    for name, phi in maps.items():
        x, y = normal(BATCH, phi.shape[1], seed=1), normal(BATCH, phi.shape[0], seed=2)
        forward[name] = lambda phi=phi, x=x: phi.apply(x)  # type: ignore[misc]
        backward[name] = lambda phi=phi, y=y: phi.adjoint(y)  # type: ignore[misc]
    return forward, backward


def formula(phi: BeamformingMap) -> tuple[Runs, Runs]:
    """The products of the flat map as they were written before there were grids, with nothing around them."""
    beams, weights = phi.transmit, phi.weights
    h = normal(BATCH, SUBCARRIERS, TRANSMIT, RECEIVE, seed=1)
    chains = normal(BATCH, SUBCARRIERS, PILOTS, phi.chains, seed=2)

    def forward() -> Tensor:
        arriving = beams.mT[:, None] @ h
        if weights is not None:
            arriving = (arriving.transpose(1, 2) @ weights.conj()).transpose(1, 2)
        return arriving.flatten(1)

    def backward() -> Tensor:
        spread = chains if weights is None else (chains.transpose(1, 2) @ weights.mT).transpose(1, 2)
        return (beams.conj()[:, None] @ spread).flatten(1)

    return {"its formula": forward}, {"its formula": backward}


def compare_flat(combiner: Tensor | None) -> None:
    beams, symbols = normal(BATCH, TRANSMIT, PILOTS), tuple(range(PILOTS))
    flat = BeamformingMap.of(beams, combiner, antennas=RECEIVE, subcarriers=SUBCARRIERS)

    def on_grid(pattern: Block | Comb) -> GridMap:
        return GridMap.of(pattern.on(PILOTS, SUBCARRIERS), beams, combiner, antennas=RECEIVE)

    maps: dict[str, FrontEnd] = {"flat map": flat, "grid map of the flat pattern": on_grid(Block(symbols))}
    for spacing in (2, 4, 8, 16):
        maps[f"comb, 1/{spacing} of the pilots"] = on_grid(Comb(spacing, symbols=symbols, seed=0))
    forward, backward = map(fastest, both_ways(maps, formula(flat)))
    receiver = "digital" if combiner is None else f"{CHAINS} chains"
    print(
        f"{receiver}, {PILOTS} beams on {SUBCARRIERS} subcarriers; apply and adjoint, and their ratio to the flat map:"
    )
    for name in forward:
        ratios = [found[name] / found["flat map"] for found in (forward, backward)]
        print(f"  {name:30s} {forward[name]:6.2f}, {backward[name]:6.2f} ms; {ratios[0]:5.2f}, {ratios[1]:5.2f}")


def compare_growth() -> None:
    """A slot of four users to 16 antennas, whose streams are antennas, against the size of the grid.

    The adjoint writes all of h, most of it zeros: its ratio is to that alone.
    """
    print("slot of 14 symbols, four users, 16 antennas: ns of apply per measured number; adjoint over writing zeros:")
    for blocks in (4, 16, 52):
        patterns = {
            "Kronecker": Kronecker((2, 11), 4),
            "DMRS": DMRS((0, 1, 2, 3), additional=1),
            "comb of 8": Comb(8, symbols=(2, 11), streams=4),
        }
        maps: dict[str, FrontEnd] = {
            name: GridMap.of(pattern.on(14, 12 * blocks).with_users(4), antennas=16, snapshots=14)
            for name, pattern in patterns.items()
        }
        size = maps["DMRS"].shape[1]
        zeros: Runs = {"zeros": lambda size=size: torch.full((BATCH, size), 0j)}  # type: ignore[misc]
        forward, backward = (fastest(runs, 40) for runs in both_ways(maps, ({}, zeros)))
        for name, phi in maps.items():
            each, ratio = forward[name] / BATCH / phi.shape[0] * 1e6, backward[name] / backward["zeros"]
            measured = f"{phi.shape[0]:6d} of {phi.shape[1]:7d}"
            print(f"  {12 * blocks:4d} subcarriers, {name:10s} {measured} {each:6.1f} ns, {ratio:5.2f}")


def main() -> None:
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, batch {BATCH}")
    compare_flat(None)
    compare_flat(normal(BATCH, PILOTS, RECEIVE, CHAINS, seed=1))
    compare_growth()


if __name__ == "__main__":
    main()
