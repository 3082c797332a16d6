"""The posterior of a frame as the prior of the next."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from chanest import ChannelProblem, get_estimator, load_scenario
from chanest.bases.family import FamilyEstimator
from chanest.evaluation.tracking import Tracking, evaluate_tracking
from chanest.problem import ChannelBatch
from chanest.tracking import Tracker, track
from vlista_core.metrics import nmse_db

FRAMES = 10


@pytest.fixture(scope="module")
def problem() -> ChannelProblem:
    return ChannelProblem(load_scenario("mobile_64x4"))


@pytest.fixture(scope="module")
def estimator(problem: ChannelProblem) -> FamilyEstimator:
    found = get_estimator("a-dlista+", problem, trained_on="cdl_c_upa64x4")
    assert isinstance(found, FamilyEstimator)
    return found


@pytest.fixture(scope="module")
def batch(problem: ChannelProblem) -> ChannelBatch:
    return problem.sample(12 * FRAMES, seed=1, split="test", snr_db=0.0)


def _frame(batch: ChannelBatch, frame: int) -> tuple[Tensor, object, Tensor]:
    now = torch.arange(frame, len(batch), FRAMES)
    return batch.y[now], batch.phi.select(now), batch.noise_var[now]


def test_the_first_frame_is_what_the_estimator_gives_by_itself(estimator: FamilyEstimator, batch: ChannelBatch) -> None:
    y, phi, noise_var = _frame(batch, 0)
    alone, tracked = estimator.estimate(y, phi, noise_var), Tracker(estimator).update(y, phi, noise_var)
    assert torch.allclose(tracked.signal, alone.signal, atol=1e-5)


def test_without_memory_every_frame_stands_alone(estimator: FamilyEstimator, batch: ChannelBatch) -> None:
    alone = estimator.estimate(batch.y, batch.phi, batch.noise_var).signal
    assert torch.allclose(track(estimator, batch, FRAMES, memory=0.0), alone, atol=1e-4)
    assert not torch.allclose(track(estimator, batch, FRAMES), alone, atol=1e-2)


def test_tracks_do_not_depend_on_each_other(estimator: FamilyEstimator, batch: ChannelBatch) -> None:
    some = torch.arange(3 * FRAMES, 5 * FRAMES)
    few = ChannelBatch(batch.signal[some], batch.y[some], batch.phi.select(some), batch.noise_var[some])
    assert torch.allclose(track(estimator, few, FRAMES), track(estimator, batch, FRAMES)[some], atol=1e-4)


def test_tracking_lowers_the_error_of_later_frames(estimator: FamilyEstimator, batch: ChannelBatch) -> None:
    late = torch.arange(len(batch)) % FRAMES >= FRAMES // 2
    alone = estimator.estimate(batch.y, batch.phi, batch.noise_var).signal
    tracked = track(estimator, batch, FRAMES)
    assert nmse_db(tracked[late], batch.signal[late]) < nmse_db(alone[late], batch.signal[late]) - 0.3


def test_frames_of_another_user_do_harm(
    estimator: FamilyEstimator, batch: ChannelBatch, problem: ChannelProblem
) -> None:
    """The gain is what earlier frames of the same user have shown, not an artefact of sharper weights."""
    others = problem.sample(len(batch), seed=2, split="test", snr_db=0.0)
    own, mixed = Tracker(estimator), Tracker(estimator)
    for frame in range(FRAMES - 1):
        own.update(*_frame(batch, frame))
        mixed.update(*_frame(others, frame))
    last = batch.signal[torch.arange(FRAMES - 1, len(batch), FRAMES)]
    with_own, with_others = (tracker.update(*_frame(batch, FRAMES - 1)).signal for tracker in (own, mixed))
    assert nmse_db(with_own, last) < nmse_db(with_others, last) - 1.0


def test_tracked_variances_tell_the_error(estimator: FamilyEstimator, batch: ChannelBatch) -> None:
    tracker = Tracker(estimator)
    for frame in range(FRAMES):
        found = tracker.update(*_frame(batch, frame))
    truth = batch.signal[torch.arange(FRAMES - 1, len(batch), FRAMES)]
    assert found.variance is not None
    assert float((found.signal - truth).abs().square().mean() / found.variance.mean()) == pytest.approx(1.0, abs=0.3)


def test_bad_input_is_told(problem: ChannelProblem, estimator: FamilyEstimator, batch: ChannelBatch) -> None:
    lmmse = get_estimator("lmmse", problem, trained_on="cdl_c_upa64x4")
    with pytest.raises(ValueError, match="lmmse has no family of covariances"):
        Tracker(lmmse)
    with pytest.raises(ValueError, match=r"memory must lie between 0 and 1, got 1\.5"):
        Tracker(estimator, memory=1.5)
    with pytest.raises(ValueError, match="whole tracks of 7 frames, got 120 samples"):
        track(estimator, batch, 7)
    tracker = Tracker(estimator)
    tracker.update(*_frame(batch, 0))
    with pytest.raises(ValueError, match="the same 12 users at every call, got 1"):
        tracker.update(batch.y[:1], batch.phi.select(torch.tensor([0])), batch.noise_var[:1])
    with pytest.raises(ValueError, match="cdl_c_upa64x4 has no tracks"):
        evaluate_tracking(load_scenario("cdl_c_upa64x4"), ["a-dlista+"])


def test_an_evaluation_is_stored_and_read(tmp_path: Path) -> None:
    found = evaluate_tracking(
        load_scenario("mobile_64x4"), ["a-dlista+"], trained_on="cdl_c_upa64x4", snr_db=(0.0,), tracks=3
    )
    page = found.write(tmp_path / "run")
    assert "data:image/png" in page.read_text()
    stored = Tracking.read(tmp_path / "run")
    assert stored.curves == found.curves
    assert [curve.kind for curve in stored.curves] == ["alone", "tracked", "bound"]
    assert len(stored.curves[0].nmse_db) == FRAMES
    assert stored.curves[0].nmse_db[0] == pytest.approx(stored.curves[1].nmse_db[0], abs=0.01)
    assert json.loads((tmp_path / "run" / "tracking.json").read_text())["manifest"]["split"] == "test"
    with pytest.raises(ValueError, match=r"holds no tracking\.json"):
        Tracking.read(tmp_path)
