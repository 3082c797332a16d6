"""Where independent jobs run beside one another: in processes of this machine, or on a dask.distributed cluster."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from itertools import islice
from typing import Any, TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")


def run_in_processes(work: Callable[[Job], Result], jobs: Iterable[Job], workers: int) -> Iterator[tuple[Job, Result]]:
    """In `workers` fresh processes, which leave interrupts to this one and end with it, as they finish."""
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"), initializer=_become_worker)
    try:
        yield from _run_on(pool, lambda: workers, work, jobs)
    except BrokenProcessPool:
        advice = "what was finished is kept: run the same command again, with fewer workers"
        raise ValueError(f"a worker process died, perhaps for want of memory; {advice}") from None
    except KeyboardInterrupt:
        for process in pool._processes.values():
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _become_worker() -> None:
    """Leave interrupts to the parent, and end when it is killed: a pool alone would leave its processes behind."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)


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
    """On the workers of a dask scheduler, one job per thread of theirs, as they finish; they need this package."""
    cluster = client.get_executor(pure=False)
    try:
        yield from _run_on(cluster, lambda: max(1, sum(client.nthreads().values())), work, jobs)
    finally:
        cluster.shutdown(wait=False)


def _run_on(
    executor: Executor, room: Callable[[], int], work: Callable[[Job], Result], jobs: Iterable[Job]
) -> Iterator[tuple[Job, Result]]:
    """Take jobs only as there is room for them, so that what yields them may stop at any time."""
    waiting = iter(jobs)
    running: dict[Future[Result], Job] = {}
    while True:
        free = max(0, room() - len(running))
        running.update({executor.submit(work, job): job for job in islice(waiting, free)})
        if not running:
            return
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            yield running.pop(future), future.result()
