"""Run studies: the cells that are not there yet, each kept as soon as it is done, whatever happens to the others."""

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, Self

import pandas as pd
import torch
from pydantic import ValidationError

from vlista_core.files import UnwritableError, check_folder, in_words
from vlista_core.problems import check_count
from vlista_core.progress import known_figures, listening
from vlista_core.study.base import Cell, Context, Study, silent
from vlista_core.study.spread import connect, run_in_processes, run_on_cluster
from vlista_core.study.store import Provenance, Record, Store, frame, holds_study

_FAULTS = (ArithmeticError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError)
"""What may end one cell without ending the others."""
Progress = Callable[[float, int, str], None]
"""Called with the cells done (a part of the running one counts), the cells in all and a few words."""


@dataclass(frozen=True)
class Ended:
    """A cell that has just ended: its record, or the fault in its place."""

    study: Study
    name: str
    """The `cell_id`."""
    record: Record | None
    fault: str | None


@dataclass(frozen=True)
class Options:
    """How to run: see `run_study`."""

    workers: int = 1
    scheduler: str | None = None
    restart: bool = False
    hours: float = math.inf
    notes: Sequence[str] = ()
    chosen: Callable[[Cell], bool] | None = None
    progress: Progress | None = None
    ended: Callable[[Ended], None] | None = None

    def __post_init__(self) -> None:
        check_count("workers", self.workers)
        if not self.hours > 0:
            raise ValueError(f"hours must be positive, got {self.hours:g}")


@dataclass(frozen=True)
class Result:
    """What a run came to."""

    study: Study
    """With what earlier runs into the folder had in its growing fields."""
    folder: Path
    records: tuple[Record, ...]
    """Of all cells that are done, in the order of `study.cells()`."""
    faults: dict[str, str]
    """Name of each cell that failed -> why."""
    left: int
    """Cells that were not started because the time was up."""

    @property
    def frame(self) -> pd.DataFrame:
        return frame(self.records)


def run_study(
    study: Study,
    folder: Path | str,
    *,
    workers: int = 1,
    scheduler: str | None = None,
    restart: bool = False,
    hours: float = math.inf,
    notes: Sequence[str] = (),
    chosen: Callable[[Cell], bool] | None = None,
    progress: Progress | None = None,
    ended: Callable[[Ended], None] | None = None,
) -> Result:
    """Run `study` into `folder`; a folder that holds a part of it already is continued.

    workers: processes of this machine; scheduler: address of a dask scheduler, in their place. restart: forget first what
    the folder holds. hours: start no cell once these have passed. chosen: which cells to run (and to restart), all if None.
    ended: called after every cell.
    """
    options = Options(workers, scheduler, restart, hours, notes, chosen, progress, ended)
    return run_studies({Path(folder): study}, Path(folder) / "weights", options)[0]


def run_studies(studies: Mapping[Path, Study], scratch: Path, options: Options) -> list[Result]:
    """Run several studies at once, given by the folder of each; `scratch` is for the weights of all.

    Cells are interleaved, so that the most important of each study come before the rest of any.
    """
    for study in studies.values():
        _named_cells(study)
    threads, progress = torch.get_num_threads(), options.progress or (lambda done, total, words: None)
    with ExitStack() as stack:
        client = None if options.scheduler is None else stack.enter_context(connect(options.scheduler))
        stores = {folder: Store(folder) for folder in studies}
        for store in stores.values():
            stack.enter_context(store.writing())
        stack.callback(torch.set_num_threads, threads)
        parts = [_Part.opened(study, stores[folder], scratch, options) for folder, study in studies.items()]
        jobs, done = _jobs(parts, scratch.resolve(), threads), sum(len(part.done) for part in parts)
        total = done + len(jobs)

        def report(job: _Job, share: float, words: str) -> None:
            progress(done + min(share, 0.99), total, f"{job.name}: {words}")

        progress(done, total, "")
        for job, found in _each(jobs, report, client, options):
            ended = parts[job.place].keep(job.name, found)
            done += 1
            progress(done, total, job.name)
            if options.ended is not None:
                options.ended(ended)
        return [part.result() for part in parts]


@dataclass(frozen=True)
class _Job:
    """One cell with all that another process needs to run it."""

    study: Study
    name: str
    cell: Cell
    scratch: Path
    threads: int
    place: int
    """Of its study in the run."""
    stays: bool
    """Whether only the main process can run it."""


