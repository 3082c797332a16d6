"""What the commands of all studies share: the spelling of their options, the bar, what is printed at the end, exit codes."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import typer

from vlista_core.study.base import Study
from vlista_core.study.page import write_page
from vlista_core.study.run import Ended, Options, Result, run_studies
from vlista_core.study.store import Registry, read_study
from vlista_core.study.tables import print_table
from vlista_core.terminal import (
    FOREVER,
    Hours,
    Output,
    Restart,
    Scheduler,
    Workers,
    next_step,
    out,
    say,
    step_bar,
    tell,
)  # fmt: skip

__all__ = [
    "FOREVER", "Hours", "Output", "Restart", "Scheduler", "Workers", "finish", "run_command", "run_with_bar", "show",
]  # fmt: skip


_NO_OPTIONS = frozenset({"bounds"})
"""Fields that grow and that no option names one by one."""


def run_command(study: Study, folder: Path, registry: Registry, options: Options) -> None:
    """Run one study with a bar into `folder`, write its page, print its tables; exit code 1 where cells failed."""
    for note in options.notes:
        say(f"note: {note}")
    results = run_with_bar(study.title(), {folder: study}, folder, options)
    if results[0].records:
        options_of = " or ".join(f"--{name.removesuffix('_db')}" for name in sorted(study.growing - _NO_OPTIONS))
        show(folder, registry, f"; the same command with others in {options_of} adds them" if options_of else "")
    finish(results)


def run_with_bar(title: str, studies: dict[Path, Study], folder: Path, options: Options) -> list[Result]:
    """Run studies, by the folder of each, with one bar. A fault is said at once; Ctrl-C ends in a sentence and in code 130.

    folder: where all of it is, with the weights that the studies share.
    """

    def ended(each: Ended) -> None:
        if each.fault is not None:
            say(f"{each.name} failed: {each.fault}")
        if options.ended is not None:
            options.ended(each)

    with step_bar(title, resumes_in=folder) as progress:
        return run_studies(studies, folder / "weights", replace(options, progress=progress, ended=ended))


def finish(results: Sequence[Result]) -> None:
    """Say what is left and how much has failed; exit code 1 where something has."""
    left, failed = sum(each.left for each in results), sum(len(each.faults) for each in results)
    if left:
        say(f"the time is up; {left} cells are left for the next run")
    if failed:
        say(f"cells that failed: {failed}; the same command tries them again")
        raise typer.Exit(1)


def show(folder: Path, registry: Registry, more: str = "") -> None:
    """Write the page of a folder; print the tables and the message of its own study, and what to do next, and `more`."""
    page, read = write_page(folder, registry), read_study(folder, registry)
    frame = read.frame
    for table in read.study.tables(frame):
        if not table.detail:
            print_table(table, out)
    if message := read.study.headline(frame):
        tell(message)
    tell(f"report: {page}")
    next_step(f"open the report in a browser{more}")
