"""Where cells are run: here one after another, in processes of this machine, or on a dask.distributed cluster."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from typing import Any

import torch

from chanest.evaluation.plan import Cell
from vlista_core.tensorfile import Json

Work = Callable[[Cell], dict[str, Json]]
Finished = Iterator[tuple[Cell, dict[str, Json]]]


def run_here(work: Work, cells: Sequence[Cell]) -> Finished:
    """One after another."""
    for cell in cells:
        yield cell, work(cell)


def run_in_processes(work: Work, cells: Sequence[Cell], workers: int) -> Finished:
    """In `workers` fresh processes of one torch thread each, as they finish."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start)
    try:
        futures = {pool.submit(work, cell): cell for cell in cells}
        for future in as_completed(futures):
            yield futures[future], future.result()
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


def run_on_cluster(work: Work, cells: Sequence[Cell], client: Any) -> Finished:
    """On the workers of a dask scheduler, as they finish; they need this package and the same weights."""
    distributed: Any = import_module("distributed")
    futures = {client.submit(work, cell, pure=False): cell for cell in cells}
    try:
        for future in distributed.as_completed(list(futures), loop=client.loop):
            yield futures[future], future.result()
    finally:
        client.cancel(list(futures))
