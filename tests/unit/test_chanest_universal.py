"""Universal: powers on grids of directions, paths off the grid, and the guard of estimators that know one kind of channel."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from chanest.arrays import Array, ula, upa
from chanest.bases.guard import Guarded
from chanest.covariances.angular import AngularCovariance, AngularGrid, GridView
from chanest.covariances.flat import seen_flat
from chanest.covariances.offgrid import Paths
from chanest.covariances.refining import LEFT, around, improve, peaks, take_off
from chanest.estimators.universal import Universal
from chanest.frontend import BeamformingMap
from chanest.networks.atoms import contrast, smoothed
from chanest.networks.universal import interpolated, scaled
from chanest.pilots import draw_beams, draw_combiners
from chanest.problem import ChannelProblem
from chanest.scenario import ArraySection, CdlSection, FrontendSection, Scenario, load_scenario
from chanest.weights import get_estimator
from vlista_core.estimate import Measurement
from vlista_core.gaussian import condition
from vlista_core.linops import DenseMap
from vlista_core.metrics import coverage, nmse_db

LINKS = [
    (upa(2, 2), upa(4, 4), 0),
    (ula(2, polarization="cross"), upa(2, 4, polarization="cross"), 0),
    (upa(2, 2, polarization="cross"), upa(2, 3), 3),
    (upa(2, 3), upa(4, 2), 2),
    (ula(1), ula(8), 0),
    (ula(6), ula(1), 0),
]


def _front_end(rx: Array, tx: Array, chains: int, *, batch: int = 3, pilots: int = 5) -> BeamformingMap:
    generator = torch.Generator().manual_seed(0)
    beams = torch.stack([draw_beams("phases", tx, pilots, bits=2, generator=generator) for _ in range(batch)])
    if not chains:
        return BeamformingMap.of(beams, antennas=rx.ports)
    combiners = [draw_combiners("phases", rx, pilots, chains, bits=2, generator=generator) for _ in range(batch)]
    return BeamformingMap.of(beams, torch.stack(combiners))


@pytest.mark.parametrize(("rx", "tx", "chains"), LINKS)
def test_a_grid_is_seen_as_if_phi_psi_were_formed(rx: Array, tx: Array, chains: int) -> None:
    phi, grid = _front_end(rx, tx, chains), AngularGrid(rx, tx, 1.5)
    generator = torch.Generator().manual_seed(1)
    powers = torch.rand(phi.batch, grid.atoms, generator=generator)
    formed = phi.materialize() @ grid.dictionary.materialize()
    factor = torch.randn(phi.batch, phi.shape[0], phi.shape[0], dtype=torch.complex64, generator=generator)
    matrix = factor @ factor.mH
    for front in (phi, DenseMap(phi.materialize())):
        view = GridView(grid, front)
        torch.testing.assert_close(view.seen(powers), (formed * powers[:, None]) @ formed.mH, rtol=1e-4, atol=1e-3)
        expected = (formed.conj() * (matrix @ formed)).sum(1).real
        torch.testing.assert_close(view.forms(matrix), expected, rtol=1e-4, atol=1e-2)
        matched = (formed.mH @ factor[:, :, :1])[:, :, 0]
        torch.testing.assert_close(view.matched(factor[:, :, 0]), matched, rtol=1e-4, atol=1e-3)
        some = torch.tensor([2, 0])
        chosen = view.select(some, front.select(some))
        torch.testing.assert_close(chosen.seen(powers[some]), view.seen(powers)[some], rtol=1e-5, atol=1e-4)


def test_a_finer_grid_keeps_the_power_of_a_smooth_spectrum() -> None:
    coarse, fine = (AngularGrid(ula(1), ula(16), oversampling) for oversampling in (1.25, 2.0))
    level = torch.cos(coarse.departing[:, 0])[None]
    finer = interpolated(level, coarse, fine)
    assert finer.shape == (1, fine.atoms)
    torch.testing.assert_close(finer.exp().sum(), level.exp().sum(), rtol=0.02, atol=0.0)


@pytest.mark.parametrize(("rx", "tx", "chains"), LINKS)
def test_columns_of_paths_and_their_slopes(rx: Array, tx: Array, chains: int) -> None:
    """Φψ as the map itself gives it; slopes as differences, about the middle of the arrays."""
    phi = _front_end(rx, tx, chains)
    generator = torch.Generator().manual_seed(2)
    departing, arriving = (torch.randn(3, 2, 2, generator=generator) for _ in range(2))
    paths = Paths(departing, arriving, rx, tx)
    columns = paths.columns(phi, slopes=True)
    signals = paths.signals().flatten(1, 2)
    torch.testing.assert_close(columns[:, 0].flatten(1, 2), phi.apply_block(signals.mT).mT, rtol=1e-4, atol=1e-4)
    step = 1e-2
    for axis, size in enumerate((tx.columns, tx.rows, rx.columns, rx.rows)):
        moves = torch.zeros(3, 4, 2)
        moves[:, axis] = step
        turn = torch.polar(torch.tensor(1.0), torch.tensor(step * (size - 1) / 2))
        later = paths.moved(moves).columns(phi) * turn.conj()
        earlier = paths.moved(-moves).columns(phi) * turn
        torch.testing.assert_close((later - earlier) / (2 * step), columns[:, 1 + axis], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("axes", [(2, 3), (4, 5)])
def test_surroundings_are_means_that_go_round(axes: tuple[int, int]) -> None:
    """One point becomes ¼, ½, ¼ along both axes, twice as far apart the second time; sums stay what they are."""
    field = torch.zeros(2, 1, 5, 6, 5, 6)
    at = [1, 0, 3, 3, 3, 3]
    at[axes[0]], at[axes[1]] = 0, 5
    field[tuple(at)] = 1.0
    weights = (torch.tensor([0.25, 0.5, 0.25]), torch.tensor([0.25, 0.0, 0.5, 0.0, 0.25]))
    expected = torch.zeros(5, 6)
    for a, first in enumerate(torch.outer(weights[0], weights[0])):
        for b, share in enumerate(first):
            for c, second in enumerate(torch.outer(weights[1], weights[1])):
                for d, also in enumerate(second):
                    expected[(a - 1 + c - 2) % 5, (5 + b - 1 + d - 2) % 6] += share * also
    found = smoothed(field, axes, 1, 2)
    others = [slice(None) if axis in axes else place for axis, place in enumerate(at)]
    torch.testing.assert_close(found[tuple(others)], expected)
    torch.testing.assert_close(found.sum(), field.sum())


def _few_paths(count: int, snr_db: float) -> tuple[Tensor, Measurement, Array, Array]:
    """Channels of two plane waves far from each other and off the grid, the second 6 dB weaker."""
    rx, tx, generator = upa(2, 2), upa(8, 8), torch.Generator().manual_seed(3)
    place = torch.tensor([[0.7, -0.5], [-1.9, 1.6]]) + 0.2 * torch.rand(count, 2, 2, generator=generator)
    paths = Paths(place, -place.flip(1), rx, tx)
    phase = 2 * math.pi * torch.rand(count, 2, generator=generator)
    gains = torch.polar(torch.tensor([1.0, 0.5]).expand(count, -1), phase)
    signal = torch.einsum("bk,bkcn->bn", gains, paths.signals())
    phi = _front_end(rx, tx, 0, batch=count, pilots=24)
    noise_var = torch.full((count,), 1.25 * 10 ** (-snr_db / 10))
    y = phi.apply(signal)
    y = y + noise_var.sqrt()[:, None] * torch.randn(y.shape, dtype=y.dtype, generator=generator)
    return signal, Measurement(y, phi, noise_var), rx, tx


def _plain_powers(inside: Measurement, rx: Array, tx: Array) -> tuple[AngularCovariance, Tensor]:
    """Powers on a grid after plain majorise-minimise, as a network without weights gives them, and p·q of every atom."""
    grid = AngularGrid(rx, tx, 1.75)
    view = GridView(grid, inside.phi)
    prior = AngularCovariance(torch.full((len(inside.y), grid.atoms), 1.0 / grid.atoms), grid, view)
    for _ in range(12):
        posterior = condition(prior, inside)
        asked = grid.dictionary.adjoint(posterior.gradient).abs().square()
        expected = view.forms(posterior.precision)
        prior = AngularCovariance(prior.powers * torch.sqrt(asked / expected), grid, view)
    return prior, prior.powers * view.forms(condition(prior, inside).precision)


def test_peaks_are_taken_off_the_grid_to_where_the_paths_are() -> None:
    """Two plane waves at 20 dB: more evidence than the grid in every sample, and a far better estimate."""
    signal, measured, rx, tx = _few_paths(24, 20.0)
    inside, unit = scaled(measured)
    prior, determined = _plain_powers(inside, rx, tx)
    alone = condition(prior, inside)
    off, rest, evidence = take_off(peaks(prior, determined, most=8), prior, inside, rounds=5)
    refined = condition(off.with_grid(rest), inside)
    torch.testing.assert_close(evidence, refined.log_evidence, rtol=1e-3, atol=0.5)
    assert bool((evidence > alone.log_evidence).all())
    assert nmse_db(unit[:, None] * refined.mean, signal) < nmse_db(unit[:, None] * alone.mean, signal) - 3.0


def test_what_one_path_leaves_on_the_grid_becomes_the_next() -> None:
    """Two plane waves, one taken after the other: both explain y far better than the first alone."""
    signal, measured, rx, tx = _few_paths(24, 20.0)
    inside, unit = scaled(measured)
    prior, determined = _plain_powers(inside, rx, tx)
    first, rest, evidence = take_off(peaks(prior, determined, most=1), prior, inside, rounds=5)
    assert bool((first.count == 1).all())
    left = rest.powers
    both = first.and_more(peaks(rest, determined * left / prior.powers, most=1))
    kept = torch.where(around(both, prior.grid), LEFT * left, left)
    both = improve(both, replace(prior, powers=kept), inside, rounds=8)
    assert bool((both.count == 2).all())
    posterior = condition(both.with_grid(replace(prior, powers=kept)), inside)
    assert float((posterior.log_evidence > evidence).double().mean()) > 0.9
    alone = condition(first.with_grid(rest), inside)
    assert nmse_db(unit[:, None] * posterior.mean, signal) < nmse_db(unit[:, None] * alone.mean, signal) - 1.0


def test_shipped_weights_come_close_to_the_bound_of_two_plane_waves() -> None:
    """Six real numbers per path allow -31.8 dB at an SNR of 20 dB."""
    signal, measured, rx, tx = _few_paths(64, 20.0)
    universal = get_estimator("universal", ChannelProblem(load_scenario("cdl_c_upa64x4")))
    assert (rx.ports, tx.ports) == (4, 64)
    assert nmse_db(universal.estimate(measured.y, measured.phi, measured.noise_var).signal, signal) < -28.0


def test_threads_change_no_number_and_their_count_stays() -> None:
    problem = _own_arrays(4, 8, 1)
    batch, universal = problem.sample(24, seed=9, snr_db=10.0), get_estimator("universal", problem)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(universal.estimate(batch.y, batch.phi, batch.noise_var).signal)
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert abs(nmse_db(found[0], batch.signal) - nmse_db(found[1], batch.signal)) < 1e-3


@cache
def _own_arrays(rows: int, columns: int, user: int) -> ChannelProblem:
    return ChannelProblem(
        Scenario(
            name=f"own_{rows}x{columns}",
            bs=ArraySection(rows=rows, columns=columns, yaw_spread=60.0),
            ue=ArraySection(rows=1, columns=user, yaw=180.0, yaw_spread=180.0),
            channel=CdlSection(models=("C",)),
            frontend=FrontendSection(pilots=max(6, rows * columns // 3)),
        )
    )


@pytest.mark.parametrize("arrays", [(1, 48, 3), (12, 6, 1), (4, 8, 1)])
def test_shipped_weights_serve_arrays_that_were_never_trained_on(arrays: tuple[int, int, int]) -> None:
    """And are better there than sparse Bayesian learning, the best of what needs no training."""
    problem = _own_arrays(*arrays)
    batch = problem.sample(48, seed=9, snr_db=10.0)
    universal, sbl = (get_estimator(name, problem) for name in ("universal", "sbl"))
    assert universal.nmse_db(batch) < sbl.nmse_db(batch)


def test_a_channel_alone_gets_the_estimate_it_gets_among_others() -> None:
    problem = ChannelProblem(load_scenario("cdl_c_upa64x4"))
    batch, universal = problem.sample(8, seed=9, snr_db=10.0), get_estimator("universal", problem)
    together = universal.estimate(batch.y, batch.phi, batch.noise_var).signal
    for k in range(8):
        some = torch.tensor([k])
        alone = universal.estimate(batch.y[some], batch.phi.select(some), batch.noise_var[some]).signal
        torch.testing.assert_close(alone[0], together[k], rtol=1e-2, atol=1e-3)


def test_the_units_of_y_do_not_matter() -> None:
    problem = _own_arrays(4, 8, 1)
    batch, universal = problem.sample(16, seed=9, snr_db=10.0), get_estimator("universal", problem)
    usual = universal.estimate(batch.y, batch.phi, batch.noise_var).signal
    for unit in (1e-6, 1e6):
        other = universal.estimate(unit * batch.y, batch.phi, unit**2 * batch.noise_var).signal / unit
        assert abs(nmse_db(other, batch.signal) - nmse_db(usual, batch.signal)) < 0.01


def test_a_learned_estimator_without_weights_is_replaced_and_a_line_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="chanest"):
        found = get_estimator("gated-lmmse", _own_arrays(4, 8, 1))
    assert found.name == "universal"
    assert caplog.messages == ["gated-lmmse has no weights for own_4x8: universal is taken in its place"]


@pytest.mark.parametrize("name", ["gated-lmmse", "atom-lmmse"])
def test_the_guard_costs_nothing_at_home_and_answers_on_streets(name: str) -> None:
    home = ChannelProblem(load_scenario("cdl_c_upa64x4"))
    batch = home.sample(100, seed=9, snr_db=10.0)
    alone, guarded = (get_estimator(name, home, guarded=each) for each in (False, True))
    assert guarded.nmse_db(batch) < alone.nmse_db(batch) + 0.1
    out = guarded.estimate(batch.y, batch.phi, batch.noise_var)
    assert out.own_share is not None
    assert float(out.own_share.mean()) > 0.9
    street = ChannelProblem(load_scenario("rt_canyon_upa64x4"))
    batch = street.sample(48, seed=9, snr_db=10.0)
    alone, guarded = (get_estimator(name, street, trained_on="cdl_c_upa64x4", guarded=each) for each in (False, True))
    assert guarded.nmse_db(batch) < alone.nmse_db(batch) - 8.0
    out = guarded.estimate(batch.y, batch.phi, batch.noise_var)
    assert out.own_share is not None
    assert float(out.own_share.mean()) < 0.1
    assert out.own_variance is not None
    assert 0.8 < coverage(out.signal, out.own_variance, batch.signal, 0.9) <= 1.0


def test_a_guard_is_no_part_of_the_file(tmp_path: Path) -> None:
    home = ChannelProblem(load_scenario("cdl_c_upa64x4"))
    guarded = get_estimator("gated-lmmse", home)
    assert isinstance(guarded, Guarded)
    assert isinstance(guarded.guard, Universal)
    assert not any(name.startswith("guard") for name in guarded.state_dict())


@pytest.mark.parametrize(("rx", "tx", "chains"), LINKS)
def test_equal_powers_are_seen_as_any_powers_are(rx: Array, tx: Array, chains: int) -> None:
    """By C⁻¹ of pilots alone where the receiver is digital, and the same numbers as by C as a whole."""
    phi, grid = _front_end(rx, tx, chains), AngularGrid(rx, tx, 1.25)
    y = torch.randn(phi.batch, phi.shape[0], dtype=torch.complex64, generator=torch.Generator().manual_seed(4))
    measured = Measurement(y, phi, torch.tensor([0.1, 1.0, 10.0]))
    level, view = torch.tensor([0.3, 0.03, 0.1]), GridView(grid, phi)
    whitened, expected = seen_flat(level, view, measured)
    posterior = condition(AngularCovariance(level[:, None].expand(-1, grid.atoms), grid, view), measured)
    torch.testing.assert_close(whitened, posterior.whitened, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(expected, view.forms(posterior.precision), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("rx", "tx", "chains"), LINKS)
def test_a_peak_gathers_what_lies_within_one_point_of_it(rx: Array, tx: Array, chains: int) -> None:
    """Two waves of known power, each among atoms of a small power: the strongest first, with their neighbours' powers."""
    grid = AngularGrid(rx, tx, 1.5)
    powers = torch.full((1, grid.atoms), 1e-3)
    field = powers.view(1, *grid.shape)
    at = [points // 2 for points in grid.shape]
    field[0, 0, at[1], at[2], 0, at[4], at[5]] = 1.0
    found = peaks(AngularCovariance(powers, grid), torch.ones_like(powers), most=1)
    directions = 3 ** sum(points > 1 for points in grid.axes)
    pairs = torch.full((len(tx.slants) * len(rx.slants),), directions * 1e-3)
    pairs[0] += 1.0 - 1e-3
    torch.testing.assert_close(found.powers[0, 0], pairs)
    marked = around(found, grid).reshape(grid.shape)
    assert int(marked.sum()) == directions * len(tx.slants) * len(rx.slants)
    assert bool(marked[0, at[1], at[2], 0, at[4], at[5]])


def test_the_contrast_of_a_spectrum_is_how_few_of_its_points_have_power() -> None:
    """A quarter of log(points over points with power), whatever the unit."""
    values = torch.zeros(1, 3, 64)
    for sample, used in enumerate((64, 16, 1)):
        values[0, sample, :used] = 10.0**sample
    expected = torch.tensor([[1.0, 4.0, 64.0]]).log() / 4
    torch.testing.assert_close(contrast(values), expected, rtol=1e-2, atol=1e-4)
