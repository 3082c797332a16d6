"""Pilot patterns: where they are and what they send, against Sionna's own; codes that separate; refusals."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch

from chanest.channels.sionna_backend import global_state_kept
from chanest.frontend import GridMap
from chanest.pilots import DMRS, Block, Comb, Kronecker, PilotPattern, Pilots
from chanest.pilots.dmrs import Mapping
from chanest.pilots.sequences import gold_sequence, qpsk
from chanest.sionna import pilots_of

with global_state_kept():
    import sionna.phy
    from sionna.phy.nr import PUSCHConfig, PUSCHPilotPattern
    from sionna.phy.nr.utils import generate_prng_seq
    from sionna.phy.ofdm import LSChannelEstimator, ResourceGrid

_SINGLE: tuple[tuple[int, Mapping, int], ...] = ((0, "A", 1), (1, "B", 500), (2, "A", 65535), (3, "B", 0))
_DOUBLE: tuple[tuple[int, Mapping], ...] = ((0, "A"), (1, "A"), (1, "B"))
SINGLE = [
    DMRS(ports, type=kind, additional=additional, mapping=mapping, groups=groups, identity=identity)
    for kind, ports, groups in ((1, (0,), 1), (1, (0, 1, 2, 3), 2), (2, (1, 5), 3), (2, (2,), 2))
    for additional, mapping, identity in _SINGLE
]
DOUBLE = [
    DMRS(ports, type=kind, length=2, additional=additional, mapping=mapping, groups=groups, initialisation=1, slot=3)
    for kind, ports, groups in ((1, (0, 1, 4, 5), 2), (1, (2, 6), 2), (2, (0, 6, 11, 5), 3), (2, (7,), 1))
    for additional, mapping in _DOUBLE
]


def _pusch(dmrs: DMRS, symbols: int) -> PUSCHPilotPattern:
    config = PUSCHConfig(num_layers=len(dmrs.ports), num_antenna_ports=len(dmrs.ports), mapping_type=dmrs.mapping)
    config.symbol_allocation = [0, symbols]
    config.carrier.n_size_grid, config.carrier.slot_number, config.carrier.n_cell_id = 3, dmrs.slot, 1
    config.dmrs.config_type, config.dmrs.length, config.dmrs.additional_position = (
        dmrs.type,
        dmrs.length,
        dmrs.additional,
    )
    config.dmrs.type_a_position, config.dmrs.num_cdm_groups_without_data = dmrs.first, dmrs.groups
    config.dmrs.n_id, config.dmrs.n_scid, config.dmrs.dmrs_port_set = (
        dmrs.identity,
        dmrs.initialisation,
        list(dmrs.ports),
    )
    return PUSCHPilotPattern(config, precision="single")


def _assert_sionnas(pilots: Pilots, expected: sionna.phy.ofdm.PilotPattern) -> None:
    """The same reserved resource elements, and the same values there to the last bit."""
    reserved = expected.mask.flatten(0, 1).bool()
    assert torch.equal(pilots.reserved.expand_as(reserved), reserved)
    values = torch.stack([pilots.values[stream][mask] for stream, mask in enumerate(reserved)])
    assert torch.equal(values, expected.pilots.flatten(0, 1))


@pytest.mark.parametrize("symbols", [6, 9, 10, 12, 14])
@pytest.mark.parametrize("dmrs", SINGLE + DOUBLE, ids=str)
def test_dmrs_are_those_of_sionnas_pusch(dmrs: DMRS, symbols: int) -> None:
    _assert_sionnas(dmrs.on(symbols, 36), _pusch(dmrs, symbols))


@pytest.mark.parametrize("first", [2, 3])
def test_dmrs_may_begin_a_symbol_later(first: int) -> None:
    dmrs = DMRS((0, 2), first=first, additional=2)
    _assert_sionnas(dmrs.on(14, 36), _pusch(dmrs, 14))


def _kronecker_grid(users: int, streams: int, symbols: tuple[int, ...], seed: int) -> ResourceGrid:
    with global_state_kept():
        before = sionna.phy.config.seed
        sionna.phy.config.seed = seed
        grid = ResourceGrid(
            num_ofdm_symbols=14, fft_size=48, subcarrier_spacing=30e3, num_tx=users, num_streams_per_tx=streams,
            pilot_pattern="kronecker", pilot_ofdm_symbol_indices=list(symbols), precision="single",
        )  # fmt: skip
        sionna.phy.config.seed = before
    return grid


@pytest.mark.parametrize(
    ("users", "streams", "symbols", "seed"), [(1, 1, (2,), 0), (4, 1, (2, 11), 7), (2, 3, (0, 5, 9), 42)]
)
def test_kronecker_pilots_are_those_of_sionna(users: int, streams: int, symbols: tuple[int, ...], seed: int) -> None:
    pattern = _kronecker_grid(users, streams, symbols, seed).pilot_pattern
    pilots = Kronecker(symbols, users * streams, seed).on(14, 48).with_users(users)
    _assert_sionnas(pilots, pattern)
    taken = pilots_of(pattern)
    assert taken.users == users
    assert torch.equal(taken.values, pilots.values)
    assert torch.equal(taken.reserved, pilots.reserved)


def test_least_squares_through_the_map_is_sionnas_at_every_pilot() -> None:
    """What two users of two streams send arrives at three antennas, whatever it is; each pilot tells one entry of h."""
    grid, received = (
        _kronecker_grid(2, 2, (2, 11), 3),
        torch.randn(5, 3, 14, 48, dtype=torch.complex64, generator=_generator()),
    )
    pilots = pilots_of(grid.pilot_pattern)
    phi = GridMap.of(pilots, antennas=3, snapshots=14)
    matched = phi.adjoint(phi.collect(received.permute(0, 2, 3, 1)))
    heard = phi.column_norms() > 0
    ours = torch.where(heard, matched / phi.column_norms().square(), 0).reshape(5, 14, 48, 4, 3)
    estimator = LSChannelEstimator(grid, precision="single")
    at_pilots = received[:, None, :, None, None, [2, 11]].expand(-1, -1, -1, 2, 2, -1, -1).flatten(5)
    theirs, _ = estimator.estimate_at_pilot_locations(at_pilots, torch.tensor(0.1))
    found = ours[:, [2, 11]].permute(0, 4, 3, 1, 2).reshape(5, 1, 3, 2, 2, -1)
    torch.testing.assert_close(found, theirs)
    assert int(heard.sum()) == pilots.elements * 3


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("start", [0, 1, 12345, 2**31 - 1])
def test_the_gold_sequence_is_that_of_sionna(start: int) -> None:
    assert gold_sequence(300, start).tolist() == generate_prng_seq(300, start).astype(int).tolist()


def test_a_comb_has_every_kth_subcarrier_of_its_symbols() -> None:
    pilots = Comb(4, offset=1, symbols=(1, 3), streams=2, seed=5).on(5, 11)
    for stream, subcarriers in enumerate(([1, 5, 9], [2, 6, 10])):
        where = pilots.values[stream].nonzero().tolist()
        assert where == [[symbol, subcarrier] for symbol in (1, 3) for subcarrier in subcarriers]
    assert torch.equal(pilots.sent, pilots.reserved)
    assert torch.equal(pilots.values[pilots.values != 0], qpsk(12, 5))
    assert pilots.pilot_symbols == (1, 3)
    assert pilots.elements == 12
    assert torch.equal(Comb(3).on(1, 9).values[0, 0].real, torch.tensor([1.0, 0, 0] * 3))


@pytest.mark.parametrize("seed", [None, 3])
def test_streams_of_a_block_are_orthogonal_on_every_subcarrier(seed: int | None) -> None:
    pilots = Block((0, 2, 3), streams=3, seed=seed).on(4, 5)
    for subcarrier in range(5):
        sent = pilots.values[:, :, subcarrier]
        torch.testing.assert_close(sent @ sent.mH, 3 * torch.eye(3, dtype=sent.dtype))
    assert bool((pilots.values[:, [0, 2, 3]].abs() - 1 < 1e-6).all())
    assert bool((pilots.values[:, 1] == 0).all())


@pytest.mark.parametrize(
    "dmrs", [DMRS((0, 1)), DMRS((0, 1, 4, 5), length=2), DMRS((4, 5, 10, 11), 2, length=2, groups=3)], ids=str
)
def test_codes_separate_the_ports_of_a_group(dmrs: DMRS) -> None:
    """Over each pair of subcarriers of a group in the symbols in a row, the channel being the same there."""
    pilots = dmrs.on(14, 24)
    where = pilots.sent[dmrs.first].nonzero()[:, 0]
    for pair in where.split(2):
        sent = pilots.values[:, dmrs.first : dmrs.first + dmrs.length][:, :, pair].flatten(1)
        energy = 2 * dmrs.length * dmrs.groups
        torch.testing.assert_close(sent @ sent.mH, energy * torch.eye(len(sent), dtype=sent.dtype), atol=1e-5, rtol=0)


def test_users_have_pilots_of_their_own() -> None:
    users = [DMRS((port,)).on(14, 12) for port in (0, 1, 2)]
    together = Pilots.of_users(users)
    assert together.users == 3
    assert torch.equal(together.values, DMRS((0, 1, 2)).on(14, 12).values)
    assert torch.equal(together.reserved, DMRS((0, 1, 2)).on(14, 12).reserved)


def test_tiles_hold_every_measured_resource_element_once() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.where(torch.rand(1, 6, 20, generator=generator) < 0.4, 1.0, 0.0).to(torch.complex64)
    pilots = Pilots(values, values[0] != 0)
    for snapshots in (1, 2, 3, 6):
        found = torch.zeros(6, 20, dtype=torch.int64)
        seen = torch.zeros(snapshots, 20, dtype=torch.int64)
        for tile in pilots.tiles(snapshots):
            for snapshot, symbols in zip(tile.snapshots, tile.symbols, strict=True):
                found[torch.tensor(symbols)[:, None], torch.tensor(tile.subcarriers)] += 1
                seen[snapshot, list(tile.subcarriers)] += 1
                assert {symbol * snapshots // 6 for symbol in symbols} == {snapshot}
        assert torch.equal(found.bool(), pilots.sent)
        assert int(found.max()) == int(seen.max()) == 1
        assert sum(tile.elements for tile in pilots.tiles(snapshots)) == pilots.elements


REGULAR = [Comb(4, symbols=(1, 3)), Block((0, 2, 3), 2), Kronecker((2, 5), 4), DMRS((0, 3), additional=1)]


@pytest.mark.parametrize("pattern", REGULAR, ids=str)
def test_a_regular_pattern_is_one_tile(pattern: PilotPattern) -> None:
    pilots = pattern.on(14, 24)
    assert len(pilots.tiles()) == len(pilots.tiles(14)) == 1


REFUSED = {
    "a symbol outside": (lambda: Block((0, 14)).on(14, 12), "symbols must lie within the 14 of the grid"),
    "a comb outside": (lambda: Comb(16, offset=12).on(1, 12), "pilots must lie within the 12 subcarriers"),
    "Kronecker outside": (lambda: Kronecker((2, 11)).on(7, 12), "symbols must lie within the 7 of the grid"),
    "DMRS outside": (lambda: DMRS(length=2, first=3).on(4, 12), "pilots must lie within the 4 symbols of the grid"),
    "more streams than a comb has": (lambda: Comb(2, streams=3), "offset \\+ streams must be at most the spacing of 2"),
    "more streams than symbols": (lambda: Block((0, 1), 3), "streams must be at most the 2 pilot symbols, got 3"),
    "more streams than subcarriers": (lambda: Kronecker((2,), 24).on(14, 12), "streams must divide the 12 subcarriers"),
    "no resource blocks": (lambda: DMRS().on(14, 20), "whole resource blocks of 12, got 20"),
    "an unknown port": (lambda: DMRS((4,)), r"ports must be different ones of \[0, 1, 2, 3\] .* got \[4\]"),
    "a port twice": (lambda: DMRS((1, 1)), "ports must be different ones"),
    "too many additional positions": (lambda: DMRS(length=2, additional=2), "additional must be one of 0, 1, got 2"),
    "symbols out of order": (
        lambda: Block((3, 1)),
        r"symbols must be distinct, from 0 and in their order, got \[3, 1\]",
    ),
    "two users on one resource element": (
        lambda: Pilots.of_users([Comb(4).on(1, 12), Comb(2).on(1, 12)]),
        "streams 0 and 1, of users 0 and 1, send on the same resource elements without a code that separates them",
    ),
    "two users with one port": (lambda: Pilots.of_users([DMRS((2,)).on(14, 12)] * 2), "without a code"),
    "other grids": (lambda: Pilots.of_users([Comb(4).on(1, 12), Comb(4).on(1, 16)]), "on the same grid, got"),
    "users that share no stream": (
        lambda: Comb(4, streams=3).on(1, 12).with_users(2),
        "3 streams equally, got 2 users",
    ),
    "a pilot among data": (
        lambda: dataclasses.replace(Comb(4).on(1, 12), reserved=torch.zeros(1, 12, dtype=torch.bool)),
        "reserved must hold every pilot, got one at symbol 0 and subcarrier 0",
    ),
    "a silent stream": (
        lambda: Pilots(torch.zeros(2, 1, 4, dtype=torch.complex64), torch.ones(1, 4, dtype=torch.bool)),
        "got none of stream 0",
    ),
    "uneven snapshots": (
        lambda: Comb(4).on(14, 12).tiles(3),
        "snapshots must divide the 14 symbols of the grid, got 3",
    ),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_is_refused_in_a_sentence(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
