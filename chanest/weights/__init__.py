"""Estimators by name, with the weights that fit a problem: found by file name, read once per process.

Files are `{scenario}.{name}.safetensors` and, for variances, `{scenario}.{name}.calibration.json`. Weights of your own training
come before shipped ones.
"""

import copy
import logging
import shlex
from collections.abc import Collection, Iterable
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from chanest.bases.estimator import ChannelEstimator
from chanest.bases.guard import Guarded
from chanest.bases.modewise import Modewise
from chanest.estimators import estimator_class, estimator_names
from chanest.problem import AnyProblem, ChannelProblem, as_problem
from chanest.scenario import Scenario, load_scenario, scenario_names
from chanest.uncertainty.calibration import Calibration
from chanest.uncertainty.noise import NoiseModel
from vlista_core.checkpoint import load, read_header
from vlista_core.files import cache_folder, digest, file_digest
from vlista_core.tensorfile import Json

if TYPE_CHECKING:
    from chanest.estimators.lmmse import LMMSE
    from chanest.estimators.universal import Universal

SHIPPED = Path(__file__).resolve().parent
ANY_SCENARIO = "any"
"""Stands for the scenario in the names of files that serve all of them."""
UNIVERSAL = "universal"
_LOG = logging.getLogger("chanest")


def own_folder() -> Path:
    """Where `chanest train` puts weights: $CHANEST_WEIGHTS, else the user's cache."""
    return cache_folder("vlista/weights", "CHANEST_WEIGHTS")


def weights_file(name: str, scenario: str) -> str:
    """The name of a weights file."""
    return f"{scenario}.{name}.safetensors"


def trained_file(name: str, scenario: str) -> str:
    """The name under which a training of an estimator on a scenario is kept."""
    return weights_file(name, ANY_SCENARIO if estimator_class(name).any_scenario else scenario)


def calibration_file(name: str, scenario: str) -> str:
    """The name of a calibration file."""
    return f"{scenario}.{name}.calibration.json"


def find_weights(name: str, scenario: str) -> Path | None:
    """The file of an estimator for a scenario, else one for any: of your own training, else shipped, else None."""
    scenarios = [scenario, *([ANY_SCENARIO] if estimator_class(name).any_scenario else [])]
    found = (folder / weights_file(name, each) for each in scenarios for folder in (own_folder(), SHIPPED))
    return next((path for path in found if path.is_file()), None)


def weights_for(name: str, problem: ChannelProblem, trained_on: str | None = None) -> Path | None:
    """The file of an estimator for a problem, None where there is none.

    What takes delay modes as one subcarrier each has that of the scenario, else of one with the same directions and arrays.
    """
    path = find_weights(name, trained_on or problem.scenario.name)
    if path is not None or trained_on is not None or not estimator_class(name).goes_mode_by_mode(problem):
        return path
    found = (find_weights(name, scenario.name) for scenario in _with_same_directions(problem.scenario))
    return next((path for path in found if path is not None), None)


def _with_same_directions(scenario: Scenario) -> list[Scenario]:
    """Shipped scenarios of one subcarrier whose channels have directions of the same kind."""
    kinds = _narrowband_scenarios()
    return [other for other in kinds if other.directions_hash() == scenario.directions_hash()]


@lru_cache(maxsize=1)
def _narrowband_scenarios() -> list[Scenario]:
    every = (load_scenario(name) for name in scenario_names())
    return [each for each in every if getattr(each.channel, "subcarriers", 1) == 1]


def get_estimator(
    name: str,
    problem: AnyProblem,
    *,
    weights: Path | str | None = None,
    trained_on: str | None = None,
    guarded: bool = True,
    substitute: bool = True,
) -> ChannelEstimator:
    """The estimator `name` for `problem`, with weights of your own training, else shipped ones, where there are some.

    problem: what samples are drawn from, or its scenario, as an object, by name or by path.
    weights: a file of your choice; trained_on: take the weights of another scenario, such as a mixture of channel models,
    whose arrays must be the same. A calibration of these weights and this front end comes with it where there is one.
    guarded: let the universal estimate answer where y speaks against the channels that gated-lmmse or atom-lmmse learned from.
    substitute: where a learned estimator has no weights for the scenario, give the universal one in its place, and say so in a
    line; a ValueError otherwise.
    """
    estimator_class(name)
    problem = as_problem(problem)
    path = weights_for(name, problem, trained_on) if weights is None else Path(weights)
    if substitute and path is None and trained_on is None and _has_substitute(name, problem):
        _LOG.warning("%s has no weights for %s: universal is taken in its place", name, problem.scenario.name)
        return get_estimator(UNIVERSAL, problem)
    estimator = uncalibrated(name, problem, path, trained_on)
    if guarded and isinstance(estimator, Guarded) and (universal := find_weights(UNIVERSAL, problem.scenario.name)):
        guard = uncalibrated(UNIVERSAL, problem, universal)
        estimator.protect(cast("Universal", guard))
    estimator.calibration = find_calibration(estimator, problem, path, trained_on or problem.scenario.name)
    return estimator


