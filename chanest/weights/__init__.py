"""Estimators by name: built for a problem, with the weights that fit it. Files are `{scenario}.{name}.safetensors`."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TypeVar

from chanest.estimators import estimator_class
from chanest.bases.estimator import ChannelEstimator, Fit, Report, silent
from chanest.uncertainty.calibrating import CHANNELS, SEED, affordable, calibrate
from chanest.uncertainty.calibration import Calibration
from chanest.estimators.linear import LMMSE
from chanest.uncertainty.noise import NoiseModel
from chanest.problem import ChannelProblem
from vlista_core import checkpoint
from vlista_core.files import file_digest
from vlista_core.folders import cache_folder
from vlista_core.tensorfile import Json

Loaded = TypeVar("Loaded", bound=ChannelEstimator)

_CALIBRATION_SECONDS = 20.0
"""That a calibration after training may take."""
SHIPPED = Path(__file__).resolve().parent.parent / "weights"


def own_folder() -> Path:
    """Where `chanest train` puts weights: $CHANEST_WEIGHTS, else the user's cache."""
    return cache_folder("vlista/weights", "CHANEST_WEIGHTS")


def get_estimator(
    name: str,
    problem: ChannelProblem,
    *,
    weights: Path | str | None = None,
    trained_on: str | None = None,
) -> ChannelEstimator:
    """The estimator `name` for `problem`, with weights of your own training, else shipped ones, where there are some.

    weights: a file of your choice; trained_on: take the weights of another scenario, such as a mixture of channel models,
    whose arrays must be the same. A calibration of these weights and this front end comes with it where there is one.
    """
    path = find_weights(name, trained_on or problem.scenario.name) if weights is None else Path(weights)
    estimator = _uncalibrated(name, problem, path, trained_on)
    estimator.calibration = find_calibration(estimator, problem, path, trained_on or problem.scenario.name)
    return estimator


def _uncalibrated(
    name: str, problem: ChannelProblem, path: Path | None, trained_on: str | None = None
) -> ChannelEstimator:
    cls = estimator_class(name)
    wanted = trained_on or problem.scenario.name
    if path is not None:
        estimator = _load(path, cls, problem, any_scenario=trained_on is not None)
    elif cls.needs_fit or trained_on is not None:
        raise ValueError(f"{name} has no weights for {wanted}; train them with: chanest train {wanted} -e {name}")
    else:
        estimator = cls.build(problem)
    estimator.noise = noise_model(problem, trained_on=trained_on)
    return estimator.eval()


def find_weights(name: str, scenario: str) -> Path | None:
    """The file of an estimator for a scenario: of your own training, else shipped, else None."""
    for folder in (own_folder(), SHIPPED):
        path = folder / weights_file(name, scenario)
        if path.is_file():
            return path
    return None


def weights_file(name: str, scenario: str) -> str:
    """The name of a weights file."""
    return f"{scenario}.{name}.safetensors"


def calibration_file(name: str, scenario: str) -> str:
    """The name of a calibration file."""
    return f"{scenario}.{name}.calibration.json"


def find_calibration(
    estimator: ChannelEstimator, problem: ChannelProblem, weights: Path | None, scenario: str
) -> Calibration | None:
    """What was fitted to these very weights (None: to what needs none) with this front end; None where there is nothing.

    Looked for beside the weights, among your own files and among the shipped ones.
    """
    wanted = weights_digest(estimator, weights)
    frontend = problem.scenario.frontend.model_dump(mode="json")
    for folder in dict.fromkeys([*([] if weights is None else [weights.parent]), own_folder(), SHIPPED]):
        path = folder / calibration_file(estimator.name, scenario)
        if path.is_file():
            found = Calibration.read(path)
            if (found.estimator, found.weights, found.frontend) != (estimator.name, wanted, frontend):
                continue
            if found.profile is not None and len(found.profile) != estimator.signal_length:
                raise ValueError(
                    f"{path} has a profile of {len(found.profile)} entries for channels of {estimator.signal_length}; "
                    "fit it again with: chanest calibrate"
                )
            return found
    return None


