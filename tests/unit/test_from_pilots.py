"""Learning from y and Φ alone: nothing of the truth is read, covariances come out, files say so."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from chanest.bases.site import SiteDraws, learn_site
from chanest.channels.rays import Rays
from chanest.covariances.evidence import SpectralFamily
from chanest.covariances.lags import LagCovariance
from chanest.estimators import estimator_class, estimator_names
from chanest.estimators.product_lmmse import ProductLMMSE
from chanest.fit import Fit
from chanest.networks.spectra import blind_error
from chanest.problem import ChannelBatch, ChannelProblem
from chanest.recordings import RecordedPilots, ScenarioRecordings, recorded_pilots
from chanest.scenario import Scenario
from chanest.weights import get_estimator, provenance
from chanest.weights.training import train_estimator
from vlista_core.draws import Split
from vlista_core.estimate import Measurement
from vlista_core.files import digest
from vlista_core.gaussian import condition
from vlista_core.metrics import nmse_db

ABLE = [name for name in estimator_names() if estimator_class(name).learns_from_pilots]


def _scenario(**changes: object) -> Scenario:
    settings: dict[str, object] = {
        "name": "small",
        "bs": {"rows": 2, "columns": 4, "yaw_spread": 60.0},
        "ue": {"rows": 1, "columns": 2, "yaw": 180.0, "yaw_spread": 180.0},
        "channel": {"models": ["C"]},
        "frontend": {"pilots": 4, "bits": 2},
        "data": {"train": 1200, "validation": 64, "test": 64},
    }
    return Scenario.model_validate({**settings, **changes})


@functools.cache
def _problem() -> ChannelProblem:
    return ChannelProblem(_scenario())


@functools.cache
def _fixed() -> ChannelProblem:
    """A site where arrays do not turn: one covariance tells all."""
    return ChannelProblem(_scenario(bs={"rows": 2, "columns": 4}, ue={"rows": 1, "columns": 2}))


class Poisoned(ChannelProblem):
    """The same y, Φ and noise; who reads the truth gets NaN, rays or an error."""

    def sample(
        self, count: int, *, seed: int, split: Split = "test", start: int = 0, snr_db: float | None = None
    ) -> ChannelBatch:
        batch = super().sample(count, seed=seed, split=split, start=start, snr_db=snr_db)
        return replace(batch, signal=torch.full_like(batch.signal, torch.nan), rays=None)

    def channels(self, count: int, *, seed: int, split: Split = "test", start: int = 0) -> Tensor:
        raise AssertionError("channels were asked for")

    def rays(self, indices: range, *, seed: int, split: Split) -> Rays:
        raise AssertionError("rays were asked for")

    def channels_and_rays(self, indices: range, *, seed: int, split: Split) -> tuple[Tensor, Rays]:
        raise AssertionError("channels and rays were asked for")


def test_there_are_the_five() -> None:
    assert sorted(ABLE) == ["gated-lmmse", "gmm", "lmmse", "product-lmmse", "universal"]


@pytest.mark.parametrize("name", ABLE)
def test_the_truth_is_not_read(name: str, tmp_path: Path) -> None:
    """A poisoned truth changes not a bit of the weights, and leaves no NaN in them."""
    plan, found = Fit(steps=4), []
    for problem in (_problem(), Poisoned(_scenario())):
        folder = tmp_path / type(problem).__name__
        path = train_estimator(name, problem, plan, folder=folder, recordings=ScenarioRecordings(problem))
        found.append(get_estimator(name, _problem(), weights=path, guarded=False).state_dict())
    for key, value in found[0].items():
        assert torch.equal(value, found[1][key]), key
        assert not bool(torch.isnan(value).any()), key


def test_recordings_hold_y_beams_and_noise_alone() -> None:
    recorded = ScenarioRecordings(_problem()).measured(5, seed=1, split="train", start=3)
    batch = _problem().sample(5, seed=1, split="train", start=3)
    assert type(recorded) is Measurement
    assert torch.equal(recorded.y, batch.y)
    assert torch.equal(recorded.noise_var, batch.noise_var)
    assert not any(isinstance(held, ChannelProblem) for held in vars(ScenarioRecordings(_problem())).values())


@pytest.mark.parametrize("name", ABLE)
def test_weights_say_that_they_are_from_pilots_and_have_no_calibration(name: str, tmp_path: Path) -> None:
    path = train_estimator(name, _problem(), Fit(steps=3), folder=tmp_path, recordings=ScenarioRecordings(_problem()))
    said = provenance(path)
    assert path.name == f"small.{name}.safetensors"
    assert said["trained_from"] == "pilots"
    assert isinstance(said["validation_log_evidence"], float)
    assert "validation_nmse_db" not in said
    assert not list(tmp_path.glob("*.calibration.json"))


def test_the_blind_error_of_product_lmmse_is_the_error_and_a_constant() -> None:
    """That of a recording with other noise than the estimate has seen: 1 + 1/a, a = ½, above the error in Φh."""
    batch, estimator = _problem().sample(3000, seed=4), ProductLMMSE.build(_problem())
    measured = Measurement(batch.y, batch.phi, batch.noise_var)
    with torch.no_grad():
        blind = blind_error(estimator, measured, torch.Generator().manual_seed(6))
        noise = torch.randn(batch.y.shape, dtype=batch.y.dtype, generator=torch.Generator().manual_seed(6))
        noisier = batch.y + (0.5 * batch.noise_var).sqrt()[:, None] * noise
        found = estimator.estimate(noisier, batch.phi, 1.5 * batch.noise_var).signal
    wrong = batch.phi.apply(found - batch.signal).abs().square().mean(1) / batch.noise_var
    assert float(blind - wrong.mean()) == pytest.approx(3.0, abs=0.06)
    assert 0.05 < float(wrong.mean()) < 1.0


def test_steps_of_the_powers_raise_the_evidence_and_leave_the_truth_where_it_is() -> None:
    recordings = ScenarioRecordings(_fixed()).measured(600, seed=0, split="train")
    labels, family = torch.zeros(600, dtype=torch.int64), SpectralFamily(*_fixed().arrays, 1)
    evidence = []
    for _ in range(12):
        asked = family.asked(recordings, labels)
        evidence.append(float(asked.log_evidence.mean()))
        family.improve(asked)
    assert all(after > before - 1e-3 for before, after in itertools.pairwise(evidence))
    assert float(family.powers.sum()) == pytest.approx(1.0, abs=0.1)


def test_the_covariance_of_a_site_is_learned_as_from_its_channels() -> None:
    """0.3 dB from the LMMSE estimate of the covariance of 1,200 channels, and far from that of equal directions."""
    problem, test = _fixed(), _fixed().sample(300, seed=1, snr_db=10.0)
    fitted = {}
    for kind in ("channels", "pilots"):
        estimator = estimator_class("lmmse").build(problem)
        if kind == "channels":
            estimator.fit(problem, Fit(steps=20))
        else:
            estimator.fit_from_pilots(ScenarioRecordings(problem), Fit(steps=20))
        fitted[kind] = estimator.nmse_db(test)
    family = SpectralFamily(*problem.arrays, 1)
    flat = LagCovariance(family.tables(), family.layout)
    equal = nmse_db(condition(flat, Measurement(test.y, test.phi, test.noise_var)).mean, test.signal)
    assert fitted["pilots"] < fitted["channels"] + 0.3
    assert fitted["pilots"] < equal - 1.5


def test_a_mixture_from_pilots_is_better_than_one_covariance_and_near_the_one_from_channels() -> None:
    problem, test = _problem(), _problem().sample(300, seed=1, snr_db=15.0)
    levels = {}
    for name, pilots in (("lmmse", True), ("gmm", True), ("gmm", False)):
        estimator = estimator_class(name).build(problem)
        if pilots:
            estimator.fit_from_pilots(ScenarioRecordings(problem), Fit(steps=30))
        else:
            estimator.fit(problem, Fit(steps=30))
        levels[name, pilots] = estimator.nmse_db(test)
    assert levels["gmm", True] < levels["lmmse", True] - 0.3
    assert levels["gmm", True] < levels["gmm", False] + 0.5


def test_channels_drawn_from_a_site_have_the_covariances_of_their_classes() -> None:
    site = learn_site(ScenarioRecordings(_problem()), 3, Fit(steps=20))
    pool = SiteDraws(site, 12_000, seed=0)
    for k, table in enumerate(site.family.tables()):
        own = pool.channels[pool.classes == k]
        expected = site.family.layout.matrix(table[None])[0]
        assert float((own.mT @ own.conj() / len(own) - expected).norm() / expected.norm()) < 0.15
    index, signal, measured = pool.pairs(50, seed=0, number=3)
    assert torch.equal(signal, pool.channels[index])
    noise = (measured.y - measured.phi.apply(signal)).abs().square().mean(1) / measured.noise_var
    assert 0.8 < float(noise.mean()) < 1.2
    assert torch.equal(pool.pairs(50, seed=0, number=3)[2].y, measured.y)


def _own(unit: float, count: int = 600) -> RecordedPilots:
    batch = _problem().sample(count, seed=0, split="train")
    transmit = batch.phi.tensors()[0]
    return recorded_pilots(_problem(), unit * batch.y, transmit, unit**2 * batch.noise_var)


def test_recordings_of_your_own_are_scaled_and_learned_from(tmp_path: Path) -> None:
    own = _own(1e-4)
    assert own.unit == pytest.approx(1e-4, rel=0.1)
    assert own.available("train") == 480
    assert own.available("validation") == own.available("test") == 60
    path = train_estimator("gmm", _problem(), Fit(steps=12), folder=tmp_path, recordings=own)
    test = _problem().sample(200, seed=1, snr_db=15.0)
    assert get_estimator("gmm", _problem(), weights=path).nmse_db(test) < -8.0


def test_the_splits_of_recordings_of_your_own_share_none() -> None:
    own, seen = _own(1.0, 40), set()
    for split, size in (("train", 32), ("validation", 4), ("test", 4)):
        rows = own.measured(2 * size, seed=0, split=split).y  # type: ignore[arg-type]
        assert torch.equal(rows[:size], rows[size:])
        seen |= {digest([float(value) for value in row.real]) for row in rows}
    assert len(seen) == 40


def test_what_cannot_learn_from_pilots_is_told_what_can(tmp_path: Path) -> None:
    problem, recordings = _problem(), ScenarioRecordings(_problem())
    with pytest.raises(ValueError, match="omp cannot learn from pilots alone; those that can are lmmse, gmm, gated"):
        train_estimator("omp", problem, Fit(steps=2), folder=tmp_path, recordings=recordings)
    dual = ChannelProblem(_scenario(bs={"rows": 2, "columns": 4, "polarization": "cross"}))
    with pytest.raises(ValueError, match="from pilots alone lmmse learns channels of one subcarrier and one polarisa"):
        train_estimator("lmmse", dual, Fit(steps=2), folder=tmp_path, recordings=ScenarioRecordings(dual))
    other = ChannelProblem(_scenario(bs={"rows": 4, "columns": 4}))
    with pytest.raises(ValueError, match="recordings must be between the arrays of small"):
        train_estimator("lmmse", problem, Fit(steps=2), folder=tmp_path, recordings=ScenarioRecordings(other))
    with pytest.raises(ValueError, match="there is nothing to start from"):
        train_estimator("gmm", problem, Fit(steps=2), start_from=tmp_path / "a", recordings=recordings)


def test_bad_recordings_are_named() -> None:
    batch = _problem().sample(20, seed=0)
    transmit = batch.phi.tensors()[0]
    with pytest.raises(ValueError, match="beams must have 8 rows, the antennas that send, got 7"):
        recorded_pilots(_problem(), batch.y, transmit[:, :7], batch.noise_var)
    with pytest.raises(ValueError, match="y must have at least 10 recordings, got 5"):
        recorded_pilots(_problem(), batch.y[:5], transmit[:5], batch.noise_var[:5])
    with pytest.raises(ValueError, match="noise_var must be below the mean power of y"):
        recorded_pilots(_problem(), batch.y, transmit, 100 + batch.noise_var)
    with pytest.raises(ValueError, match="y must be finite"):
        recorded_pilots(_problem(), batch.y * torch.nan, transmit, batch.noise_var)
