"""Fit estimators and their variances, and write the files that `chanest.weights` finds."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chanest.bases.estimator import ChannelEstimator
from chanest.covariances.lags import has_lags
from chanest.estimators import estimator_class, estimator_names
from chanest.fit import Fit, Report, silent
from chanest.problem import AnyProblem, ChannelProblem, as_problem
from chanest.recordings import Recordings
from chanest.uncertainty.calibrating import CHANNELS, LEAST_CHANNELS, SEED, affordable, calibrate
from chanest.weights import (
    ANY_SCENARIO,
    calibration_file,
    find_weights,
    own_folder,
    trained_file,
    uncalibrated,
    weights_digest,
    weights_file,
    weights_for,
)
from vlista_core import checkpoint
from vlista_core.files import check_folder, only_writer
from vlista_core.tensorfile import Json

_CALIBRATION_SECONDS = 20.0
"""That a calibration after training may take."""
PILOTS = "pilots"
"""What the header of weights says in `trained_from` where no channel was seen."""
_FITTED = 0.9
"""Share of the work, as it is reported, that is done when the calibration begins."""


def train_estimator(
    name: str,
    problem: AnyProblem,
    plan: Fit,
    *,
    folder: Path | str | None = None,
    start_from: Path | None = None,
    recordings: Recordings | None = None,
) -> Path:
    """Fit the estimator `name` to `problem` and write its file into `folder` (your own weights); returns the path.

    start_from: a file of weights of this estimator to go on from, of this scenario or of one with the same arrays.
    recordings: learn from these alone, and from no channel of the problem; no calibration is fitted, which needs channels.
    A calibration is fitted and written beside it where that takes seconds; `calibrate_estimator` does it at any price.
    """
    cls, problem = estimator_class(name), as_problem(problem)
    if recordings is not None:
        return _train_from_pilots(name, problem, recordings, plan, folder, start_from)
    if start_from is not None and not cls.goes_on:
        able = ", ".join(each for each in estimator_names() if estimator_class(each).goes_on)
        raise ValueError(f"{name} learns from nothing; weights to start from are for {able}")
    with _only_writer(name, problem, folder) as target:
        cls.check(problem)
        cls.check_training(problem)
        whole, problem = problem, problem.on_one_subcarrier() if cls.goes_mode_by_mode(problem) else problem
        before: dict[str, Json] = {}
        if start_from is None:
            estimator = cls.build(problem)
        else:
            estimator = uncalibrated(name, problem, start_from, problem.scenario.name)
            before = {"started_from": weights_digest(estimator, start_from)}
        start = None if cls.begins_with is None else find_weights(cls.begins_with, problem.scenario.name)
        if cls.begins_with is not None and start is not None:
            estimator.begin_with(uncalibrated(cls.begins_with, problem, start))
        facts = estimator.fit(problem, plan.telling(0.0, _FITTED))
        path = target / trained_file(name, problem.scenario.name)
        save_estimator(estimator, problem, path, facts={"seed": plan.seed, "budget": plan.budget, **before, **facts})
        channels = LEAST_CHANNELS
        if plan.steps is None:
            seconds = min(_CALIBRATION_SECONDS, plan.seconds / 4)
            channels = affordable(uncalibrated(name, whole, path), whole, seconds)
        if channels:
            _calibrate(name, whole, path, channels, SEED, target, plan.telling(_FITTED, 1.0).report)
    return path


def check_learns_from_pilots(name: str, problem: ChannelProblem) -> None:
    """ValueError where an estimator cannot learn from pilots alone, or not on this problem."""
    if not estimator_class(name).learns_from_pilots:
        able = ", ".join(each for each in estimator_names() if estimator_class(each).learns_from_pilots)
        raise ValueError(f"{name} cannot learn from pilots alone; those that can are {able}")
    if not has_lags(problem):
        raise ValueError(
            f"from pilots alone {name} learns channels of one subcarrier and one polarisation; those of "
            f"{problem.scenario.name} are others"
        )


def _train_from_pilots(
    name: str,
    problem: ChannelProblem,
    recordings: Recordings,
    plan: Fit,
    folder: Path | str | None,
    start_from: Path | None,
) -> Path:
    """See `train_estimator`. What serves every scenario goes on from weights that it has, and becomes weights of this one."""
    check_learns_from_pilots(name, problem)
    if (recordings.rx, recordings.tx) != problem.arrays:
        raise ValueError(f"recordings must be between the arrays of {problem.scenario.name}, got those of others")
    cls = estimator_class(name)
    if start_from is not None and not cls.any_scenario:
        raise ValueError(f"{name} learns from nothing where it learns from pilots, so there is nothing to start from")
    with _only_writer(name, problem, folder) as target:
        cls.check(problem)
        facts: dict[str, Json] = {"seed": plan.seed, "budget": plan.budget, "trained_from": PILOTS}
        if cls.any_scenario:
            start = start_from or find_weights(name, ANY_SCENARIO)
            estimator = uncalibrated(name, problem, start)
            facts["started_from"] = weights_digest(estimator, start)
        else:
            estimator = cls.build(problem)
        facts |= estimator.fit_from_pilots(recordings, plan)
        path = target / weights_file(name, problem.scenario.name)
        save_estimator(estimator, problem, path, facts=facts)
    return path


def calibrate_estimator(
    name: str,
    problem: AnyProblem,
    *,
    weights: Path | None = None,
    channels: int = CHANNELS,
    seed: int = SEED,
    folder: Path | str | None = None,
    report: Report = silent,
) -> Path:
    """Fit the variances and intervals of an estimator on validation draws, write them into `folder`; returns the path.

    weights: as for `get_estimator`; channels: at each of nine SNRs.
    """
    problem = as_problem(problem)
    with _only_writer(name, problem, folder) as target:
        used = weights or weights_for(name, problem)
        return _calibrate(name, problem, used, channels, seed, target, report)


def _calibrate(
    name: str, problem: ChannelProblem, weights: Path | None, channels: int, seed: int, folder: Path, report: Report
) -> Path:
    estimator = uncalibrated(name, problem, weights)
    digest = weights_digest(estimator, weights)
    found = calibrate(estimator, problem, weights=digest, channels=channels, seed=seed, report=report)
    path = folder / calibration_file(name, problem.scenario.name)
    found.write(path)
    return path


def save_estimator(estimator: ChannelEstimator, problem: ChannelProblem, path: Path, *, facts: dict[str, Json]) -> None:
    """Write an estimator with where it comes from: scenario, hash of its channels, front end, and `facts`."""
    scenario = problem.scenario
    provenance: dict[str, Json] = {
        "estimator": estimator.name,
        "scenario": scenario.name,
        "signal_length": problem.signal_length,
        "channel_hash": scenario.channel_hash(),
        "frontend": scenario.frontend.model_dump(mode="json"),
        **facts,
    }
    checkpoint.save(estimator, path, provenance=provenance, half=estimator.half_precision)


@contextmanager
def _only_writer(name: str, problem: ChannelProblem, wanted: Path | str | None) -> Iterator[Path]:
    """The folder for files, your own weights unless another is wanted; no other run may write this estimator's meanwhile."""
    folder, scenario = own_folder() if wanted is None else Path(wanted), problem.scenario.name
    check_folder(folder)
    with only_writer(folder / f".{scenario}.{name}.lock", f"{name} for {scenario} into {folder}"):
        yield folder