def weights_digest(estimator: ChannelEstimator, weights: Path | None) -> str:
    """What ties a calibration to an estimator: a hash of its file or, where it has none, of its configuration."""
    if weights is not None:
        return file_digest(weights)
    text = json.dumps(estimator.configuration(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def noise_model(problem: ChannelProblem, *, trained_on: str | None = None) -> NoiseModel:
    """What estimates an unknown noise: from the directions of the scenario's `lmmse`, where there are weights of it."""
    path = find_weights("lmmse", trained_on or problem.scenario.name)
    if path is None:
        return NoiseModel()
    return NoiseModel(lambda: _load(path, LMMSE, problem, any_scenario=trained_on is not None).directions())


def train_estimator(name: str, problem: ChannelProblem, plan: Fit, *, folder: Path | str | None = None) -> Path:
    """Fit the estimator `name` to `problem` and write its file into `folder` (your own weights); returns the path.

    A calibration is fitted and written beside it where that takes seconds; `calibrate_estimator` does it at any price.
    """
    target = Path(folder) if folder is not None else own_folder()
    _check_writable(target)
    estimator = estimator_class(name).build(problem)
    facts = estimator.fit(problem, plan)
    path = target / weights_file(name, problem.scenario.name)
    save_estimator(estimator, problem, path, facts={"seed": plan.seed, "budget_seconds": plan.seconds, **facts})
    channels = affordable(_uncalibrated(name, problem, path), problem, min(_CALIBRATION_SECONDS, plan.seconds / 4))
    if channels:
        calibrate_estimator(name, problem, weights=path, channels=channels, folder=target, report=plan.report)
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
    target = Path(folder) if folder is not None else own_folder()
    _check_writable(target)
    used = weights or find_weights(name, problem.scenario.name)
    estimator = _uncalibrated(name, problem, used)
    digest = weights_digest(estimator, used)
    found = calibrate(estimator, problem, weights=digest, channels=channels, seed=seed, report=report)
    path = target / calibration_file(name, problem.scenario.name)
    found.write(path)
    return path


def save_estimator(estimator: ChannelEstimator, problem: ChannelProblem, path: Path, *, facts: dict[str, Json]) -> None:
    """Write an estimator with where it comes from: scenario, hash of its channels, front end, and `facts`."""
    scenario = problem.scenario
    provenance: dict[str, Json] = {
        "estimator": estimator.name,
        "scenario": scenario.name,
        "channel_hash": scenario.channel_hash(),
        "frontend": scenario.frontend.model_dump(mode="json"),
        **facts,
    }
    checkpoint.save(estimator, path, provenance=provenance, half=estimator.half_precision)


def provenance(path: Path | str) -> dict[str, Json]:
    """What a weights file says of where it comes from."""
    found = checkpoint.read_header(path).get("provenance")
    return found if isinstance(found, dict) else {}


def _load(path: Path, cls: type[Loaded], problem: ChannelProblem, *, any_scenario: bool) -> Loaded:
    estimator = checkpoint.load(path, expected=cls)
    origin = provenance(path)
    if estimator.signal_length != problem.signal_length:
        raise ValueError(
            f"{path.name} was made for {origin.get('scenario')}, channels of {estimator.signal_length} entries; "
            f"{problem.scenario.name} has {problem.signal_length}"
        )
    if not any_scenario and origin.get("channel_hash") != problem.scenario.channel_hash():
        raise ValueError(
            f"{path.name} holds weights of the channels of {origin.get('scenario')}, not of {problem.scenario.name}; "
            f"pass trained_on to use them all the same, or train: chanest train {problem.scenario.name} -e {cls.name}"
        )
    return estimator


def _check_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise ValueError(f"the folder for weights cannot be made: {folder}: {fault.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise ValueError(f"the folder for weights cannot be written: {folder}")