@dataclass
class _Part:
    """One study of a run: what is done of it and what is to do."""

    study: Study
    store: Store
    cells: dict[str, Cell]
    """By name."""
    done: dict[str, Record]
    missing: set[str]
    faults: dict[str, str] = field(default_factory=dict)

    @classmethod
    def opened(cls, study: Study, store: Store, scratch: Path, options: Options) -> Self:
        """Make a locked folder ready for rows, and find what is done."""
        kept: dict[str, Record] = {}
        if holds_study(store.folder) and not (options.restart and options.chosen is None):
            try:
                study = _extended(study, store)
                kept = store.latest(study)
            except ValueError:
                if not options.restart:
                    raise
        cells = _named_cells(study)
        chosen = {name for name, cell in cells.items() if options.chosen is None or options.chosen(cell)}
        if options.restart:
            kept = {name: record for name, record in kept.items() if name not in chosen}
        store.begin(study, cells, options.notes, kept.values(), restart=options.restart)
        if options.restart:
            for path in (path for name in chosen for path in scratch.glob(f"{name}.*")):
                path.unlink()
        done = {
            name: kept[name]
            for name, cell in cells.items()
            if name in kept and kept[name].cell == cell and not study.afresh(cell)
        }
        return cls(study, store, cells, done, chosen - done.keys())

    def keep(self, name: str, found: Record | str) -> Ended:
        """Take note of how a cell has ended."""
        self.missing.remove(name)
        if isinstance(found, str):
            self.faults[name] = found
            return Ended(self.study, name, None, found)
        self.store.append(found)
        self.done[name] = found
        return Ended(self.study, name, found, None)

    def result(self) -> Result:
        records = tuple(self.done[name] for name in self.cells if name in self.done)
        return Result(self.study, self.store.folder, records, self.faults, len(self.missing))


def _each(
    jobs: Sequence[_Job], report: Callable[[_Job, float, str], None], client: Any, options: Options
) -> Iterator[tuple[_Job, Record | str]]:
    """The jobs as they end; none is started after the deadline."""
    deadline = time.monotonic() + 3600 * options.hours

    def in_time(jobs: Sequence[_Job]) -> Iterator[_Job]:
        return takewhile(lambda job: time.monotonic() < deadline, jobs)

    spread = [job for job in jobs if not job.stays]
    if client is not None:
        yield from run_on_cluster(run_job, in_time(spread), client)
    elif options.workers > 1 and len(spread) > 1:
        yield from run_in_processes(run_job, in_time(spread), min(options.workers, len(spread)))
    else:
        spread = []
    yield from ((job, run_job(job, report)) for job in in_time(jobs[len(spread) :]))


def run_job(job: _Job, report: Callable[[_Job, float, str], None] | None = None) -> Record | str:
    """The record of a cell, or what went wrong; a disk that takes no files ends the run, not the cell."""
    start = time.perf_counter()
    context = Context(job.scratch, silent if report is None else partial(report, job))

    def training(share: float, loss: float, validation: float, speed: float) -> None:
        context.report(share, f"{known_figures(validation=validation)}, {speed:.0f} samples/s")

    try:
        torch.set_num_threads(job.threads)
        check_folder(job.scratch)
        context.report(0.0, "begins")
        with listening(training):
            row = job.study.run(job.cell, context)
        row = json.loads(json.dumps(row, allow_nan=False))
        made = Provenance.here(job.cell, row, time.perf_counter() - start, job.study.packages)
        return Record(cell=job.cell, row=row, provenance=made)
    except UnwritableError:
        raise
    except _FAULTS as fault:
        words = in_words(fault) if isinstance(fault, OSError) else str(fault)
        words = " ".join(words.split()) or "no reason was given"
        return words if isinstance(fault, OSError | ValueError) else f"{type(fault).__name__}: {words}"


def _extended(study: Study, store: Store) -> Study:
    """`study` with what the folder has more of in its growing fields, or a ValueError if the folder holds something else."""
    about, advice = store.about(), "give another folder, or --restart to replace it"
    if about.study != study.name:
        raise ValueError(f"{store.folder} holds a study of another kind, {about.study}; {advice}")
    try:
        before = type(study).model_validate_json(json.dumps(about.configuration))
    except ValidationError:
        raise ValueError(f"{store.folder} holds a {study.name} study of another version; {advice}") from None
    old, new = before.configuration(), study.configuration()
    changed = [key.replace("_", " ") for key in new if old[key] != new[key] and key not in study.growing]
    if changed:
        raise ValueError(f"{store.folder} holds another {study.name} study, with other {', '.join(changed)}; {advice}")
    union = {key: tuple(dict.fromkeys((*getattr(before, key), *getattr(study, key)))) for key in study.growing}
    return study.model_copy(update=union)


def _named_cells(study: Study) -> dict[str, Cell]:
    """The cells by name, as they come back from a file."""
    cells: list[Cell] = json.loads(json.dumps(study.cells(), allow_nan=False))
    named = {study.cell_id(cell): cell for cell in cells}
    if len(named) < len(cells):
        raise ValueError(f"two cells of {study.name} have one name; see cell_id")
    return named


def _jobs(parts: Sequence[_Part], scratch: Path, threads: int) -> list[_Job]:
    """The missing cells of all studies: what can be spread, then what belongs to this process, then what measures time.

    The most important cells of each study come first. What is spread has no private attributes, which only this process has.
    """
    ranked: list[tuple[tuple[bool, bool, float], _Job]] = []
    for place, part in enumerate(parts):
        study, kind = part.study, type(part.study)
        bare = kind.model_construct(**{name: getattr(study, name) for name in kind.model_fields})
        for rank, (name, cell) in enumerate(part.cells.items()):
            if name in part.missing:
                timed, stays = study.timed(cell), study.timed(cell) or study.afresh(cell)
                job = _Job(study if stays else bare, name, cell, scratch, threads if timed else 1, place, stays)
                ranked.append(((timed, stays, rank / len(part.cells)), job))
    return [job for _, job in sorted(ranked, key=lambda pair: pair[0])]
