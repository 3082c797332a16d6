"""The sparse channel estimators: what sets each apart, how they are tuned, and what their files hold."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from chanest.arrays import Array, Polarization
from chanest.bases.grid import GridEstimator
from chanest.covariances.grid import GridCovariance
from chanest.dictionaries import KroneckerMap, Link, angular_dictionary
from chanest.estimators import estimator_class
from chanest.estimators.omp import OMPEstimator
from chanest.estimators.sbl import SBL
from chanest.estimators.somp import SOMPEstimator, one_subcarrier
from chanest.estimators.sw_omp import SWOMPEstimator
from chanest.fit import Fit
from chanest.frontend import BeamformingMap, whitened_measurement
from chanest.problem import ChannelBatch, ChannelProblem
from chanest.scenario import ArraySection, CdlSection, FrontendSection, PathSection, Scenario, load_scenario
from chanest.weights import get_estimator, provenance
from chanest.weights.training import train_estimator
from vlista_core.estimate import Measurement
from vlista_core.metrics import nmse_db, squared_error_ratios

SPARSE = ("omp", "somp", "sw-omp", "fista", "amp", "vamp", "sbl", "nomp", "bcs")


def _small(**changes: object) -> ChannelProblem:
    content: dict[str, object] = {
        "name": "small",
        "bs": ArraySection(rows=2, columns=4, yaw_spread=60.0),
        "ue": ArraySection(rows=1, columns=2, yaw=180.0, yaw_spread=180.0),
        "channel": CdlSection(models=("D",)),
        "frontend": FrontendSection(pilots=6),
    }
    return ChannelProblem(Scenario.model_validate({**content, **changes}))


@cache
def _wideband() -> ChannelProblem:
    return _small(
        bs=ArraySection(rows=1, columns=16),
        ue=ArraySection(rows=1, columns=4),
        channel=PathSection(kind="paths", paths=2, taps=4, subcarriers=8),
        frontend=FrontendSection(pilots=10),
    )


def _nmse(estimator: GridEstimator, batch: ChannelBatch) -> float:
    return nmse_db(estimator.estimate(batch.y, batch.phi, batch.noise_var).signal, batch.signal)


def _on_grid(problem: ChannelProblem, atoms: int, *, noise_var: float) -> tuple[Tensor, Tensor, BeamformingMap]:
    """Channels of a few atoms of the critical grid, with the beams of the problem: signal, y, Φ."""
    batch = problem.sample(16, seed=5, snr_db=0.0)
    dictionary = angular_dictionary(*problem.arrays)
    generator = torch.Generator().manual_seed(0)
    code = torch.zeros(16, dictionary.shape[1], dtype=torch.complex64)
    for row in code:
        place = torch.randperm(code.shape[1], generator=generator)[:atoms]
        row[place] = 3 * torch.randn(atoms, dtype=code.dtype, generator=generator)
    signal = dictionary.apply(code)
    noise = math.sqrt(noise_var) * torch.randn(batch.y.shape, dtype=code.dtype, generator=generator)
    assert isinstance(batch.phi, BeamformingMap)
    return signal, batch.phi.apply(signal) + noise, batch.phi


@pytest.mark.parametrize("name", SPARSE)
def test_one_path_on_the_grid_is_found(name: str) -> None:
    problem = _small(bs=ArraySection(rows=1, columns=16), frontend=FrontendSection(pilots=12))
    signal, y, phi = _on_grid(problem, 1, noise_var=1e-3)
    estimator = estimator_class(name).build(problem)
    assert isinstance(estimator, GridEstimator)
    estimator.settings |= {"oversampling": 1.0}
    if name == "sbl":
        estimator.settings |= {"coupling": 0.0}
    errors = squared_error_ratios(estimator.estimate(y, phi, 1e-3).signal, signal)
    assert float(errors.median()) < (0.1 if name == "amp" else 0.02)


def test_somp_of_one_subcarrier_is_omp() -> None:
    problem = _small()
    batch = problem.sample(20, seed=2, snr_db=10.0)
    omp, somp = OMPEstimator.build(problem), SOMPEstimator.build(problem)
    somp.settings = dict(omp.settings)
    expected = omp.estimate(batch.y, batch.phi, batch.noise_var)
    got = somp.estimate(batch.y, batch.phi, batch.noise_var)
    assert torch.allclose(got.signal, expected.signal, atol=1e-4)
    assert got.iterations is not None
    assert expected.iterations is not None
    assert torch.equal(got.iterations, expected.iterations)


def test_a_shared_support_beats_a_support_for_each_subcarrier_at_low_snr() -> None:
    problem = _wideband()
    batch = problem.sample(24, seed=1, snr_db=-5.0)
    somp = SOMPEstimator.build(problem)
    one = OMPEstimator(Link(*problem.arrays), somp.settings)
    assert isinstance(batch.phi, BeamformingMap)
    single = one_subcarrier(batch.phi, problem.subcarriers)
    alone = torch.cat([one.estimate(y, single, batch.noise_var).signal for y in batch.y.chunk(8, dim=1)], dim=1)
    assert _nmse(somp, batch) < nmse_db(alone, batch.signal) - 2.0


@pytest.mark.parametrize("name", ["swomp_32x32", "wideband_64x4"])
def test_joint_pursuits_run_on_the_wideband_scenarios(name: str) -> None:
    problem = ChannelProblem(load_scenario(name))
    batch = problem.sample(1, seed=1, snr_db=10.0)
    for cls in (SOMPEstimator, SWOMPEstimator):
        estimator = cls.build(problem)
        estimator.settings |= {"oversampling": 1.5, "density": 0.2}
        assert _nmse(estimator, batch) < -1.0


def test_a_wideband_pursuit_needs_to_know_the_subcarriers() -> None:
    problem = _wideband()
    batch = problem.sample(1, seed=1)
    with pytest.raises(ValueError, match="phi must be a BeamformingMap of 8 subcarriers"):
        SOMPEstimator.build(problem).estimate(batch.y, batch.phi.materialize(), batch.noise_var)


def _coloured(*, whiten: bool) -> ChannelProblem:
    frontend = FrontendSection(pilots=10, chains=3, whiten=whiten)
    return _small(ue=ArraySection(rows=1, columns=4, yaw=180.0, yaw_spread=180.0), frontend=frontend)


def test_sw_omp_whitens_what_the_front_end_has_not() -> None:
    plain, white = (_coloured(whiten=whiten).sample(6, seed=4, snr_db=10.0) for whiten in (False, True))
    done = whitened_measurement(Measurement(plain.y, plain.phi, plain.noise_var))
    assert torch.allclose(done.y, white.y, atol=1e-5)
    assert torch.allclose(done.phi.materialize(), white.phi.materialize(), atol=1e-5)
    estimator = SWOMPEstimator.build(_coloured(whiten=False))
    got = estimator.estimate(plain.y, plain.phi, plain.noise_var).signal
    assert torch.allclose(got, estimator.estimate(white.y, white.phi, white.noise_var).signal, atol=1e-4)
    somp = SOMPEstimator(estimator.link, estimator.settings)
    assert not torch.allclose(got, somp.estimate(plain.y, plain.phi, plain.noise_var).signal, atol=1e-4)


def test_sw_omp_finds_the_noise_of_a_wideband_measurement() -> None:
    problem = _wideband()
    estimator = SWOMPEstimator.build(problem)
    for snr_db in (0.0, 10.0):
        batch = problem.sample(16, seed=6, snr_db=snr_db)
        found = estimator.unknown_noise(batch.y, batch.phi)
        assert abs(10 * math.log10(float(found.median())) + snr_db) < 2.0


def test_coupled_angles_pay_off_on_clusters() -> None:
    problem = ChannelProblem(load_scenario("cdl_c_upa64x4"))
    batch = problem.sample(8, seed=1, split="validation", snr_db=20.0)
    coupled = SBL.build(problem)
    plain = SBL(coupled.link, {**coupled.settings, "coupling": 0.0})
    assert _nmse(coupled, batch) < _nmse(plain, batch) - 1.5


def test_coupling_keeps_the_total_and_goes_round() -> None:
    estimator = SBL(Link(*_small().arrays), {**SBL.defaults, "oversampling": 1.0, "coupling": 0.5})
    variances = torch.zeros(1, 16)
    variances[0, 0] = 1.0
    spread = estimator.coupled(variances).reshape(4, 2, 2)
    assert float(spread.sum()) == pytest.approx(1.0)
    assert float(spread[3, 0, 0]) == pytest.approx(float(spread[1, 0, 0]))
    assert float(spread[2, 0, 0]) == 0.0


@pytest.mark.parametrize("polarization", ["V", "cross"])
def test_lags_stand_for_the_dictionary(polarization: Polarization) -> None:
    rx, tx = Array(1, 2, polarization=polarization), Array(2, 3)
    link = Link(rx, tx, (-1e6, 0.0, 1e6))
    dictionary = angular_dictionary(rx, tx, link.frequencies, oversampling=1.5).cast(torch.complex128)
    psi = dictionary.materialize()[0]
    generator = torch.Generator().manual_seed(0)
    variances = torch.rand(2, psi.shape[1], generator=generator, dtype=torch.float64)
    prior = GridCovariance.of(variances, link, dictionary)
    assert torch.allclose(prior.materialize(), (psi * variances[:, None, :]) @ psi.mH, atol=1e-12)
    half = torch.randn(2, len(psi), len(psi), generator=generator, dtype=torch.complex128)
    matrix = half @ half.mH
    expected = (psi.conj() * (matrix @ psi)).sum(1).real
    assert torch.allclose(prior.quadratic_forms(matrix), expected, atol=1e-9)


def test_sbl_refuses_a_covariance_that_is_too_large() -> None:
    """Where subcarriers are not measured alike, so that they cannot be taken in delay modes."""
    problem = ChannelProblem(load_scenario("comb_64x4"))
    with pytest.raises(ValueError, match=f"n at most 4096; comb_64x4 has n = {problem.signal_length}"):
        SBL.check(problem)


def test_sbl_variance_is_that_of_the_posterior() -> None:
    """Against ψ(Γ - ΓAᴴ(AΓAᴴ + σ²I)⁻¹AΓ)ψᴴ in double precision, with no iteration: Γ is a multiple of I."""
    problem = _small()
    batch = problem.sample(2, seed=1, snr_db=10.0)
    estimator = SBL(Link.of(problem), {**SBL.defaults, "iterations": 0, "noise_factor": 1.0})
    psi = estimator.grid().materialize()[0].to(torch.complex128)
    got = estimator.estimate(batch.y, batch.phi, batch.noise_var)
    assert got.variance is not None
    for i, phi in enumerate(batch.phi.materialize().to(torch.complex128)):
        a = phi @ psi
        gamma = batch.y[i].abs().square().sum().double() / a.abs().square().sum()
        identity = torch.eye(len(a), dtype=a.dtype)
        gain = gamma * torch.cholesky_solve(
            a, torch.linalg.cholesky(gamma * a @ a.mH + batch.noise_var[i].double() * identity)
        )
        covariance = psi @ (gamma * torch.eye(len(psi.mT), dtype=a.dtype) - gamma * gain.mH @ a) @ psi.mH
        assert torch.allclose(got.variance[i].double(), covariance.diagonal().real, rtol=1e-3)


@pytest.mark.parametrize("name", SPARSE)
def test_tuning_helps_keeps_to_its_steps_and_goes_to_a_small_file(name: str, tmp_path: Path) -> None:
    problem = _small()
    told: list[float] = []
    plan = Fit(steps=4, report=lambda share, words: told.append(share))
    path = train_estimator(name, problem, plan, folder=tmp_path)
    facts = provenance(path)
    assert path.stat().st_size < 4096
    assert told == sorted(told)
    assert max(told) <= 1.0
    estimator = get_estimator(name, problem, weights=path)
    assert isinstance(estimator, GridEstimator)
    assert estimator.settings == facts["settings"]
    count = facts["validation_channels"]
    assert isinstance(count, int)
    draws = [problem.sample(count, seed=0, split="validation", snr_db=snr) for snr in (0.0, 10.0, 20.0)]
    tuned = sum(_nmse(estimator, batch) for batch in draws) / 3
    assert tuned == pytest.approx(facts["validation_nmse_db"], abs=1e-3)
    untuned = estimator_class(name).build(problem)
    assert isinstance(untuned, GridEstimator)
    assert tuned <= sum(_nmse(untuned, batch) for batch in draws) / 3 + 1e-6


def test_the_grid_of_a_file_is_that_of_the_problem() -> None:
    for problem in (_small(), _wideband()):
        estimator = OMPEstimator.from_configuration(OMPEstimator.build(problem).configuration())
        expected = problem.dictionary(oversampling=2.0)
        got = estimator.grid()
        assert isinstance(got, KroneckerMap)
        assert len(got.factors) == len(expected.factors)
        for mine, theirs in zip(got.factors, expected.factors, strict=True):
            assert torch.equal(mine, theirs)


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = _small()
    batch = problem.sample(7, seed=2, snr_db=10.0)
    estimator = SBL.build(problem)
    whole = estimator.estimate(batch.y, batch.phi, batch.noise_var)
    monkeypatch.setattr(SBL, "chunk_bytes", 1)
    parts = estimator.estimate(batch.y, batch.phi, batch.noise_var)
    assert torch.allclose(parts.signal, whole.signal, atol=1e-5)
    assert parts.variance is not None
    assert whole.variance is not None
    assert torch.allclose(parts.variance, whole.variance, atol=1e-5)


@pytest.mark.parametrize("name", ["omp", "somp", "sw-omp", "nomp", "bcs"])
def test_dft_beams_that_miss_half_the_grid_break_nothing(name: str) -> None:
    """Columns that the beams do not see once had norms of 1e-8 and were divided by: +280 dB, or NaN."""
    content = load_scenario("cdl_c_upa64x4").model_dump()
    content["frontend"] |= {"beams": "dft", "pilots": 32}
    problem = ChannelProblem(Scenario.model_validate(content))
    batch = problem.sample(20, seed=1, snr_db=10.0)
    found = get_estimator(name, problem).estimate(batch.y, batch.phi, batch.noise_var)
    assert nmse_db(found.signal, batch.signal) < 0.0
