"""Bounds: what they know is right, they are ordered, reachable where theory says so, and no estimators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

import chanest
from chanest.bounds import BOUNDS, Bound, get_bound
from chanest.bounds.cells import GenieCells, cell_derivatives
from chanest.bounds.cramer_rao import CramerRao, path_derivatives
from chanest.bounds.genie import GenieAngles, GenieEnsemble, GenieRays, ray_columns
from chanest.bounds.support import OracleSupport
from chanest.channels.rays import Rays
from chanest.estimators.lmmse import LMMSE
from chanest.frontend import BeamformingMap, GridMap
from chanest.problem import ChannelBatch, ChannelProblem
from chanest.scenario import Scenario
from vlista_core.estimate import Estimator
from vlista_core.linalg import solve_hermitian
from vlista_core.metrics import nmse_db

FIXED_BS = {"rows": 2, "columns": 3, "yaw": 20.0, "tilt": 10.0, "polarization": "cross", "pattern": "38.901"}
FIXED_UE = {"rows": 2, "columns": 1, "yaw": 200.0, "tilt": -5.0, "polarization": "VH"}
PATHS = {"kind": "paths", "paths": 2, "taps": 4, "subcarriers": 6, "subcarrier_spacing": 100e6}


def _scenario(**sections: object) -> ChannelProblem:
    common = {"name": "own", "description": "a test", "snr_db": [0.0, 20.0]}
    return ChannelProblem(Scenario.model_validate({**common, **sections}))


def _fixed(model: str, **more: object) -> ChannelProblem:
    """Dual polarised, tilted, patterned, at a fixed orientation."""
    channel = {"models": [model], "direction": "uplink"}
    return _scenario(bs=FIXED_BS, ue=FIXED_UE, channel=channel, frontend={"pilots": 4, **more})


def _paths(**frontend: object) -> ChannelProblem:
    bs, ue = {"rows": 2, "columns": 4}, {"rows": 1, "columns": 6}
    return _scenario(bs=bs, ue=ue, channel=PATHS, frontend={"pilots": 20, "chains": 2, **frontend})


@cache
def _problem(name: str) -> ChannelProblem:
    return ChannelProblem(chanest.load_scenario(name))


@cache
def _ensemble() -> Bound:
    return get_bound("genie-ensemble", _problem("cdl_c_upa64x4"))


def _distance(matrix: Tensor, reference: Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix - reference) / torch.linalg.matrix_norm(reference))


def _covariance(vectors: Tensor) -> Tensor:
    vectors = vectors.to(torch.complex128)
    return vectors.mT @ vectors.conj() / len(vectors)


def _together(columns: Tensor) -> Tensor:
    """The mean over the batch of AAᴴ."""
    return torch.einsum("bik,bjk->ij", columns, columns.conj()) / len(columns)


def test_bounds_cannot_be_taken_for_estimators() -> None:
    assert list(BOUNDS) == [
        "genie-rays", "genie-cells", "genie-angles", "genie-ensemble", "genie-covariance", "oracle-support", "crb",
    ]  # fmt: skip
    assert not set(BOUNDS) & set(chanest.estimator_names())
    for name, bound in BOUNDS.items():
        assert bound.name == name
        assert bound.label
        assert not issubclass(bound, Estimator)
        assert not hasattr(bound, "estimate")
        assert not hasattr(bound, "infer")


@pytest.mark.parametrize("snr_db", [0.0, 10.0, 20.0])
def test_each_step_of_the_ladder_knows_more(snr_db: float) -> None:
    problem = _problem("cdl_c_upa64x4")
    batch = problem.sample(48, seed=1, snr_db=snr_db)
    rays = get_bound("genie-rays", problem).nmse_db(batch)
    angles = get_bound("genie-angles", problem).nmse_db(batch)
    ensemble = _ensemble().nmse_db(batch)
    assert rays < angles < ensemble - 1.5
    assert angles == pytest.approx({0.0: -7.1, 10.0: -12.6, 20.0: -18.5}[snr_db], abs=0.7)
    assert ensemble == pytest.approx({0.0: -4.7, 10.0: -9.7, 20.0: -14.8}[snr_db], abs=0.7)


def test_the_ensemble_bounds_the_fitted_lmmse_and_the_wrong_orientation_is_worse() -> None:
    problem = _problem("cdl_c_upa64x4")
    batch = problem.sample(32, seed=2, snr_db=10.0)
    values, vectors = torch.linalg.eigh(_covariance(problem.channels(1500, seed=0, split="train")))
    lmmse = LMMSE(*problem.arrays, signal_length=problem.signal_length, rank=256)
    lmmse.factor = (vectors * values.clamp_min(0.0).sqrt()).to(torch.complex64)
    lmmse.floor = torch.tensor(1e-3)
    fitted = nmse_db(lmmse.estimate(batch.y, batch.phi, batch.noise_var).signal, batch.signal)
    angles = GenieAngles(problem)
    assert GenieRays(problem).nmse_db(batch) < angles.nmse_db(batch) < fitted
    assert _ensemble().nmse_db(batch) < fitted + 0.1
    assert batch.rays is not None
    turned = replace(batch.rays, tx_orientation=batch.rays.tx_orientation + torch.tensor([0.3, 0.0, 0.0]))
    assert angles.nmse_db(replace(batch, rays=turned)) > angles.nmse_db(batch) + 3.0


@pytest.mark.parametrize(
    ("snr_db", "count", "expected"),
    [(0.0, 24, (-16.9, -16.6)), (10.0, 24, (-24.1, -23.3)), (20.0, 24, (-31.8, -30.2))],
)
def test_the_ladder_is_joint_over_subcarriers(snr_db: float, count: int, expected: tuple[float, float]) -> None:
    """The figures of a prototype in double precision on the same draws, from columns of rays and of cluster factors."""
    problem = _problem("wideband_64x4")
    batch = problem.sample(count, seed=5, snr_db=snr_db)
    rays, angles = (get_bound(name, problem).nmse_db(batch) for name in ("genie-rays", "genie-angles"))
    assert (rays, angles) == pytest.approx(expected, abs=0.06)
    few = batch.select(torch.arange(8))
    ensemble = get_bound("genie-ensemble", problem).nmse_db(few)
    assert rays < angles < ensemble - 3.0


def test_clusters_have_their_delays_over_subcarriers() -> None:
    """Sampling error falls with the root of the number, with a line of sight too, and the ensemble has the same delays."""
    wide = {"subcarriers": 6, "subcarrier_spacing": 1e6, "delay_spread": 1e-7}
    bs, ue = {"rows": 1, "columns": 3, "yaw": 20.0}, {"rows": 1, "columns": 2, "yaw": 200.0}
    for models in (["C"], ["D"], ["A", "E"]):
        problem = _scenario(bs=bs, ue=ue, channel={"models": models, **wide}, frontend={"pilots": 2})
        channels = problem.channels(3000, seed=0, split="train")
        rays = problem.source.rays(range(64), seed=1)
        known = GenieAngles(problem).prior(rays).materialize()
        known = known.mean(0) if len(models) > 1 else known[0]
        few, many = _distance(_covariance(channels[:150]), known), _distance(_covariance(channels), known)
        assert many < 0.1
        assert many < 0.5 * few
        assert _distance(GenieEnsemble(problem).covariance.materialize()[0], known) < (0.1 if len(models) > 1 else 1e-5)


def test_random_delays_are_in_every_step_of_the_ladder() -> None:
    """(c) is the mean of (b) over delays, with a line of sight too; both see what the window cuts off."""
    wide = {"subcarriers": 6, "subcarrier_spacing": 1e6, "delay_spread": [5e-8, 2e-7]}
    late = {"timing_offset": [-1e-7, 2e-7], "delay_window": [1e-7, 4e-7]}
    bs, ue = {"rows": 1, "columns": 3, "yaw": 20.0}, {"rows": 1, "columns": 2, "yaw": 200.0}
    for model in ("C", "D"):
        channel = {"models": [model], **wide, **late}
        problem = _scenario(bs=bs, ue=ue, channel=channel, frontend={"pilots": 2})
        rays = problem.source.rays(range(1500), seed=1)
        known = GenieAngles(problem).prior(rays)
        mean = torch.stack(
            [part.materialize().sum(0) for part in (known.select(some) for some in torch.arange(1500).split(100))]
        )
        ensemble = GenieEnsemble(problem).covariance.materialize()[0]
        assert _distance(ensemble, mean.sum(0) / 1500) < 0.03
        few = _distance(ensemble, known.select(torch.arange(60)).materialize().mean(0))
        assert few > 0.03


def test_the_ladder_holds_where_every_sample_has_delays_of_its_own() -> None:
    problem = _problem("ofdm_64x4")
    batch = problem.sample(8, seed=5, snr_db=10.0)
    rays, angles, ensemble = (
        get_bound(name, problem).nmse_db(batch) for name in ("genie-rays", "genie-angles", "genie-ensemble")
    )
    assert rays < angles - 0.3
    assert angles < ensemble - 5.0


@pytest.mark.parametrize("model", ["C", "D"])
def test_covariances_are_those_of_the_channels(model: str) -> None:
    """At a fixed orientation: sampling error falls with the root of the number, with a line of sight and without."""
    problem = _fixed(model)
    channels = problem.channels(2000, seed=0, split="train")
    known = GenieAngles(problem).prior(problem.source.rays(range(2), seed=1)).materialize()[0]
    few, many = _distance(_covariance(channels[:100]), known), _distance(_covariance(channels), known)
    assert many < 0.06
    assert many < 0.5 * few
    assert _distance(GenieEnsemble(problem).covariance.materialize()[0], known) < 1e-6
    columns = ray_columns(problem.source, problem.source.rays(range(100), seed=3)).space
    assert _distance(_together(columns), known) < 5e-3


def test_columns_of_rays_have_the_covariance_over_the_phases() -> None:
    problem, count = _fixed("D"), 1500
    rays = problem.source.rays(range(1), seed=3)
    generator = torch.Generator().manual_seed(0)
    repeated = Rays(*(tensor.expand(count, *tensor.shape[1:]) for tensor in rays.tensors()))
    turns = torch.pi * (2 * torch.rand(repeated.phases.shape, generator=generator) - 1)
    line = torch.pi * (2 * torch.rand(count, generator=generator) - 1)
    channels = problem.source.matrices(replace(repeated, phases=turns, los_phase=line)).mT.reshape(count, -1)
    assert _distance(_covariance(channels), _together(ray_columns(problem.source, rays).space)) < 0.02


def test_amplitudes_of_every_ray_are_in_the_columns_and_their_means_in_the_clusters() -> None:
    """A polarisation matrix for each ray: columns have the covariance over the phases, (b) the mean power of each entry."""
    problem, count = _fixed("C"), 1500
    generator = torch.Generator().manual_seed(0)
    drawn = problem.source.rays(range(1), seed=3)
    rays = replace(drawn, strength=2 * torch.rand(*drawn.aoa.shape, 4, generator=generator))
    repeated = Rays(*(tensor.expand(count, *tensor.shape[1:]) for tensor in rays.tensors()))
    turns = torch.pi * (2 * torch.rand(repeated.phases.shape, generator=generator) - 1)
    channels = problem.source.matrices(replace(repeated, phases=turns)).mT.reshape(count, -1)
    columns = _together(ray_columns(problem.source, rays).space)
    assert _distance(_covariance(channels), columns) < 0.08
    assert _distance(_together(ray_columns(problem.source, drawn).space), columns) > 0.2
    mean = rays.strength.square().mean(2, keepdim=True).sqrt()
    known, same = (
        GenieAngles(problem).prior(replace(rays, strength=each)).materialize()[0] for each in (rays.strength, mean)
    )
    torch.testing.assert_close(known, same)
    assert _distance(known, columns) < 0.35


def test_a_mixture_of_models_has_the_mean_of_their_covariances() -> None:
    bs, ue = {"rows": 2, "columns": 2, "yaw_spread": 20.0}, {"rows": 1, "columns": 2, "yaw_spread": 30.0}
    problem = _scenario(bs=bs, ue=ue, channel={"models": ["A", "E"]}, frontend={"pilots": 4})
    rays = problem.source.rays(range(128), seed=0, split="train")
    drawn = GenieAngles(problem).prior(rays).materialize().mean(0)
    assert _distance(GenieEnsemble(problem).covariance.materialize()[0], drawn) < 0.1


def test_fixed_orientation_leaves_the_angles_nothing_to_add() -> None:
    problem = _problem("score_64x16")
    batch = problem.sample(8, seed=1, snr_db=10.0)
    angles = GenieAngles(problem).bound(batch).signal
    torch.testing.assert_close(angles, GenieEnsemble(problem).bound(batch).signal, atol=1e-4, rtol=1e-4)
    assert GenieRays(problem).nmse_db(batch) < nmse_db(angles, batch.signal)


@pytest.mark.parametrize("name", ["genie-rays", "genie-angles", "genie-ensemble", "oracle-support"])
def test_whitening_changes_no_bound(name: str) -> None:
    """Coloured noise after the combiners of a hybrid receiver, against the same noise whitened by the front end."""
    white, coloured = (_fixed("C", pilots=6, chains=2, whiten=whiten) for whiten in (True, False))
    left, right = (problem.sample(8, seed=1, snr_db=10.0) for problem in (white, coloured))
    torch.testing.assert_close(left.signal, right.signal)
    found, same = get_bound(name, white).bound(left).signal, get_bound(name, coloured).bound(right).signal
    torch.testing.assert_close(found, same, atol=1e-4, rtol=1e-4)


def test_the_filters_are_the_textbook_formula() -> None:
    problem = _fixed("D", pilots=6, chains=2)
    batch = problem.sample(4, seed=1, snr_db=10.0)
    assert batch.rays is not None
    phi = batch.phi.materialize().to(torch.complex128)
    columns = ray_columns(problem.source, batch.rays).space
    known = {
        "genie-angles": GenieAngles(problem).prior(batch.rays).materialize(),
        "genie-rays": columns @ columns.mH,
    }
    for name, covariance in known.items():
        total = phi @ covariance @ phi.mH + batch.noise_var[:, None, None] * torch.eye(phi.shape[1])
        weights = solve_hermitian(total, batch.y[..., None].to(torch.complex128))
        expected = (covariance @ phi.mH @ weights)[..., 0].to(torch.complex64)
        torch.testing.assert_close(get_bound(name, problem).bound(batch).signal, expected, atol=1e-5, rtol=1e-4)


def test_oracle_support_stays_above_its_floor() -> None:
    problem = _problem("cdl_c_upa64x4")
    oracle = OracleSupport(problem)
    errors, floors = [], []
    for snr_db in (0.0, 20.0):
        batch = problem.sample(8, seed=1, snr_db=snr_db)
        errors.append(oracle.nmse_db(batch))
        floors.append(oracle.floor_db(batch))
        assert floors[-1] < errors[-1]
    assert errors[1] < errors[0] - 8.0
    assert floors[1] < floors[0] - 8.0


def test_oracle_support_finds_a_channel_of_grid_atoms_up_to_the_noise() -> None:
    problem = _problem("cdl_c_upa64x4")
    batch = problem.sample(8, seed=1, snr_db=30.0)
    code = torch.zeros(8, 4096, dtype=torch.complex64)
    code[:, [100, 1500, 3000]] = 5.0
    signal = problem.dictionary(oversampling=2.0).apply(code)
    noise = batch.y - batch.phi.apply(batch.signal)
    sparse = replace(batch, signal=signal, y=batch.phi.apply(signal) + noise)
    oracle = OracleSupport(problem)
    assert oracle.floor_db(sparse) < -100.0
    error = (oracle.bound(sparse).signal - signal).abs().square().sum(1).mean()
    assert 0.3 < float(error) / (3 * 1e-3 * 256 / 96) < 3.0


def test_derivatives_of_paths_are_those_of_the_channel() -> None:
    problem = _paths()
    drawn = problem.source.rays(range(3), seed=0)
    rays = Rays(*(tensor.double() if tensor.is_floating_point() else tensor for tensor in drawn.tensors()))
    columns = path_derivatives(problem.source, rays)
    found = torch.einsum("bsk,bnk->bsnk", columns.delay, columns.space).flatten(1, 2)

    def channel(changed: Rays) -> Tensor:
        return problem.source.matrices(changed).mT.reshape(3, -1)

    def slope(change: Callable[[float, Tensor], Rays]) -> Tensor:
        return (channel(change(1e-5, one)) - channel(change(-1e-5, one))) / 2e-5

    symbol = 1 / 600e6
    for path in range(2):
        one = torch.zeros(1, 2, 1, dtype=torch.float64)
        one[:, path] = 1.0
        # Where the paths lie, the zenith is π/2: d across = cos(azimuth) d azimuth and d up = -d zenith.
        expected = [
            slope(lambda step, one: replace(rays, powers=rays.powers * (1 + step * one[..., 0]) ** 2)),
            slope(lambda step, one: replace(rays, phases=rays.phases + step * one[..., None])),
            slope(lambda step, one: replace(rays, aoa=rays.aoa + step * one / torch.cos(rays.aoa))),
            slope(lambda step, one: replace(rays, aod=rays.aod + step * one / torch.cos(rays.aod))),
            slope(lambda step, one: replace(rays, zod=rays.zod - step * one)),
            slope(lambda step, one: replace(rays, delays=rays.delays + step * symbol * one[..., 0])),
        ]
        for kind, reference in enumerate(expected):
            torch.testing.assert_close(found[..., 2 * kind + path], reference, atol=1e-6, rtol=1e-5)


def test_cramer_rao_falls_with_the_noise_and_not_with_whitening() -> None:
    problem, coloured = _paths(), _paths(whiten=False)
    low, high = (problem.sample(16, seed=1, snr_db=snr_db) for snr_db in (10.0, 20.0))
    bound = CramerRao(problem)
    assert bound.nmse_db(high) == pytest.approx(bound.nmse_db(low) - 10.0, abs=1e-4)
    same = CramerRao(coloured).nmse_db(coloured.sample(16, seed=1, snr_db=10.0))
    assert same == pytest.approx(bound.nmse_db(low), abs=1e-3)
    assert get_bound("genie-rays", problem).nmse_db(low) < bound.nmse_db(low)
    with pytest.raises(ValueError, match="has no estimate"):
        bound.bound(low)


def test_cells_are_derivatives_of_the_channel() -> None:
    """By turning the user a little: along the axis of an array, directions change as the derivatives say."""
    problem = _problem("rt_canyon_upa64x4")
    source = problem.source
    h, rays = source.channels(range(6), seed=3, split="test")
    assert rays is not None
    signal = h.mT.reshape(len(h), -1).to(torch.complex128)
    found = cell_derivatives(source, rays).space.unflatten(2, (6, -1))
    # Real and imaginary part of the gains: a channel is the sum of its paths.
    torch.testing.assert_close(2**0.5 * found[:, :, 0].sum(2), signal, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found[:, :, 1], 1j * found[:, :, 0])
    # A phase that grows along an axis of the base station is what a change of direction gives.
    tx, rx = source.tx, source.rx
    phase = 2 * torch.pi * tx.positions()[:, 1] / tx.horizontal_spacing / tx.columns / 12**0.5
    turned = torch.polar(torch.ones_like(phase), 1e-6 * phase).repeat_interleave(rx.ports)
    slope = 1e6 * (turned - 1)[:, None] * 2**0.5 * found[:, :, 0]
    torch.testing.assert_close(found[:, :, 2], slope, atol=1e-5, rtol=1e-4)


def test_directions_known_to_a_cell_lie_between_known_rays_and_every_estimator() -> None:
    """Few paths: unknown directions cost (2 gains + 4 cosines) / 2 = 3 times the error, 4.8 dB where all are strong."""
    problem = _problem("rt_canyon_upa64x4")
    universal = chanest.get_estimator("universal", problem)
    for snr_db in (0.0, 20.0):
        batch = problem.sample(60, seed=3, snr_db=snr_db)
        rays, cells = (get_bound(name, problem).nmse_db(batch) for name in ("genie-rays", "genie-cells"))
        assert rays + 4.0 < cells < universal.nmse_db(batch)
    assert cells < rays + 5.0
    low, high = (GenieCells(problem).nmse_db(problem.sample(16, seed=1, snr_db=snr_db)) for snr_db in (40.0, 50.0))
    assert high == pytest.approx(low - 10.0, abs=0.4)
    with pytest.raises(ValueError, match="has no estimate"):
        GenieCells(problem).bound(batch)


def _maximum_likelihood(problem: ChannelProblem, batch: ChannelBatch) -> Tensor:
    """Gauss–Newton from the truth in gains, azimuths, zenith of departure and delays, by automatic derivatives."""
    assert batch.rays is not None
    assert isinstance(batch.phi, BeamformingMap)
    source, dense = problem.source, batch.phi.materialize().to(torch.complex128)
    results = []
    for index in range(len(batch)):
        rays = Rays(
            *(t.double() if t.is_floating_point() else t for t in batch.rays.select(torch.tensor([index])).tensors())
        )

        def channel(values: Tensor, rays: Rays = rays) -> Tensor:
            size, phase, aoa, aod, zod, delay = values.reshape(6, 1, -1)
            gain = torch.polar(source.scale * rays.powers.sqrt() * (1 + size), rays.phases[:, :, 0, 0] + phase)
            rx = source.rx.steering(rays.zoa[..., 0], rays.aoa[..., 0] + aoa)
            tx = source.tx.steering(rays.zod[..., 0] + zod, rays.aod[..., 0] + aod)
            time = source.delay_response(replace(rays, delays=rays.delays + delay * 1e-9))
            return torch.einsum("bl,bkl,blt,blr->bktr", gain, time, tx, rx).flatten()

        def parts(values: Tensor, channel: Callable[[Tensor], Tensor] = channel) -> Tensor:
            return torch.view_as_real(channel(values))

        values = torch.zeros(12, dtype=torch.float64)
        for _ in range(4):
            real, imaginary = torch.func.jacfwd(parts)(values).unbind(1)
            slopes = dense[index] @ torch.complex(real, imaginary)
            left = batch.y[index].to(torch.complex128) - dense[index] @ channel(values)
            values = values + solve_hermitian((slopes.mH @ slopes).real, (slopes.mH @ left).real[:, None])[:, 0]
        results.append(channel(values))
    return torch.stack(results)


def test_maximum_likelihood_attains_cramer_rao_at_high_snr() -> None:
    problem = _paths()
    batch = problem.sample(24, seed=1, snr_db=40.0)
    found = _maximum_likelihood(problem, batch).to(torch.complex64)
    assert nmse_db(found, batch.signal) == pytest.approx(CramerRao(problem).nmse_db(batch), abs=0.6)


@pytest.mark.parametrize("whiten", [True, False])
@pytest.mark.parametrize("name", ["genie-rays", "genie-angles", "genie-ensemble", "oracle-support"])
def test_bounds_are_the_same_through_a_grid_of_the_same_pilots(name: str, whiten: bool) -> None:
    front = {"pilots": 4, "chains": 1, "whiten": whiten}
    flat, grid = (_fixed("C", **front, **more) for more in ({}, {"pattern": {"kind": "comb", "spacing": 1}}))
    batch, other = (problem.sample(8, seed=1, snr_db=10.0) for problem in (flat, grid))
    assert isinstance(other.phi, GridMap)
    torch.testing.assert_close(other.y, batch.y)
    assert get_bound(name, grid).nmse_db(other) == pytest.approx(get_bound(name, flat).nmse_db(batch), abs=1e-4)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cdl_mix_upa64x4", {"genie-rays", "genie-angles", "genie-ensemble", "oracle-support"}),
        ("mobile_64x4", {"genie-rays", "genie-angles", "genie-ensemble", "oracle-support"}),
        ("wideband_64x4", {"genie-rays", "genie-angles", "genie-ensemble"}),
        ("comb_64x4", set()),
        ("swomp_32x32", {"genie-rays", "crb"}),
        ("rt_canyon_upa64x4", {"genie-rays", "genie-cells", "oracle-support"}),
        ("clusters_dual_4x8", {"genie-rays", "oracle-support"}),
        ("scm_64x16", {"genie-covariance", "oracle-support"}),
    ],
)
def test_each_scenario_has_the_bounds_that_hold_for_it(name: str, expected: set[str]) -> None:
    problem = _problem(name)
    assert {bound for bound, cls in BOUNDS.items() if cls.applies(problem)} == expected


def test_a_fixed_phase_of_the_line_of_sight_is_refused() -> None:
    channel = {"models": ["D"], "random_los_phase": False}
    problem = _scenario(bs=FIXED_BS, ue=FIXED_UE, channel=channel, frontend={"pilots": 4})
    assert [name for name, cls in BOUNDS.items() if cls.applies(problem)] == ["oracle-support"]


def test_bad_requests_are_refused_by_name() -> None:
    problem = _problem("cdl_c_upa64x4")
    with pytest.raises(ValueError, match=r"unknown bound 'lmmse'; known are genie-rays, .*crb"):
        get_bound("lmmse", problem)
    with pytest.raises(ValueError, match="crb does not apply to cdl_c_upa64x4"):
        get_bound("crb", problem)
    batch = problem.sample(2, seed=0)
    with pytest.raises(ValueError, match="rays"):
        GenieRays(problem).bound(replace(batch, rays=None))
    with pytest.raises(ValueError, match="256 entries"):
        GenieRays(problem).bound(_problem("hybrid_64x16").sample(2, seed=0))
