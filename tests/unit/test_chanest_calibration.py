"""Calibrated variances: exact where the truth is Gaussian, tied to their weights, and intervals that keep their promise."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import chanest.studies.coverage
from chanest.bases.estimator import ChannelEstimator
from chanest.estimators.lmmse import LMMSE
from chanest.estimators.ls import LS
from chanest.fit import Fit
from chanest.problem import ChannelBatch, ChannelProblem
from chanest.scenario import ArraySection, CdlSection, DataSection, FrontendSection, Scenario
from chanest.studies.coverage import CoverageStudy
from chanest.uncertainty.calibrating import KNOTS_DB, LEVELS, SNRS_DB, Draws, calibrate, conformal_intervals
from chanest.uncertainty.calibration import Calibration, hats
from chanest.uncertainty.estimate import ChannelEstimate
from chanest.weights import calibration_file, get_estimator, weights_file
from chanest.weights.training import calibrate_estimator, save_estimator, train_estimator
from vlista_core.draws import Split
from vlista_core.estimate import Estimate, Measurement, estimated
from vlista_core.gaussian import DenseCovariance, condition
from vlista_core.linops import LinearMap, as_map
from vlista_core.metrics import coverage
from vlista_core.study import Cell, Context, Provenance, Record, frame

N, M = 16, 12
SCENARIO = Scenario(
    name="small",
    bs=ArraySection(rows=2, columns=4, yaw_spread=60.0),
    ue=ArraySection(rows=1, columns=2, yaw=180.0, yaw_spread=180.0),
    channel=CdlSection(models=("C",)),
    frontend=FrontendSection(pilots=6),
    data=DataSection(train=400, validation=64, test=64),
)


class Gaussian(ChannelProblem):
    """h ~ CN(0, I) through Gaussian beams: the posterior is known in closed form."""

    def sample(
        self, count: int, *, seed: int, split: Split = "test", start: int = 0, snr_db: float | None = None
    ) -> ChannelBatch:
        generator = torch.Generator().manual_seed(1_000_003 * seed + 10 * start + len(split))
        signal = torch.randn(count, N, dtype=self.dtype, generator=generator)
        phi = as_map(torch.randn(count, M, N, dtype=self.dtype, generator=generator) / math.sqrt(N))
        noise_var = torch.full((count,), 10 ** (-(10.0 if snr_db is None else snr_db) / 10))
        noise = torch.randn(count, M, dtype=self.dtype, generator=generator)
        return ChannelBatch(signal, phi.apply(signal) + noise_var.sqrt()[:, None] * noise, phi, noise_var)


class TooSure(LMMSE):
    """The right mean with a third of the right variance."""

    def spread(self, measured: Measurement, found: Estimate, probes: LinearMap | None) -> Tensor:
        return super().spread(measured, found, probes) / 3


class Silent(LMMSE):
    """The right mean without a variance."""

    def spread(self, measured: Measurement, found: Estimate, probes: LinearMap | None) -> Tensor:
        return None  # type: ignore[return-value]


@cache
def _gaussian() -> Gaussian:
    return Gaussian(SCENARIO)


def _exact(cls: type[LMMSE]) -> LMMSE:
    estimator = cls(*_gaussian().arrays, signal_length=N, rank=N)
    estimator.factor = torch.eye(N, dtype=torch.complex64)
    return estimator.eval()


@cache
def _calibrated(cls: type[LMMSE]) -> LMMSE:
    estimator = _exact(cls)
    estimator.calibration = calibrate(estimator, _gaussian(), weights="none", channels=400)
    return estimator


def _calibration(estimator: ChannelEstimator) -> Calibration:
    assert estimator.calibration is not None
    return estimator.calibration


def test_an_exact_posterior_is_left_as_it_is_and_one_that_is_too_sure_is_mended() -> None:
    """The factor has a deviation of about 0.03 at a knot, from some 400 draws of 16 entries."""
    exact, sure = _calibration(_calibrated(LMMSE)), _calibration(_calibrated(TooSure))
    assert exact.uses_raw
    assert sure.uses_raw
    assert exact.log_scale == pytest.approx([0.0] * len(KNOTS_DB), abs=0.1)
    assert sure.log_scale == pytest.approx([value + math.log(3) for value in exact.log_scale], abs=1e-3)


@pytest.mark.parametrize("cls", [LMMSE, TooSure, Silent])
@pytest.mark.parametrize("snr_db", [-10.0, 7.0, 30.0])
def test_intervals_cover_fresh_draws(cls: type[LMMSE], snr_db: float) -> None:
    """1,000 channels: a share of 0.9 deviates by about 0.006, from the calibration draws and from these."""
    batch = _gaussian().sample(1000, seed=9, split="test", snr_db=snr_db)
    out = _calibrated(cls).estimate(batch.y, batch.phi, batch.noise_var)
    assert out.variance is not None
    assert coverage(out.signal, out.variance, batch.signal, 0.9) == pytest.approx(0.9, abs=0.025)
    inside = (out.signal - batch.signal).abs() <= out.interval(0.9)
    assert 0.885 <= float(inside.double().mean()) <= 0.925


def test_a_table_finds_the_mean_of_the_posterior_variance() -> None:
    assert not _calibration(_calibrated(Silent)).uses_raw
    for snr_db in (0.0, 15.0):
        batch = _gaussian().sample(1000, seed=9, split="test", snr_db=snr_db)
        exact = _exact(LMMSE).estimate(batch.y, batch.phi, batch.noise_var).variance
        found = _calibrated(Silent).estimate(batch.y, batch.phi, batch.noise_var).variance
        assert exact is not None
        assert found is not None
        assert float(found.mean() / exact.mean()) == pytest.approx(1.0, abs=0.06)


def test_conformal_intervals_keep_their_promise_where_channels_differ_and_errors_are_not_gaussian() -> None:
    """Mean coverage over many calibrations of 20 channels each: at least the level, as the plain quantile is not."""
    generator = torch.Generator().manual_seed(0)
    channels, level, corrected, plain = 20, 0.9, [], []
    for _ in range(120):

        def scores(count: int) -> Tensor:
            scale = torch.randn(len(SNRS_DB) * count, 1, dtype=torch.float64, generator=generator).mul(1.2).exp()
            return scale * torch.rand(len(SNRS_DB) * count, 5, dtype=torch.float64, generator=generator).square()

        seen, fresh = scores(channels), scores(50)
        snr = torch.tensor(SNRS_DB, dtype=torch.float64).repeat_interleave(channels)
        found = conformal_intervals(Draws(seen, None, snr, {}), torch.ones_like(seen))
        column = found.levels.index(level)
        for number, radii in enumerate(found.squared_radius):
            here = fresh[number * 50 : number * 50 + 50]
            corrected.append(float((here <= radii[column]).double().mean()))
            own = seen[number * channels : (number + 1) * channels].flatten()
            plain.append(float((here <= own.quantile(level)).double().mean()))
    mean = sum(corrected) / len(corrected)
    assert level - 0.004 <= mean <= level + 1 / channels + 0.01
    assert sum(plain) / len(plain) < level - 0.002


def test_levels_that_too_few_channels_cannot_promise_are_not_offered() -> None:
    intervals = _calibration(_calibrated(LMMSE)).intervals
    assert intervals.channels == 200
    assert intervals.levels == LEVELS
    seen = torch.rand(9 * 30, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    snr = torch.tensor(SNRS_DB, dtype=torch.float64).repeat_interleave(30)
    assert max(conformal_intervals(Draws(seen, None, snr, {}), torch.ones_like(seen)).levels) == 0.95
    batch = _gaussian().sample(2, seed=9)
    with pytest.raises(ValueError, match=r"level must lie between 0 and 0\.99"):
        _calibrated(LMMSE).estimate(batch.y, batch.phi, batch.noise_var).interval(0.995)
    with pytest.raises(ValueError, match="no calibrated intervals"):
        _exact(LMMSE).estimate(batch.y, batch.phi, batch.noise_var).interval(0.9)


@pytest.mark.parametrize("cls", [LMMSE, Silent])
def test_variance_through_beams_is_that_of_the_whole_covariance(cls: type[LMMSE]) -> None:
    batch, estimator = _gaussian().sample(3, seed=4, snr_db=10.0), _calibrated(cls)
    beams = torch.randn(3, 5, N, dtype=torch.complex64, generator=torch.Generator().manual_seed(1))
    out = estimator.estimate(batch.y, batch.phi, batch.noise_var)
    got = out.variance_through(as_map(beams))
    if cls is Silent:
        assert out.variance is not None
        covariance = torch.diag_embed(out.variance).to(torch.complex128)
    else:
        phi = batch.phi.materialize().to(torch.complex128)
        total = phi @ phi.mH + batch.noise_var[:, None, None] * torch.eye(phi.shape[1])
        scale = _calibration(estimator).scale(estimator.checked(batch.y, batch.phi, batch.noise_var), out)
        covariance = torch.eye(N) - phi.mH @ torch.cholesky_inverse(torch.linalg.cholesky(total)) @ phi
        covariance = scale[:, None, None] * covariance
    rows = beams.to(torch.complex128)
    expected = (rows @ covariance @ rows.mH).diagonal(dim1=1, dim2=2).real.float()
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(out.variance_through(as_map(torch.eye(N, dtype=torch.complex64))), out.variance)


@pytest.mark.parametrize("cls", [LMMSE, Silent])
def test_variances_do_not_depend_on_the_batch_and_need_no_noise_level(cls: type[LMMSE]) -> None:
    batch, estimator = _gaussian().sample(7, seed=4), _calibrated(cls)
    whole = estimator.estimate(batch.y, batch.phi, batch.noise_var)
    one = batch.select(torch.tensor([5]))
    alone = estimator.estimate(one.y, one.phi, one.noise_var)
    assert whole.variance is not None
    torch.testing.assert_close(alone.variance, whole.variance[5:6], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(alone.interval(0.9), whole.interval(0.9)[5:6], rtol=1e-4, atol=1e-6)
    for noise_var in (None, 0.0, 1e-30, 1e10):
        for y in (batch.y, torch.zeros_like(batch.y)):
            out = estimator.estimate(y, batch.phi, noise_var)
            assert out.variance is not None
            assert bool((torch.isfinite(out.variance) & (out.variance >= 0)).all())
            assert bool(torch.isfinite(out.interval(0.5)).all())


def test_an_estimate_costs_nothing_more_until_its_variance_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    scale = Calibration.scale

    def counted(*arguments: Any) -> Tensor:
        calls.append(1)
        return scale(*arguments)

    monkeypatch.setattr(Calibration, "scale", counted)
    batch = _gaussian().sample(2, seed=4)
    out = estimated("silent", _calibrated(Silent), batch)
    assert not calls
    assert isinstance(out, ChannelEstimate)
    assert out.variance is out.variance
    assert len(calls) == 1


def test_between_the_knots_is_linear_and_beyond_them_constant() -> None:
    weights = hats((-10.0, 0.0, 20.0), torch.tensor([-50.0, -10.0, -5.0, 0.0, 5.0, 20.0, 300.0]))
    expected = [[1, 0, 0], [1, 0, 0], [0.5, 0.5, 0], [0, 1, 0], [0, 0.75, 0.25], [0, 0, 1], [0, 0, 1]]
    torch.testing.assert_close(weights, torch.tensor(expected, dtype=torch.float32))


def test_radius_at_a_calibrated_snr_is_its_own_and_between_two_the_larger() -> None:
    found = _calibration(_calibrated(LMMSE))
    row = {snr: values[LEVELS.index(0.9)] for snr, values in zip(SNRS_DB, found.intervals.squared_radius, strict=True)}
    noise = torch.tensor([10 ** (-snr / 10) for snr in (-40.0, 5.0, 7.0, 99.0)])
    expected = torch.tensor([row[-10.0], row[5.0], max(row[5.0], row[10.0]), row[30.0]]).sqrt()
    torch.testing.assert_close(found.radius(0.9, noise), expected)
    torch.testing.assert_close(found.radius(0.87, noise), expected)


def test_a_calibration_of_other_weights_or_another_front_end_is_not_used(tmp_path: Path) -> None:
    problem = ChannelProblem(SCENARIO)
    path = tmp_path / weights_file("lmmse", "small")
    save_estimator(_exact(LMMSE), problem, path, facts={})
    written = calibrate_estimator("lmmse", problem, weights=path, channels=32, folder=tmp_path)
    assert written.name == calibration_file("lmmse", "small")
    assert get_estimator("lmmse", problem, weights=path).calibration == Calibration.read(written)
    fewer = SCENARIO.model_copy(update={"frontend": FrontendSection(pilots=5)})
    assert get_estimator("lmmse", ChannelProblem(fewer), weights=path).calibration is None
    other = _exact(LMMSE)
    other.floor = torch.tensor(0.5)
    save_estimator(other, problem, path, facts={})
    assert get_estimator("lmmse", problem, weights=path).calibration is None


def test_training_calibrates(tmp_path: Path) -> None:
    problem = ChannelProblem(SCENARIO)
    path = train_estimator("lmmse", problem, Fit(steps=4), folder=tmp_path)
    calibration = get_estimator("lmmse", problem, weights=path).calibration
    assert calibration is not None
    assert calibration.provenance["channels"] == 32
    assert calibration.provenance["split"] == "validation"


def test_what_needs_no_weights_can_be_calibrated_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHANEST_WEIGHTS", str(tmp_path))
    problem = ChannelProblem(SCENARIO)
    assert get_estimator("ls", problem).calibration is None
    path = calibrate_estimator("ls", problem, channels=32)
    estimator = get_estimator("ls", problem)
    batch = problem.sample(2, seed=1)
    assert isinstance(estimator, LS)
    assert estimator.estimate(batch.y, batch.phi).variance is not None
    content = json.loads(path.read_text())
    del content["digest"]
    path.write_text(json.dumps({**content, "profile": [1.0, 1.0]}))
    with pytest.raises(ValueError, match="profile of 2 entries for channels of 16"):
        get_estimator("ls", problem)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format"),
        ({"surprise": 1}, "surprise"),
        ({"log_scale": [0.0]}, "one number for each of 5 knots"),
        ({"snr_db": [0, 10, 10, 20, 30]}, "ascending"),
        ({"profile": [1.0, -1.0]}, "positive"),
        ({"weights": None}, "weights"),
        ({"log_scale": "high"}, "log_scale"),
    ],
)
def test_bad_files_are_named_in_one_sentence(change: dict[str, object], message: str, tmp_path: Path) -> None:
    path = tmp_path / "some.calibration.json"
    good = _calibration(_calibrated(LMMSE))
    good.write(path)
    assert Calibration.read(path) == good
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ValueError, match=message) as fault:
        Calibration.read(path)
    assert str(path) in str(fault.value)
    assert "\n" not in str(fault.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00\xff", '{"format": 1}', "NaN"])
def test_a_file_that_is_no_calibration_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "some.calibration.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match="is no calibration of this version"):
        Calibration.read(path)


def test_too_few_channels_are_refused() -> None:
    with pytest.raises(ValueError, match="integer of at least 32"):
        calibrate(_exact(LMMSE), _gaussian(), weights="none", channels=31)


def test_a_covariance_that_rounding_has_made_indefinite_still_leaves_something_open() -> None:
    direction = torch.ones(1, 4, dtype=torch.complex64)
    covariance = (direction.mT @ direction)[None].clone()
    covariance[0, 0, 0] -= 1e-3  # Less than nothing is left of the first entry.
    measured = Measurement.checked(torch.ones(1, 4, dtype=torch.complex64), torch.eye(4, dtype=torch.complex64), 1e-4)
    variance = condition(DenseCovariance(covariance), measured).variance
    assert bool((variance > 0).all())
    assert float(variance.min() / variance.mean()) == pytest.approx(1e-2, rel=0.2)


class _Broken:
    """A stand-in for an estimator without a calibration: zero, with a NaN in one estimate and an Inf in one variance."""

    calibration = None

    def estimate(self, y: Tensor, phi: LinearMap, noise_var: Tensor) -> ChannelEstimate:
        signal = y.new_zeros(len(y), phi.shape[1])
        variance = torch.ones_like(signal.real)
        signal[1, 0], variance[2, 0] = math.nan, math.inf
        return ChannelEstimate(Estimate(signal), lambda probes: variance)


def test_variances_that_are_not_finite_are_counted_and_cover_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chanest.studies.coverage, "load", lambda *_: (_Broken(), {}))
    study = CoverageStudy(scenario=SCENARIO, estimators=("ls",), snr_db=(10.0,), channels=5)
    cell: Cell = {"name": "ls", "snr_db": 10.0}
    row = study.run(cell, Context(tmp_path))
    assert json.loads(json.dumps(row, allow_nan=False)) == row
    rows = frame([Record(cell=cell, row=row, provenance=Provenance())])
    (table,) = study.tables(rows)
    assert table.lines == [("ls", "own", *["–"] * 7, "diverged (2)")]
    (figure,) = study.figures(rows, tmp_path)
    assert figure.path.read_bytes().startswith(b"\x89PNG")
