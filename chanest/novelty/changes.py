"""What may happen to a channel unknown to its estimator: other surroundings, another array, a broken antenna."""

import cmath
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from chanest.channels.cdl import CdlModel
from chanest.problem import AnyProblem, ChannelBatch, ChannelProblem, as_problem
from chanest.scenario import CdlSection, Scenario
from vlista_core.draws import Split
from vlista_core.problems import check_count

TILT = 20.0
"""Degrees that the base station's array is tilted out of its plane."""
STRETCH = 1.2
"""Of the spacing of the base station's array: 0.6 wavelengths for 0.5."""
PHASE = 90.0
"""Degrees by which an antenna is out of phase."""
HOLD = 100
"""Consecutive frames with the same antenna broken: streams of 1, 5, 10, 20 or 50 frames then have one."""
_APART = 1_000_000
"""Frames between the draws of one change and those of the next."""


@dataclass(frozen=True)
class Change:
    """Another scenario of the same arrays' sizes, or a gain at one antenna of one end; which antenna is drawn."""

    words: str
    scenario: Callable[[Scenario], Scenario | None] | None = None
    """The changed scenario; None where there is no such change to this one."""
    end: str = ""
    """"bs" or "ue"."""
    gain: complex = 1.0


def _model(model: CdlModel) -> Callable[[Scenario], Scenario | None]:
    def changed(home: Scenario) -> Scenario | None:
        if not isinstance(home.channel, CdlSection) or home.channel.models == (model,):
            return None
        return home.model_copy(update={"channel": home.channel.model_copy(update={"models": (model,)})})

    return changed


def _tilted(home: Scenario) -> Scenario | None:
    if not isinstance(home.channel, CdlSection):
        return None
    return home.model_copy(update={"bs": home.bs.model_copy(update={"tilt": home.bs.tilt + TILT})})


def _stretched(home: Scenario) -> Scenario:
    return home.model_copy(update={"bs": home.bs.model_copy(update={"spacing": STRETCH * home.bs.spacing})})


_TURNED = cmath.exp(1j * math.radians(PHASE))
CHANGES = {
    "cdl-a": Change("CDL-A", _model("A")),
    "cdl-b": Change("CDL-B", _model("B")),
    "cdl-c": Change("CDL-C", _model("C")),
    "cdl-d": Change("CDL-D", _model("D")),
    "cdl-e": Change("CDL-E", _model("E")),
    "tilt": Change(f"BS array tilted by {TILT:g}°", _tilted),
    "spacing": Change(f"BS spacing {STRETCH:g} times as wide", _stretched),
    "blocked-bs": Change("one BS antenna blocked", end="bs", gain=0.0),
    "phase-bs": Change(f"one BS antenna {PHASE:g}° out of phase", end="bs", gain=_TURNED),
    "blocked-ue": Change("one UE antenna blocked", end="ue", gain=0.0),
    "phase-ue": Change(f"one UE antenna {PHASE:g}° out of phase", end="ue", gain=_TURNED),
}
"""Name -> change."""


def change_names(scenario: Scenario) -> list[str]:
    """The changes that can be made to a scenario."""
    return [name for name, change in CHANGES.items() if change.scenario is None or change.scenario(scenario)]


def get_change(name: str, scenario: Scenario) -> Change:
    """The change registered as `name`, or a ValueError that lists those there are for this scenario."""
    if name not in change_names(scenario):
        raise ValueError(f"no change {name!r} of {scenario.name}; known are {', '.join(change_names(scenario))}")
    return CHANGES[name]


def changed_frames(
    problem: AnyProblem,
    name: str,
    count: int,
    *,
    seed: int,
    split: Split = "test",
    start: int = 0,
    snr_db: float | None = None,
    hold: int = HOLD,
) -> ChannelBatch:
    """Frames start … start + count - 1 of a changed `problem`, other draws for every change; see ChannelProblem.sample.

    hold: consecutive frames with the same antenna broken, for changes that break one.
    """
    problem = as_problem(problem)
    change = get_change(name, problem.scenario)
    check_count("hold", hold)
    first = _APART * (1 + list(CHANGES).index(name)) + start
    changed = None if change.scenario is None else change.scenario(problem.scenario)
    source = problem if changed is None else ChannelProblem(changed, backend=problem.source.backend)
    batch = source.sample(count, seed=seed, split=split, start=first, snr_db=snr_db)
    if changed is not None:
        return batch
    return _broken(problem, batch, change, torch.arange(start, start + count) // hold, seed)


def _broken(problem: ChannelProblem, batch: ChannelBatch, change: Change, turns: Tensor, seed: int) -> ChannelBatch:
    """With the gain of the change at one antenna, another at every turn; the antennas come in random order."""
    rx, tx = problem.arrays
    receiving = (change.end == "ue") == (problem.source.moving == "rx")
    ports = (rx if receiving else tx).ports
    order = torch.randperm(ports, generator=torch.Generator().manual_seed(seed))
    gains = torch.ones(len(batch), ports, dtype=batch.signal.dtype)
    gains[torch.arange(len(batch)), order[turns % ports]] *= change.gain
    grid = batch.signal.reshape(len(batch), problem.subcarriers, tx.ports, rx.ports)
    signal = (grid * (gains[:, None, None, :] if receiving else gains[:, None, :, None])).flatten(1)
    return replace(batch, signal=signal, y=batch.y + batch.phi.apply(signal - batch.signal))
