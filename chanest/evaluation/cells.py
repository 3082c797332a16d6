"""The work of one cell: a function of JSON that runs in this process, in a worker or on a cluster alike."""

from __future__ import annotations

import json
import statistics as clock
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from chanest.bases.estimator import ChannelEstimator
from chanest.bounds import Bound, get_bound
from chanest.estimators import estimator_class
from chanest.evaluation.plan import BATCH, Cell
from chanest.evaluation.statistics import summarise
from chanest.evaluation.stored import digest, read_scenario
from chanest.problem import ChannelBatch, ChannelProblem
from chanest.weights import find_weights, get_estimator, provenance
from vlista_core.estimate import Estimator
from vlista_core.files import file_digest
from vlista_core.tensorfile import Json

_CACHED_BYTES = 2**29
_SECONDS = 3.0
"""A latency is the median of as many calls as fit into this, at least one and at most `_CALLS`."""
_CALLS = 15


def run_cell(cell: Cell) -> dict[str, Json]:
    """The figures of a cell whose estimator is known by name."""
    problem = ChannelProblem(read_scenario(cell["scenario"]))
    if cell["kind"] == "bound":
        return _measure_bound(cell, problem)
    return run_with(load(cell, problem), cell)


def run_with(estimator: Estimator, cell: Cell) -> dict[str, Json]:
    """The figures of a cell for an estimator at hand."""
    problem = ChannelProblem(read_scenario(cell["scenario"]))
    if isinstance(estimator, nn.Module):
        estimator.to(cell["device"])
    if cell["kind"] == "cost":
        return _cost(estimator, cell, problem)
    return _measure(lambda batch: _squared_errors(estimator, batch.to(cell["device"])), cell, problem)


def weights_path(name: str, scenario: str, trained_on: str | None) -> Path | None:
    """The file an estimator is loaded from."""
    return find_weights(name, lender(name, trained_on) or scenario)


def load(cell: Cell, problem: ChannelProblem) -> ChannelEstimator:
    """The estimator of a cell, from the very file that the plan was made with."""
    name = cell["name"]
    path = weights_path(name, problem.scenario.name, cell["trained_on"])
    if (None if path is None else file_digest(path)) != cell["weights"]:
        raise ValueError(f"the weights of {name} have changed, or differ on a worker, since the evaluation was planned")
    return get_estimator(name, problem, trained_on=lender(name, cell["trained_on"]))


def lender(name: str, trained_on: str | None) -> str | None:
    """The other scenario whose weights are taken; what can do without weights does so where it has none."""
    if trained_on is None or (find_weights(name, trained_on) is None and not estimator_class(name).needs_fit):
        return None
    return trained_on


def _measure(errors: Callable[[ChannelBatch], Tensor], cell: Cell, problem: ChannelProblem) -> dict[str, Json]:
    """errors: ‖ĥ - h‖² of a batch, [batch]."""
    error, power, seconds = [], [], 0.0
    for batch in _draws(cell, problem):
        start = time.perf_counter()
        error.append(_array(errors(batch)))
        seconds += time.perf_counter() - start
        power.append(_array(batch.signal.abs().square().sum(1, dtype=torch.float64)))
    result = summarise(np.concatenate(error), np.concatenate(power), group=problem.source.snapshots, seed=cell["seed"])
    return {**asdict(result), "seconds": seconds}


def _squared_errors(estimator: Estimator, batch: ChannelBatch) -> Tensor:
    signal = estimator.estimate(batch.y, batch.phi, batch.noise_var).signal
    return (signal - batch.signal).abs().square().sum(1, dtype=torch.float64)


def _measure_bound(cell: Cell, problem: ChannelProblem) -> dict[str, Json]:
    bound = _bound(cell["name"], json.dumps(cell["scenario"]))
    return {**_measure(bound.errors, cell, problem), "label": bound.label}


@lru_cache(maxsize=8)
def _bound(name: str, scenario: str) -> Bound:
    """Kept from point to point: some bounds take seconds to build."""
    return get_bound(name, ChannelProblem(read_scenario(json.loads(scenario))))


def _cost(estimator: Estimator, cell: Cell, problem: ChannelProblem) -> dict[str, Json]:
    """Milliseconds a channel, warm, alone and in a batch; learned numbers; where the weights come from."""
    batch = next(_draws(cell, problem)).to(cell["device"])
    one = batch.select(torch.tensor([0]))
    learned = estimator.parameters_learned() if isinstance(estimator, ChannelEstimator) else 0
    path = weights_path(cell["name"], problem.scenario.name, cell["trained_on"]) if cell["weights"] else None
    origin = {} if path is None else provenance(path)
    return {
        "ms_batch_1": _milliseconds(estimator, one),
        "ms_batch": _milliseconds(estimator, batch),
        "batch": len(batch),
        "parameters": learned,
        "trained_on": origin.get("scenario"),
        "provenance": origin,
        "threads": torch.get_num_threads(),
    }


def _milliseconds(estimator: Estimator, batch: ChannelBatch) -> float:
    """Of one channel: the median of a few calls after a first one; a slow first one stands for itself."""

    def call() -> float:
        start = time.perf_counter()
        estimator.estimate(batch.y, batch.phi, batch.noise_var)
        if batch.y.is_cuda:
            torch.cuda.synchronize(batch.y.device)
        return time.perf_counter() - start

    first = call()
    calls = min(_CALLS, int(_SECONDS / max(first, 1e-6)))
    return 1e3 * clock.median([call() for _ in range(calls)] or [first]) / len(batch)


_lock = threading.Lock()
_cached: tuple[str, list[ChannelBatch]] = ("", [])


def _draws(cell: Cell, problem: ChannelProblem) -> Iterator[ChannelBatch]:
    """The test channels of a cell in batches; those of the last point stay in memory for the next estimator."""
    global _cached
    key = digest([cast(Json, cell[field]) for field in ("scenario", "seed", "channels", "snr_db")])
    with _lock:
        if _cached[0] != key:
            _cached = (key, [])
        kept = _cached[1]
    for number, start in enumerate(range(0, cell["channels"], BATCH)):
        if number < len(kept):
            yield kept[number]
            continue
        size = min(BATCH, cell["channels"] - start)
        batch = problem.sample(size, seed=cell["seed"], start=start, snr_db=cell["snr_db"])
        with _lock:
            if number == len(kept) and (number + 1) * _bytes(batch) <= _CACHED_BYTES:
                kept.append(batch)
        yield batch


def _bytes(batch: ChannelBatch) -> int:
    held = (batch.signal, batch.y, *batch.phi.tensors(), *(batch.rays.tensors() if batch.rays else ()))
    return sum(tensor.nbytes for tensor in held)


def _array(values: Tensor) -> NDArray[np.float64]:
    return values.double().cpu().numpy()
