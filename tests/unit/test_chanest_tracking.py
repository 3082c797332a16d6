"""The posterior of a snapshot as the prior of the next."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from chanest import ChannelProblem, get_estimator, load_scenario
from chanest.bases.family import FamilyEstimator
from chanest.problem import ChannelBatch
from chanest.studies import STUDIES, tracking
from chanest.studies.tracking import TrackingStudy
from chanest.tracking import Tracker, track
from vlista_core.estimate import Estimate
from vlista_core.linops import LinearMap
from vlista_core.metrics import nmse_db
from vlista_core.study import Context, Provenance, Record, frame, read_study, run_study
from vlista_core.study.page import write_page

SNAPSHOTS = 10


@pytest.fixture(scope="module")
def problem() -> ChannelProblem:
    return ChannelProblem(load_scenario("mobile_64x4"))


@pytest.fixture(scope="module")
def estimator(problem: ChannelProblem) -> FamilyEstimator:
    found = get_estimator("gated-lmmse", problem, trained_on="cdl_c_upa64x4", guarded=False)
    assert isinstance(found, FamilyEstimator)
    return found


@pytest.fixture(scope="module")
def batch(problem: ChannelProblem) -> ChannelBatch:
    return problem.sample(12 * SNAPSHOTS, seed=1, split="test", snr_db=0.0)


def _snapshot(batch: ChannelBatch, snapshot: int) -> tuple[Tensor, LinearMap, Tensor]:
    now = torch.arange(snapshot, len(batch), SNAPSHOTS)
    return batch.y[now], batch.phi.select(now), batch.noise_var[now]


def test_the_first_snapshot_is_what_the_estimator_gives_by_itself(
    estimator: FamilyEstimator, batch: ChannelBatch
) -> None:
    y, phi, noise_var = _snapshot(batch, 0)
    alone, tracked = estimator.estimate(y, phi, noise_var), Tracker(estimator).update(y, phi, noise_var)
    assert torch.allclose(tracked.signal, alone.signal, atol=1e-5)


def test_without_memory_every_snapshot_stands_alone(estimator: FamilyEstimator, batch: ChannelBatch) -> None:
    alone = estimator.estimate(batch.y, batch.phi, batch.noise_var).signal
    assert torch.allclose(track(estimator, batch, SNAPSHOTS, memory=0.0), alone, atol=1e-4)
    assert not torch.allclose(track(estimator, batch, SNAPSHOTS), alone, atol=1e-2)


def test_tracks_do_not_depend_on_each_other(estimator: FamilyEstimator, batch: ChannelBatch) -> None:
    some = torch.arange(3 * SNAPSHOTS, 5 * SNAPSHOTS)
    few = ChannelBatch(batch.signal[some], batch.y[some], batch.phi.select(some), batch.noise_var[some])
    assert torch.allclose(track(estimator, few, SNAPSHOTS), track(estimator, batch, SNAPSHOTS)[some], atol=1e-4)


def test_tracking_lowers_the_error_of_later_snapshots(estimator: FamilyEstimator, batch: ChannelBatch) -> None:
    late = torch.arange(len(batch)) % SNAPSHOTS >= SNAPSHOTS // 2
    alone = estimator.estimate(batch.y, batch.phi, batch.noise_var).signal
    tracked = track(estimator, batch, SNAPSHOTS)
    assert nmse_db(tracked[late], batch.signal[late]) < nmse_db(alone[late], batch.signal[late]) - 0.3


def test_snapshots_of_another_user_do_harm(
    estimator: FamilyEstimator, batch: ChannelBatch, problem: ChannelProblem
) -> None:
    """The gain is what earlier snapshots of the same user have shown, not an artefact of sharper weights."""
    others = problem.sample(len(batch), seed=2, split="test", snr_db=0.0)
    own, mixed = Tracker(estimator), Tracker(estimator)
    for snapshot in range(SNAPSHOTS - 1):
        own.update(*_snapshot(batch, snapshot))
        mixed.update(*_snapshot(others, snapshot))
    last = batch.signal[torch.arange(SNAPSHOTS - 1, len(batch), SNAPSHOTS)]
    with_own, with_others = (tracker.update(*_snapshot(batch, SNAPSHOTS - 1)).signal for tracker in (own, mixed))
    assert nmse_db(with_own, last) < nmse_db(with_others, last) - 1.0


def test_tracked_variances_tell_the_error(estimator: FamilyEstimator, batch: ChannelBatch) -> None:
    tracker = Tracker(estimator)
    for snapshot in range(SNAPSHOTS):
        found = tracker.update(*_snapshot(batch, snapshot))
    truth = batch.signal[torch.arange(SNAPSHOTS - 1, len(batch), SNAPSHOTS)]
    assert found.variance is not None
    assert float((found.signal - truth).abs().square().mean() / found.variance.mean()) == pytest.approx(1.0, abs=0.3)


def test_bad_input_is_told(problem: ChannelProblem, estimator: FamilyEstimator, batch: ChannelBatch) -> None:
    lmmse = get_estimator("lmmse", problem, trained_on="cdl_c_upa64x4")
    with pytest.raises(ValueError, match="lmmse has no family of covariances"):
        Tracker(lmmse)
    with pytest.raises(ValueError, match=r"memory must lie between 0 and 1, got 1\.5"):
        Tracker(estimator, memory=1.5)
    with pytest.raises(ValueError, match="whole tracks of 7 snapshots, got 120 samples"):
        track(estimator, batch, 7)
    tracker = Tracker(estimator)
    tracker.update(*_snapshot(batch, 0))
    with pytest.raises(ValueError, match="the same 12 users at every call, got 1"):
        tracker.update(batch.y[:1], batch.phi.select(torch.tensor([0])), batch.noise_var[:1])
    with pytest.raises(ValueError, match="cdl_c_upa64x4 has no tracks"):
        TrackingStudy(scenario=load_scenario("cdl_c_upa64x4")).cells()


class _Broken:
    """A stand-in that knows nothing, and gives a NaN in the second and the last channel of a batch."""

    def estimate(self, y: Tensor, phi: LinearMap, noise_var: Tensor) -> Estimate:
        signal = y.new_zeros(len(y), phi.shape[1])
        signal[1, 0] = signal[-1, -1] = torch.nan
        return Estimate(signal)


def test_estimates_that_are_not_finite_are_counted_by_snapshot(
    problem: ChannelProblem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "load", lambda *_: (_Broken(), {}))
    study = TrackingStudy(
        scenario=problem.scenario, estimators=("gated-lmmse",), trained_on="cdl_c_upa64x4", snr_db=(0.0,), tracks=2
    )
    row = study.run(study.cells()[0], Context(tmp_path))
    assert json.loads(json.dumps(row, allow_nan=False)) == row
    assert row["diverged"] == [0, 1, *[0] * (SNAPSHOTS - 3), 1]
    rows = frame([Record(cell=study.cells()[0], row=row, provenance=Provenance())])
    (table,) = study.tables(rows)
    shown = table.lines[0][1:]
    assert shown == ("0.00", "diverged (1)", *["0.00"] * (SNAPSHOTS - 3), "diverged (1)", "diverged (2)")
    (figure,) = study.figures(rows, tmp_path)
    assert figure.path.read_bytes().startswith(b"\x89PNG")


def test_a_study_is_stored_and_read(tmp_path: Path) -> None:
    study = TrackingStudy(
        scenario=load_scenario("mobile_64x4"), estimators=("gated-lmmse",), trained_on="cdl_c_upa64x4", snr_db=(0.0,),
        tracks=3,
    )  # fmt: skip
    found = run_study(study, tmp_path)
    assert not found.faults
    stored = read_study(tmp_path, STUDIES).records
    assert tuple(stored) == found.records
    assert [record.cell["kind"] for record in stored] == ["alone", "tracked", "bound"]
    alone, tracked = (record.row["nmse_db"] for record in stored[:2])
    assert isinstance(alone, list)
    assert isinstance(tracked, list)
    assert len(alone) == SNAPSHOTS
    assert alone[0] == pytest.approx(tracked[0], abs=0.01)
    assert "data:image/png" in write_page(tmp_path, STUDIES).read_text(encoding="utf-8")
