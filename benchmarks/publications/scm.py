"""Our estimators and the bound on the spatial channel model, for the publications that report on it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

import chanest
from chanest.bounds import get_bound
from chanest.problem import ChannelBatch, ChannelProblem
from chanest.weights import find_weights, own_folder, provenance, weights_file
from publications.measuring import Method, measured
from vlista_core.tensorfile import Json

SEED = 1
_BATCH = 50
_LONG = 512
"""Entries from which on `universal` is left out, as a channel takes it a second."""
NAMES = ("product-lmmse", "lmmse", "gmm", "atom-lmmse", "gated-lmmse", "universal")
FROM_PILOTS = "from-pilots"
"""Folder of your own weights that `chanest train … --from-pilots -o` has put those in that saw no channel."""
SCENARIOS = Path(__file__).parents[1] / "arrays"


@cache
def problem_of(scenario: str) -> ChannelProblem:
    """The problem of a shipped scenario, or of one in benchmarks/arrays."""
    path = SCENARIOS / f"{scenario}.toml"
    return ChannelProblem(chanest.load_scenario(path if path.is_file() else scenario))


def drawn(problem: ChannelProblem, samples: int, snr_db: float) -> list[ChannelBatch]:
    """Test draws in batches."""
    return [
        problem.sample(min(_BATCH, samples - start), seed=SEED, start=start, snr_db=snr_db)
        for start in range(0, samples, _BATCH)
    ]


def other_turn(antennas: int) -> Tensor:
    """±1 by turns, [antennas], which takes channels to theirs and back.

    Their linear arrays have the phase of broadside where ours have that of end-fire, half a turn from one antenna to the next.
    A genie does not mind; their networks do, by up to half a dB, and with it have the figures of their papers.
    """
    return 1.0 - 2.0 * (torch.arange(antennas) % 2)


def ours(problem: ChannelProblem, batches: Sequence[ChannelBatch]) -> tuple[list[Method], list[str]]:
    """Our estimators that have weights for the scenario, learned from channels or from pilots; the names of those with none."""
    methods, absent = [], []
    long = problem.signal_length > _LONG
    for name in (name for name in NAMES if not (long and name == "universal")):
        path = find_weights(name, problem.scenario.name)
        if path is None:
            absent.append(name)
        else:
            methods.append(_method(name, name, path, problem, batches))
        blind = own_folder() / FROM_PILOTS / weights_file(name, problem.scenario.name)
        if blind.is_file():
            methods.append(_method(f"{name} from pilots", name, blind, problem, batches))
    return methods, absent


def _method(shown: str, name: str, path: Path, problem: ChannelProblem, batches: Sequence[ChannelBatch]) -> Method:
    """An estimator with the weights in a file."""
    estimator = chanest.get_estimator(name, problem, weights=path)

    def estimate(number: int) -> Tensor:
        batch = batches[number]
        return estimator.estimate(batch.y, batch.phi, batch.noise_var).signal

    return Method(shown, estimate, facts={"budget": spent(provenance(path))})


def spent(origin: dict[str, Json]) -> dict[str, Json]:
    """What a training had, from what the file of weights says."""
    return {key: origin[key] for key in ("budget", "steps", "channels", "recordings") if key in origin}


def bounds(problem: ChannelProblem, batches: Sequence[ChannelBatch]) -> list[Json]:
    """The LMMSE estimate of a genie that knows the covariance of each sample."""
    genie = get_bound("genie-covariance", problem)
    known = Method("genie-covariance", lambda i: genie.bound(batches[i]).signal)
    return measured([known], [batch.signal for batch in batches])
