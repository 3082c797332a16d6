"""Fit estimators and their variances, and write the files that `chanest.weights` finds."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chanest.bases.estimator import ChannelEstimator
from chanest.bases.modewise import goes_mode_by_mode
from chanest.estimators import estimator_class, estimator_names
from chanest.fit import Fit, Report, silent
from chanest.problem import ChannelProblem
from chanest.uncertainty.calibrating import CHANNELS, LEAST_CHANNELS, SEED, affordable, calibrate
from chanest.weights import (
    calibration_file,
    find_weights,
    own_folder,
    trained_file,
    uncalibrated,
    weights_digest,
    weights_for,
)
from vlista_core import checkpoint
from vlista_core.files import check_folder, only_writer
from vlista_core.tensorfile import Json

_CALIBRATION_SECONDS = 20.0
"""That a calibration after training may take."""
_FITTED = 0.9
"""Share of the work, as it is reported, that is done when the calibration begins."""


def train_estimator(
    name: str,
    problem: ChannelProblem,
    plan: Fit,
    *,
    folder: Path | str | None = None,
    start_from: Path | None = None,
) -> Path:
    """Fit the estimator `name` to `problem` and write its file into `folder` (your own weights); returns the path.

    start_from: a file of weights of this estimator to go on from, of this scenario or of one with the same arrays.
    A calibration is fitted and written beside it where that takes seconds; `calibrate_estimator` does it at any price.
    """
    cls = estimator_class(name)
    if start_from is not None and not cls.goes_on:
        able = ", ".join(each for each in estimator_names() if estimator_class(each).goes_on)
        raise ValueError(f"{name} learns from nothing; weights to start from are for {able}")
    with _only_writer(name, problem, folder) as target:
        cls.check(problem)
        whole, problem = problem, problem.on_one_subcarrier() if goes_mode_by_mode(cls, problem) else problem
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


def calibrate_estimator(
    name: str,
    problem: ChannelProblem,
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