def _has_substitute(name: str, problem: ChannelProblem) -> bool:
    """Whether the universal estimator can stand in for one that has no weights for a problem."""
    cls = estimator_class(name)
    if not cls.needs_fit or cls.any_scenario or find_weights(UNIVERSAL, problem.scenario.name) is None:
        return False
    try:
        cls.check(problem)
        estimator_class(UNIVERSAL).check(problem)
    except ValueError:
        return False
    return True


def uncalibrated(
    name: str, problem: ChannelProblem, path: Path | None, trained_on: str | None = None
) -> ChannelEstimator:
    """The estimator with the weights in `path`, None for one that needs none, as it is before calibration."""
    check_usable(name, problem, path, trained_on)
    modewise = estimator_class(name).goes_mode_by_mode(problem)
    one = problem.on_one_subcarrier() if modewise else problem
    estimator = estimator_class(name).build(one) if path is None else _read(name, path).for_problem(one)
    if estimator.signal_length != one.signal_length:
        raise ValueError(
            f"{path} holds an estimator of channels of {estimator.signal_length} entries; {problem.scenario.name} has "
            f"{one.signal_length}"
        )
    if modewise:
        estimator = Modewise(estimator, problem.subcarriers)
    lmmse = find_weights("lmmse", trained_on or problem.scenario.name)
    if lmmse is not None:  # An unknown noise is then told from the channel by the directions that channels have.
        known = partial(_lmmse, lmmse)
        modes = None if problem.subcarriers == 1 else lambda: known().delay_modes()
        estimator.noise = NoiseModel(lambda: known().directions(), modes)
    return estimator.eval()


def check_usable(
    name: str, problem: ChannelProblem, path: Path | None, trained_on: str | None = None, *, others: bool = True
) -> None:
    """ValueError unless the estimator can run on `problem`; of a weights file only the header is read.

    others: say, where the method is not for such problems, which estimators are.
    """
    cls, scenario = estimator_class(name), problem.scenario
    try:
        cls.check(problem)
    except ValueError as fault:
        able = usable_estimators(problem)[0] if others else []
        instead = f"; which run on it: {', '.join(able)}" if able else ""
        raise ValueError(f"{fault}{instead}") from None
    wanted = trained_on or scenario.name
    if path is None:
        if cls.needs_fit or trained_on is not None:
            raise ValueError(f"{name} has no weights for {wanted}{_how_to_train(name, problem, trained_on)}")
        return
    header = read_header(path)
    origin, length = provenance(path), cast("dict[str, Json]", header["provenance"]).get("signal_length")
    if header["class"] != cls.__name__:
        raise ValueError(f"{path.name} holds a {header['class']}, not the {cls.__name__} of {name}; give another file")
    if cls.any_scenario:
        return
    modewise = cls.goes_mode_by_mode(problem)
    needed = problem.signal_length // (problem.subcarriers if modewise else 1)
    if length != needed:
        raise ValueError(
            f"{path.name} was made for {origin.get('scenario')}, channels of {length} entries; {scenario.name} has {needed}"
        )
    known = {scenario.channel_hash()}
    if modewise:
        known |= {other.channel_hash() for other in (scenario.on_one_subcarrier(), *_with_same_directions(scenario))}
    if trained_on is None and origin.get("channel_hash") not in known:
        raise ValueError(
            f"{path.name} holds weights of the channels of {origin.get('scenario')}, not of {scenario.name}; pass "
            f"trained_on to use them all the same{_how_to_train(name, problem)}"
        )


def _how_to_train(name: str, problem: ChannelProblem, trained_on: str | None = None) -> str:
    """The end of a message: the command that makes the weights, or why none can."""
    if trained_on is not None:
        return f"; train them with: chanest train {trained_on} -e {name}"
    try:
        estimator_class(name).check_training(problem)
    except ValueError as fault:
        return f", and it cannot learn there: {fault}"
    return f"; train them with: {_training(name, problem)}"


def _training(names: str, problem: ChannelProblem) -> str:
    """The command that trains estimators on a problem; the call where the problem was made in Python."""
    given = problem.scenario.given_as
    if given is None:
        return f"chanest.weights.training.train_estimator({names!r}, problem, Fit(seconds=300))"
    return f"chanest train {shlex.quote(given)} -e {names}"


