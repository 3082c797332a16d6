"""Newtonised OMP: derivatives, thresholds, what it finds of sparse channels, and how honest its variance is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import chanest
from chanest.arrays import Array, ula, upa
from chanest.dictionaries import Link
from chanest.estimators.nomp import NOMP, detection_threshold
from chanest.frontend import BeamformingMap
from chanest.plane_waves import Fit, PlaneWaves, error_variances
from vlista_core.linops import DenseMap, IdentityMap
from vlista_core.metrics import nmse_db

BAND = tuple(1e5 * k for k in range(12))
LINKS = {
    "planar": Link(upa(2, 2), upa(4, 4)),
    "linear to one antenna": Link(ula(1), ula(24)),
    "one antenna to one": Link(ula(1), ula(1)),
    "dual polarised": Link(ula(2, polarization="VH"), upa(2, 4, polarization="cross")),
    "one end dual polarised": Link(ula(2), upa(3, 3, polarization="cross")),
    "several subcarriers": Link(ula(2), ula(8), BAND),
    "wider than half a wavelength": Link(ula(2, spacing=0.7), upa(4, 4, spacing=0.7)),
}


@dataclass(frozen=True)
class Sparse:
    """Channels of a few plane waves, and what random beams see of them."""

    h: Tensor
    y: Tensor
    phi: BeamformingMap
    noise_var: float
    fit: Fit
    """The truth."""


def _noise(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, dtype=torch.complex64, generator=generator)


def _beams(link: Link, batch: int, pilots: int, chains: int | None, generator: torch.Generator) -> BeamformingMap:
    transmit = _noise((batch, link.tx.ports, pilots), generator) / math.sqrt(link.tx.ports)
    combiner = None if chains is None else _noise((batch, pilots, link.rx.ports, chains), generator)
    return BeamformingMap.of(transmit, combiner, antennas=link.rx.ports, subcarriers=link.subcarriers)


def _phases(link: Link, batch: int, paths: int, generator: torch.Generator) -> Tensor:
    """Delays over a fifth of the symbol; directions uniform on the sphere."""

    def uniform() -> Tensor:
        return torch.rand(batch, paths, dtype=torch.float64, generator=generator)

    def of(array: Array) -> list[Tensor]:
        up, azimuth = 2 * uniform() - 1, 2 * math.pi * uniform()
        across = (1 - up.square()).sqrt() * azimuth.sin()
        steps = [2 * math.pi * array.horizontal_spacing * across, -2 * math.pi * array.vertical_spacing * up]
        return [step for step, size in zip(steps, (array.columns, array.rows), strict=True) if size > 1]

    delays = [0.4 * math.pi * uniform()] if link.subcarriers > 1 else []
    found = [*delays, *of(link.tx), *of(link.rx)]
    return torch.stack(found, 2) if found else torch.zeros(batch, paths, 0, dtype=torch.float64)


def _sparse(
    link: Link,
    *,
    paths: int,
    snr_db: float,
    batch: int = 40,
    pilots: int = 16,
    chains: int | None = None,
    seed: int = 0,
) -> Sparse:
    """Paths of powers over 10 dB that sum to one, through random beams."""
    generator, waves = torch.Generator().manual_seed(seed), PlaneWaves(link)
    phases = _phases(link, batch, paths, generator)
    powers = 10 ** -torch.rand(batch, paths, dtype=torch.float64, generator=generator)
    powers = (powers / powers.sum(1, keepdim=True))[..., None].expand(-1, -1, waves.gains)
    angles = 2 * math.pi * torch.rand(powers.shape, dtype=torch.float64, generator=generator)
    gains = torch.polar(powers.sqrt(), angles)
    h = waves.columns(phases).combine(gains.flatten(1)).to(torch.complex64)
    phi, noise_var = _beams(link, batch, pilots, chains, generator), 10 ** (-snr_db / 10)
    y = phi.apply(h)
    y = y + math.sqrt(noise_var) * _noise((*y.shape,), generator)
    nothing = phases.new_zeros(0)
    return Sparse(h, y, phi, noise_var, Fit(phases, gains, nothing, nothing, nothing, nothing))


def _cramer_rao_db(waves: PlaneWaves, truth: Sparse) -> float:
    """What an estimator that knows the number of paths and nothing else could reach without bias, as NMSE in dB."""
    doubts = torch.zeros_like(truth.fit.gains.real), torch.full((len(truth.h),), 1e-9, dtype=torch.float64)
    phi = truth.phi.one_subcarrier().cast(torch.complex128)
    variance = truth.noise_var * error_variances(waves, phi, truth.fit, doubts, None)
    return 10 * math.log10(float(variance.sum() / truth.h.abs().square().sum()))


@pytest.mark.parametrize("link", LINKS.values(), ids=LINKS)
def test_tangents_are_derivatives_of_the_channel(link: Link) -> None:
    waves, step = PlaneWaves(link), 1e-6
    truth = _sparse(link, paths=2, snr_db=20.0, batch=3).fit
    tangents = waves.tangents(truth.phases, truth.gains).columns_matrix().reshape(3, link.signal_length, -1, 2)
    for axis in range(waves.coordinates):
        for path in range(2):
            moved = torch.zeros_like(truth.phases)
            moved[:, path, axis] = step
            ahead, behind = (
                waves.columns(truth.phases + sign * moved).combine(truth.gains.flatten(1)) for sign in (1, -1)
            )
            assert torch.allclose(tangents[:, :, axis, path], (ahead - behind) / (2 * step), atol=1e-7)


@pytest.mark.parametrize("chains", [None, 1])
@pytest.mark.parametrize("link", LINKS.values(), ids=LINKS)
def test_waves_are_seen_as_phi_sees_them(link: Link, chains: int | None) -> None:
    waves, truth = PlaneWaves(link), _sparse(link, paths=2, snr_db=20.0, batch=3, chains=chains)
    fit, phi = truth.fit, truth.phi.cast(torch.complex128)
    one = phi.one_subcarrier()
    for seen, plain in (
        (waves.seen(one, fit.phases), waves.columns(fit.phases)),
        (waves.tangents_seen(one, fit.phases, fit.gains), waves.tangents(fit.phases, fit.gains)),
    ):
        expected = phi.apply_block(plain.columns_matrix()) if plain.columns_held else plain.columns_matrix()[:, :0]
        assert torch.allclose(seen.columns_matrix()[:, : expected.shape[1]], expected, atol=1e-9)
        dense = DenseMap(one.materialize())
        assert plain.columns_held == 0 or torch.allclose(
            waves.seen(dense, fit.phases).space, waves.seen(one, fit.phases).space
        )


def test_thresholds_follow_their_limits() -> None:
    assert detection_threshold(0.01, 1, (), 50) == pytest.approx(-math.log(0.01), abs=0.02)
    assert detection_threshold(0.01, 1, (8.0, 8.0, 8.0), 1) == pytest.approx(-math.log(0.01), abs=0.02)
    rice = detection_threshold(0.01, 1, (20.0,), 500)
    assert 20.0 * math.sqrt(rice) * math.exp(-rice) == pytest.approx(0.01, rel=0.02)
    few, many = (detection_threshold(0.01, gains, (8.0, 8.0), 500) for gains in (1, 4))
    assert few < many
    assert detection_threshold(0.5, 1, (8.0, 8.0, 2.0, 2.0), 96) > 8.0


@pytest.mark.parametrize("name", ["planar", "linear to one antenna", "dual polarised", "several subcarriers"])
def test_noise_alone_gives_a_path_as_often_as_stated(name: str) -> None:
    link, draws, stated = LINKS[name], 1000, 0.05
    estimator = NOMP(link, {**NOMP.defaults, "false_alarm": stated})
    generator = torch.Generator().manual_seed(7)
    phi = _beams(link, draws, 12, None, generator)
    alarms = estimator.estimate(_noise((draws, phi.shape[0]), generator), phi, 1.0).iterations
    assert alarms is not None
    rate = float((alarms > 0).double().mean())
    deviation = math.sqrt(stated / draws)
    assert 0.4 * stated < rate < stated + 3 * deviation


@pytest.mark.parametrize("chains", [None, 1])
@pytest.mark.parametrize("link", LINKS.values(), ids=LINKS)
def test_two_paths_between_the_points_of_the_grid_are_found_to_the_cramer_rao_bound(
    link: Link, chains: int | None
) -> None:
    """One path where there is but one antenna at each end: there all paths are alike."""
    paths = 2 if PlaneWaves(link).coordinates else 1
    pilots = 64 if chains else 16
    truth = _sparse(link, paths=paths, snr_db=30.0, batch=150, pilots=pilots, chains=chains)
    estimator = NOMP(link, NOMP.defaults)
    found = estimator.estimate(truth.y, truth.phi, truth.noise_var)
    assert found.iterations is not None
    assert float((found.iterations == paths).double().mean()) > 0.85
    assert nmse_db(found.signal, truth.h) < _cramer_rao_db(estimator.waves, truth) + 1.0


def test_a_matrix_gives_what_its_beams_give() -> None:
    truth = _sparse(LINKS["planar"], paths=3, snr_db=10.0)
    estimator = NOMP(LINKS["planar"], NOMP.defaults)
    beams = estimator.estimate(truth.y, truth.phi, truth.noise_var)
    matrix = estimator.estimate(truth.y, truth.phi.materialize(), truth.noise_var)
    assert torch.allclose(matrix.signal, beams.signal, atol=1e-4)


def test_subcarriers_need_beams() -> None:
    truth = _sparse(LINKS["several subcarriers"], paths=1, snr_db=20.0, batch=2)
    with pytest.raises(ValueError, match="phi must be a BeamformingMap of 12 subcarriers"):
        NOMP(LINKS["several subcarriers"], NOMP.defaults).estimate(truth.y, truth.phi.materialize(), truth.noise_var)


def test_delays_are_found_with_the_directions_and_not_mode_by_mode() -> None:
    """On the dense channels of wideband_64x4 that is worth 3 dB."""
    problem = chanest.ChannelProblem(chanest.load_scenario("swomp_32x32"))
    estimator = chanest.get_estimator("nomp", problem)
    assert isinstance(estimator, NOMP)
    batch = problem.sample(3, seed=1, snr_db=10.0)
    assert estimator.nmse_db(batch) < -20.0


def test_paths_are_no_more_than_measurements_can_tell() -> None:
    link = LINKS["planar"]
    generator = torch.Generator().manual_seed(3)
    phi = _beams(link, 20, 6, None, generator)
    y = phi.apply(_noise((20, link.signal_length), generator))
    for density, most in ((0.25, 32.0), (0.5, 32.0), (0.5, 2.0)):
        settings = {**NOMP.defaults, "density": density, "most": most}
        count = NOMP(link, settings).estimate(y, phi, 1e-4).iterations
        assert count is not None
        assert int(count.max()) == min(int(density * 24 / 3), most)


@pytest.mark.parametrize("name", ["planar", "dual polarised", "several subcarriers"])
def test_discs_of_ninety_percent_hold_about_that_at_high_snr(name: str) -> None:
    """Of the entries, and of what other beams would receive, whose errors belong together."""
    truth = _sparse(LINKS[name], paths=2, snr_db=20.0, batch=80)
    found = NOMP(LINKS[name], NOMP.defaults).estimate(truth.y, truth.phi, truth.noise_var)
    probes = _beams(LINKS[name], 80, 6, None, torch.Generator().manual_seed(9))
    through = found.variance_through(probes)
    assert found.variance is not None
    assert through is not None
    errors = found.signal - truth.h
    for variance, error in ((found.variance, errors), (through, probes.apply(errors))):
        inside = error.abs().square() <= math.log(10.0) * variance
        assert 0.8 < float(inside.double().mean()) < 0.96


def test_probes_of_every_entry_give_the_variance() -> None:
    truth = _sparse(LINKS["planar"], paths=2, snr_db=10.0, batch=6)
    found = NOMP(LINKS["planar"], NOMP.defaults).estimate(truth.y, truth.phi, truth.noise_var)
    through = found.variance_through(IdentityMap(64, torch.complex64, torch.device("cpu")))
    assert through is not None
    assert found.variance is not None
    assert torch.allclose(through, found.variance, rtol=1e-4)
