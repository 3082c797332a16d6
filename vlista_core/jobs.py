"""Where independent jobs are run: here one after another, in processes of this machine, or on a dask.distributed cluster.

Jobs are taken from an iterable as there is room for them, so that what yields them may stop at any time.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from itertools import islice
from typing import Any, TypeVar

import torch

Job = TypeVar("Job")
Result = TypeVar("Result")


def run_here(work: Callable[[Job], Result], jobs: Iterable[Job]) -> Iterator[tuple[Job, Result]]:
    """One after another."""
    for job in jobs:
        yield job, work(job)


def run_in_processes(work: Callable[[Job], Result], jobs: Iterable[Job], workers: int) -> Iterator[tuple[Job, Result]]:
    """In `workers` fresh processes of one torch thread each, as they finish."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start)
    waiting = iter(jobs)
    running: dict[Future[Result], Job] = {}

    def feed() -> None:
        running.update({pool.submit(work, job): job for job in islice(waiting, workers - len(running))})

    try:
        feed()
        while running:
            finished = [(running.pop(future), future) for future in wait(running, return_when=FIRST_COMPLETED).done]
            feed()
            for job, future in finished:
                yield job, future.result()
    except BrokenProcessPool:
        raise ValueError(
            "a worker process died, perhaps for want of memory; what was finished is kept: run the same command again, "
            "with fewer workers"
        ) from None
    except KeyboardInterrupt:
        for process in pool._processes.values():
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _start() -> None:
    """A worker leaves Ctrl-C to the main process, and its core's neighbours alone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)


def connect(scheduler: str) -> Any:
    """A client of a dask scheduler, or a ValueError if none answers."""
    try:
        distributed: Any = import_module("distributed")
    except ImportError:
        raise ValueError("a scheduler needs dask.distributed: pip install 'vlista[cluster]'") from None
    try:
        distributed.comm.registry.get_backend(distributed.comm.parse_address(scheduler)[0])
        return distributed.Client(scheduler, timeout="10s", set_as_default=False)
    except (OSError, ValueError) as fault:
        raise ValueError(f"no dask scheduler answers at {scheduler}: {fault}") from None


def run_on_cluster(work: Callable[[Job], Result], jobs: Iterable[Job], client: Any) -> Iterator[tuple[Job, Result]]:
    """On the workers of a dask scheduler, one job a thread of theirs, as they finish; they need this package."""
    distributed: Any = import_module("distributed")
    finished = distributed.as_completed(loop=client.loop)
    waiting = iter(jobs)
    running: dict[Any, Job] = {}

    def feed() -> None:
        room = max(1, sum(client.nthreads().values())) - len(running)
        new = {client.submit(work, job, pure=False): job for job in islice(waiting, max(0, room))}
        running.update(new)
        finished.update(list(new))

    try:
        feed()
        for future in finished:
            job = running.pop(future)
            feed()
            yield job, future.result()
    finally:
        client.cancel(list(running))