def left_out(problem: AnyProblem, refused: Collection[str], trained_on: str | None = None) -> list[str]:
    """One line on the estimators that cannot run on a problem: which training would bring in, and which are not for it."""
    problem = as_problem(problem)
    lacking = learnable(problem, refused, trained_on)
    others = [name for name in refused if name not in lacking]
    given = problem.scenario.given_as
    parts = []
    if lacking:
        source = problem.scenario.name if trained_on is None else trained_on
        train = _training(",".join(lacking), problem) if trained_on is None and given else ""
        parts.append(f"{', '.join(lacking)} for want of weights for {source}{train and f' (made by: {train})'}")
    if others:
        why = f" (why: chanest estimators {shlex.quote(given)})" if given and trained_on is None else ""
        parts.append(f"{', '.join(others)}, not for {problem.scenario.name}{why}")
    return [f"left out: {'; '.join(parts)}"] if parts else []


def learnable(problem: ChannelProblem, names: Iterable[str], trained_on: str | None = None) -> list[str]:
    """The estimators that lack nothing but weights, which training would make."""
    return [name for name in names if _learnable(name, problem, trained_on)]


def _learnable(name: str, problem: ChannelProblem, trained_on: str | None) -> bool:
    cls, source = estimator_class(name), trained_on or problem.scenario.name
    if not cls.needs_fit or find_weights(name, source) is not None:
        return False
    try:
        cls.check(problem)
        if trained_on is None:
            cls.check_training(problem)
    except ValueError:
        return False
    return True


def usable_estimators(problem: AnyProblem, trained_on: str | None = None) -> tuple[list[str], dict[str, str]]:
    """The registered estimators that can run on a problem now, and why each of the others cannot."""
    problem, usable, refused = as_problem(problem), [], {}
    for name in estimator_names():
        other = lender(name, trained_on)
        try:
            check_usable(name, problem, weights_for(name, problem, other), other, others=False)
        except ValueError as fault:
            refused[name] = str(fault)
        else:
            usable.append(name)
    return usable, refused


def lender(name: str, trained_on: str | None) -> str | None:
    """The other scenario whose weights are taken; what can do without weights does so where it has none."""
    if trained_on is None or (find_weights(name, trained_on) is None and not estimator_class(name).needs_fit):
        return None
    return trained_on


def find_calibration(
    estimator: ChannelEstimator, problem: ChannelProblem, weights: Path | None, scenario: str
) -> Calibration | None:
    """What was fitted to these very weights (None: to what needs none) with this front end; None where there is nothing.

    Looked for beside the weights, among your own files and among the shipped ones.
    """
    wanted = (estimator.name, weights_digest(estimator, weights), problem.scenario.frontend.model_dump(mode="json"))
    folders = [*([] if weights is None else [weights.parent]), own_folder(), SHIPPED]
    paths = (folder / calibration_file(estimator.name, scenario) for folder in dict.fromkeys(folders))
    for path in filter(Path.is_file, paths):
        found = Calibration.read(path)
        if (found.estimator, found.weights, found.frontend) != wanted:
            continue
        if found.profile is not None and len(found.profile) != estimator.signal_length:
            raise ValueError(
                f"{path} has a profile of {len(found.profile)} entries for channels of {estimator.signal_length}; "
                f"fit it again with: chanest calibrate {shlex.quote(problem.scenario.given_as or scenario)} -e {estimator.name}"
            )
        return found
    return None


def weights_digest(estimator: ChannelEstimator, weights: Path | None) -> str:
    """What ties a calibration to an estimator: a hash of its file or, where it has none, of its configuration."""
    if weights is not None:
        return _digest(weights, *_stamp(weights))
    return digest(estimator.configuration())


def provenance(path: Path | str) -> dict[str, Json]:
    """What a weights file says of where it comes from."""
    found = read_header(path).get("provenance")
    return found if isinstance(found, dict) else {}


def _lmmse(path: Path) -> "LMMSE":
    return cast("LMMSE", _read("lmmse", path))


def _read(name: str, path: Path) -> ChannelEstimator:
    """A copy of what the file holds; the file itself is read once, until it changes."""
    return copy.deepcopy(_loaded(name, path, *_stamp(path)))


@lru_cache(maxsize=64)
def _loaded(name: str, path: Path, modified: int, size: int) -> ChannelEstimator:
    return load(path, expected=estimator_class(name))


@lru_cache(maxsize=256)
def _digest(path: Path, modified: int, size: int) -> str:
    return file_digest(path)


def _stamp(path: Path) -> tuple[int, int]:
    """When the file was last changed, and its size."""
    found = path.stat()
    return found.st_mtime_ns, found.st_size
