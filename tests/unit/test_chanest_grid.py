"""Pilots on a resource grid as a map: what each resource element measures, in which order, with which noise; the flat case."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from chanest.frontend import BeamformingMap, GridMap, whitened_measurement
from chanest.pilots import DMRS, Block, Comb, Kronecker, Pilots
from vlista_core.estimate import Measurement


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.complex128, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("whiten", [True, False])
@pytest.mark.parametrize("hybrid", [True, False])
def test_a_block_of_ones_is_the_flat_front_end(hybrid: bool, whiten: bool) -> None:
    """Everything that both have, to the rounding of double precision: the same order of h and of y."""
    beams, combiner = _normal(3, 4, 5), _normal(3, 5, 3, 2, seed=1) if hybrid else None
    flat = BeamformingMap.of(beams, combiner, antennas=3, whiten=whiten, subcarriers=6)
    grid = GridMap.of(Block(tuple(range(5))).on(5, 6), beams, combiner, antennas=3, whiten=whiten)
    x, y = _normal(3, flat.shape[1], seed=2), _normal(3, flat.shape[0], seed=3)
    noise, block = _normal(3, flat.arriving, seed=4), _normal(3, flat.shape[1], 2, seed=5)
    assert (grid.shape, grid.batch, grid.pilots, grid.chains, grid.antennas, grid.subcarriers, grid.arriving) == (
        flat.shape, flat.batch, flat.pilots, flat.chains, flat.antennas, flat.subcarriers, flat.arriving,
    )  # fmt: skip
    for ours, theirs in (
        (grid.apply(x), flat.apply(x)),
        (grid.adjoint(y), flat.adjoint(y)),
        (grid.apply_block(block), flat.apply_block(block)),
        (grid.combine(noise), flat.combine(noise)),
        (grid.whitened_output(y), flat.whitened_output(y)),
        (grid.whitened().apply(x), flat.whitened().apply(x)),
        (grid.first_pilots(2).apply(x), flat.first_pilots(2).apply(x)),
        (grid.gram(), flat.gram()),
        (grid.column_norms(), flat.column_norms()),
        (grid.materialize(), flat.materialize()),
    ):
        torch.testing.assert_close(ours, theirs)


SETUPS: dict[str, tuple[Pilots, int]] = {
    "comb": (Comb(3, 1, symbols=(0, 2), seed=1).on(4, 7), 1),
    "comb, moving": (Comb(3, 1, symbols=(0, 2), seed=1).on(4, 7), 4),
    "block, two users": (Block((0, 1, 3), 2, seed=1).on(4, 5).with_users(2), 2),
    "kronecker, two users of two streams": (Kronecker((0, 2), 4).on(4, 8).with_users(2), 1),
    "dmrs, two users of two ports": (DMRS((0, 1, 2, 3)).on(6, 12).with_users(2), 3),
    "double dmrs, four users": (DMRS((0, 1, 4, 5), length=2, first=3).on(5, 12).with_users(4), 1),
    "irregular": (
        Pilots(_normal(1, 4, 6).to(torch.complex64) * torch.eye(6)[:4].add(torch.eye(6)[2:]), torch.ones(4, 6) > 0), 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("hybrid", [True, False])
@pytest.mark.parametrize("setup", SETUPS.values(), ids=SETUPS.keys())
def test_every_resource_element_measures_the_sum_over_its_users(setup: tuple[Pilots, int], hybrid: bool) -> None:
    """y = Wᴴ Σ_u H_u F_u x_u, element by element as written, with h[snapshot, subcarrier, transmit, receive]."""
    pilots, snapshots = setup
    symbols, users, own, receive = len(pilots.pilot_symbols), pilots.users, 3, 2
    beams = _normal(2, own, symbols, pilots.streams)
    combiner = _normal(2, symbols, receive, 1, seed=1) if hybrid else None
    phi = GridMap.of(pilots, beams, combiner, antennas=receive, whiten=False, snapshots=snapshots)
    h = _normal(2, snapshots, pilots.subcarriers, users * own, receive, seed=2)
    y = phi.apply(h.flatten(1)).reshape(2, len(phi.elements), phi.chains)
    assert len(phi.elements) == pilots.elements
    for place, (symbol, subcarrier) in enumerate(phi.elements.tolist()):
        snapshot, slot = symbol * snapshots // pilots.symbols, pilots.pilot_symbols.index(symbol)
        arriving = torch.zeros(2, receive, dtype=torch.complex128)
        for user in range(users):
            mine = slice(user * pilots.streams // users, (user + 1) * pilots.streams // users)
            sent = beams[:, :, slot, mine] @ pilots.values[mine, symbol, subcarrier].to(beams.dtype)
            matrix = h[:, snapshot, subcarrier, user * own : (user + 1) * own].mT
            arriving += (matrix @ sent[:, :, None])[:, :, 0]
        expected = arriving if combiner is None else (combiner[:, slot].mH @ arriving[:, :, None])[:, :, 0]
        torch.testing.assert_close(y[:, place], expected)


def test_y_runs_symbol_by_symbol_where_each_is_a_snapshot_and_subcarrier_by_subcarrier_where_all_are_one() -> None:
    pilots = Comb(2, symbols=(0, 2)).on(3, 4)
    moving, still = (GridMap.of(pilots, antennas=1, snapshots=snapshots) for snapshots in (3, 1))
    assert moving.elements.tolist() == [[0, 0], [0, 2], [2, 0], [2, 2]]
    assert still.elements.tolist() == [[0, 0], [2, 0], [0, 2], [2, 2]]


def test_what_a_grid_received_becomes_y() -> None:
    """The whole grid as it arrives at the antennas, pilots and all, for streams that are the antennas of four users."""
    pilots = Kronecker((2, 11), 4).on(14, 12).with_users(4)
    phi = GridMap.of(pilots, antennas=3, snapshots=14).cast(torch.complex128)
    h = _normal(5, 14, 12, 4, 3)
    received = torch.einsum("blknr,nlk->blkr", h, pilots.values.to(h.dtype))
    torch.testing.assert_close(phi.apply(h.flatten(1)), phi.collect(received))
    assert phi.batch is None


def test_codes_tell_users_apart_that_share_every_resource_element() -> None:
    """The matched filter of two antennas that send on the same resource elements gives each channel, once it is flat."""
    pilots = DMRS((0, 1)).on(14, 12).with_users(2)
    phi = GridMap.of(pilots, antennas=3).cast(torch.complex128)
    h = _normal(4, 2, 3)
    flat = h[:, None].expand(-1, 12, -1, -1)
    matched = phi.adjoint(phi.apply(flat.flatten(1))).reshape(4, 12, 2, 3)
    energy = pilots.values.abs().square().sum((1, 2)).to(torch.float64)
    torch.testing.assert_close(matched.sum(1) / energy[:, None], h)


def test_noise_behind_combiners_is_white_after_whitening() -> None:
    """Sample covariance over 4000 draws, each entry within 6 standard errors (1/√4000); before, it is WᴴW of each symbol."""
    draws, combiner = 4000, torch.nn.functional.normalize(_normal(1, 2, 4, 2), dim=2)
    coloured = GridMap.of(
        Comb(2, symbols=(0, 2)).on(4, 4), _normal(1, 3, 2, seed=1), combiner, whiten=False, snapshots=2
    )
    noise = _normal(draws, coloured.arriving, seed=2)
    whitened = coloured.whitened()
    assert whitened.whitened() is whitened
    raw = torch.block_diag(*[combiner[0, symbol].mH @ combiner[0, symbol] for symbol in (0, 0, 1, 1)])
    for phi, expected in ((coloured, raw), (whitened, torch.eye(8, dtype=raw.dtype))):
        out = torch.cat([phi.combine(one[None]) for one in noise])
        assert float((out.mT @ out.conj() / draws - expected).abs().max()) < 6 / math.sqrt(draws)
    assert float((raw - torch.eye(8)).abs().max()) > 0.1


def test_whitening_a_measurement_keeps_its_information_and_its_model() -> None:
    phi = GridMap.of(SETUPS["irregular"][0], _normal(2, 3, 4), _normal(2, 4, 3, 2, seed=1), whiten=False, snapshots=2)
    h = _normal(2, phi.shape[1], seed=3)
    white = whitened_measurement(Measurement(phi.apply(h), phi, torch.ones(2, dtype=torch.float64)))
    torch.testing.assert_close(white.y, white.phi.apply(h))
    torch.testing.assert_close(white.phi.materialize(), phi.whitened().materialize())
    assert whitened_measurement(white) is white


def _refused() -> dict[str, tuple[Callable[[], object], str]]:
    pilots, beams = Comb(4, symbols=(0, 1)).on(2, 8), _normal(3, 4, 2)
    return {
        "beams": (lambda: GridMap.of(pilots, beams[:, :, :1], antennas=1), r"transmit must be complex \[batch, N_u, 2, 1\]"),
        "real": (lambda: GridMap.of(pilots, beams.real, antennas=1), "transmit must be complex .* got torch.float64"),
        "antennas": (lambda: GridMap.of(pilots, beams), "antennas must be the number of receive antennas"),
        "combiner": (lambda: GridMap.of(pilots, beams, _normal(3, 1, 2, 2)), r"combiner must be complex \[batch, 2, N_r"),
        "samples": (lambda: GridMap.of(pilots, beams, _normal(2, 2, 2, 2)), "the same dtype and number of samples"),
        "chains": (lambda: GridMap.of(pilots, beams, _normal(3, 2, 2, 4)), "no more chains than antennas, got 4 of 2"),
        "both": (lambda: GridMap.of(pilots, beams, _normal(3, 2, 2, 1), antennas=3), "antennas must be 2 to match combiner"),
        "snapshots": (lambda: GridMap.of(pilots, beams, antennas=1, snapshots=3), "snapshots must divide the 2 symbols"),
        "first pilots": (
            lambda: GridMap.of(pilots, beams, antennas=1, snapshots=2).first_pilots(1),
            "first pilots of several snapshots or tiles",
        ),
    }  # fmt: skip


@pytest.mark.parametrize(("make", "message"), _refused().values(), ids=_refused().keys())
def test_what_does_not_fit_is_refused_in_a_sentence(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
