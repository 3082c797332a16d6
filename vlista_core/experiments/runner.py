"""Run cells: those that are not there yet, each kept as soon as it is done, whatever happens to the others."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from vlista_core.experiments import Cell, Context, cell_id, load_experiment, place_of
from vlista_core.experiments.store import Store
from vlista_core.jobs import connect, run_here, run_in_processes, run_on_cluster
from vlista_core.problems import check_count
from vlista_core.progress import listening
from vlista_core.provenance import peak_gigabytes
from vlista_core.tensorfile import Json

_FAULTS = (ArithmeticError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError)
"""What may end one cell without ending the others."""

Progress = Callable[[Cell, float, str], None]
"""Called with a cell that runs in this process, the share of it that is done and a few words."""


def _silent(cell: Cell, share: float, words: str) -> None:
    """A Progress that says nothing."""


@dataclass(frozen=True)
class Job:
    """One cell with all that another process needs to run it."""

    place: str
    """Of its experiment, as in the registry."""
    cell: Cell
    data: Path | None
    weights: Path


@dataclass(frozen=True)
class Finished:
    """A cell that has ended: its result, or the fault in its place."""

    cell: Cell
    result: dict[str, Json] | None
    fault: str | None = None


def pending(cells: Iterable[Cell], store: Store, say: Callable[[str], None]) -> list[Cell]:
    """The cells that have no result yet; a file that is cut off is no result, which is said."""
    missing = []
    for cell in cells:
        try:
            found = store.read(cell)
        except ValueError:
            say(f"{cell_id(cell)} was cut off while it was written, or changed since: it is run again")
            found = None
        if found is None:
            missing.append(cell)
    return missing


def run_cells(
    cells: Sequence[Cell],
    store: Store,
    *,
    data: Path | None = None,
    workers: int = 1,
    scheduler: str | None = None,
    hours: float = math.inf,
    restart: bool = False,
    progress: Progress = _silent,
) -> Iterator[Finished]:
    """Run all of `cells` in their order and keep their results; none is started once `hours` have passed.

    A cell that fails is yielded with its fault, and the others go on. Cells that measure time come last and run here.
    restart: forget first what is kept of the cells.
    """
    check_count("workers", workers)
    if not hours > 0:
        raise ValueError(f"hours must be positive, got {hours:g}")
    deadline = time.monotonic() + 3600 * hours
    jobs: dict[bool, list[Job]] = {False: [], True: []}
    for cell in cells:
        place = place_of(str(cell["experiment"]))
        job = Job(place, cell, None if data is None else data.resolve(), store.weights.resolve())
        jobs[load_experiment(place).timed].append(job)
    plain, timed = jobs[False], jobs[True]
    here = partial(run_job, progress=progress)
    with nullcontext() if scheduler is None else connect(scheduler) as client:
        store.open()
        for cell in cells if restart else ():
            store.remove(cell)
        if client is not None:
            ended = run_on_cluster(run_job, _until(deadline, plain), client)
        elif workers > 1 and len(plain) > 1:
            ended = run_in_processes(run_job, _until(deadline, plain), min(workers, len(plain)))
        else:
            ended = run_here(here, _until(deadline, plain))
        yield from _keep(ended, store)
    yield from _keep(run_here(here, _until(deadline, timed)), store)


def run_job(job: Job, progress: Progress = _silent) -> Finished:
    """Run one cell, with one torch thread unless it measures time."""
    start = time.perf_counter()
    context = Context(job.data, job.weights, partial(progress, job.cell))
    try:
        experiment = load_experiment(job.place)
        job.weights.mkdir(parents=True, exist_ok=True)
        with nullcontext() if experiment.timed else _one_thread(), listening(_to(context)):
            result = experiment.run(job.cell, context)
        for key in (experiment.figure, "test_samples"):
            if key not in result:
                raise ValueError(f"its result has no {key}")
        json.dumps(result, allow_nan=False)
    except _FAULTS as fault:
        words = " ".join(str(fault).split()) or "no reason was given"
        return Finished(job.cell, None, words if isinstance(fault, ValueError) else f"{type(fault).__name__}: {words}")
    cost: dict[str, Json] = {"seconds": round(time.perf_counter() - start, 2), "peak_gigabytes": peak_gigabytes()}
    return Finished(job.cell, {**result, **cost})


def _keep(ended: Iterator[tuple[Job, Finished]], store: Store) -> Iterator[Finished]:
    for _, finished in ended:
        if finished.result is not None:
            store.write(finished.cell, finished.result)
            store.write_csv()
        yield finished


def _until(deadline: float, jobs: Iterable[Job]) -> Iterator[Job]:
    """The jobs that may still be started when they are asked for."""
    for job in jobs:
        if time.monotonic() >= deadline:
            return
        yield job


def _to(context: Context) -> Callable[[float, float, float, float], None]:
    def report(share: float, loss: float, validation: float, speed: float) -> None:
        context.report(share, f"validation {validation:.4g}, {speed:.0f} samples/s")

    return report


_lock = threading.Lock()
_inside, _threads = 0, 1


@contextmanager
def _one_thread() -> Iterator[None]:
    """One torch thread; the number before is put back by the last to leave, for a cluster runs cells in threads."""
    global _inside, _threads
    with _lock:
        if _inside == 0:
            _threads = torch.get_num_threads()
            torch.set_num_threads(1)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                torch.set_num_threads(_threads)
