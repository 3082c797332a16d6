"""The commands: list, run, table, report."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from vlista_core.experiments import Cell, cell_id, experiment_names, get_experiment
from vlista_core.experiments.base import number
from vlista_core.experiments.published import compared
from vlista_core.experiments.report import cells_of, markdown, write_report
from vlista_core.experiments.runner import Finished, pending, run_cells
from vlista_core.experiments.selection import integers, select_cells
from vlista_core.experiments.store import Store, read_cells
from vlista_core.tables import decibels
from vlista_core.tensorfile import Json
from vlista_core.terminal import names_in, one_line_errors, out, progress, say, tell

app = typer.Typer(
    name="vlista_core.experiments",
    help="The paper's experiments: run them, and see ours beside what the paper prints.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Out = Annotated[Path, typer.Option("--out", "-o", help="Folder of the run.")]
FOLDER = Path("out") / "experiments"


@app.callback()
def _main() -> None:
    """The paper's experiments: run them, and see ours beside what the paper prints."""


@app.command("list")
def list_experiments(folder: Out = FOLDER) -> None:
    """List the experiments, and how much of each is done."""
    table = Table("name", "cells", "done", "what it is", box=None, header_style="bold")
    with one_line_errors():
        for name in experiment_names():
            experiment = get_experiment(name)
            cells = experiment.cells()
            done = len(cells) - len(pending(cells, Store(folder), lambda _: None))
            table.add_row(name, str(len(cells)), str(done), experiment.summary)
    out.print(table)


@app.command()
def run(
    name: Annotated[str, typer.Argument(help="An experiment (see `list`), or all.")],
    measurements: Annotated[str | None, typer.Option(help="Only these, with commas between.")] = None,
    models: Annotated[str | None, typer.Option(help="Only these, with commas between.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Only these, with commas between.")] = None,
    hours: Annotated[float | None, typer.Option(help="Start no cell once these have passed.")] = None,
    workers: Annotated[int, typer.Option(help="Processes of this machine.")] = 1,
    scheduler: Annotated[str | None, typer.Option(help="Address of a dask scheduler, in place of workers.")] = None,
    folder: Out = FOLDER,
    data: Annotated[Path | None, typer.Option(help="Folder of the data sets.")] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Run the chosen cells again.")] = False,
) -> None:
    """Run the cells that are not done yet. Run it again after an interruption and it goes on."""
    with one_line_errors():
        chosen = select_cells(
            name,
            models=None if models is None else names_in(models),
            measurements=None if measurements is None else integers("measurements", measurements),
            seeds=None if seeds is None else integers("seeds", seeds),
        )
        store = Store(folder)
        missing = chosen if restart else pending(chosen, store, say)
        if len(missing) < len(chosen):
            say(f"{len(chosen) - len(missing)} of {len(chosen)} cells are done already")
        failed = ended = 0
        with progress() as bar:
            task = bar.add_task(name, total=len(missing))

            def show(cell: Cell, share: float, words: str) -> None:
                bar.update(task, completed=ended + min(share, 0.99), description=f"{cell_id(cell)}: {words}")

            try:
                for finished in run_cells(
                    missing, store, data=data, workers=workers, scheduler=scheduler,
                    hours=math.inf if hours is None else hours, restart=restart, progress=show,
                ):  # fmt: skip
                    ended += 1
                    failed += finished.fault is not None
                    bar.update(task, completed=ended, description=name)
                    _tell(finished)
            except KeyboardInterrupt:
                bar.stop()
                say(f"stopped; what is done is in {folder}, and the same command goes on from there")
                raise typer.Exit(130) from None
    if ended < len(missing):
        say(f"the time is up; {len(missing) - ended} cells are left for the next run")
    if failed:
        say(f"{failed} of {ended} cells failed")
        raise typer.Exit(1)


@app.command("table")
def show_table(name: Annotated[str, typer.Argument(help="An experiment.")], folder: Out = FOLDER) -> None:
    """Print the tables of an experiment, in Markdown: ours, the paper's, the difference."""
    with one_line_errors():
        tell(markdown(get_experiment(name), cells_of(name, read_cells(folder))))


@app.command()
def report(folder: Out = FOLDER) -> None:
    """Write every table and figure, and one HTML page that holds all of them."""
    with one_line_errors():
        page = write_report(folder)
    tell(f"report: {page}")


def describe(cell: Cell, result: dict[str, Json]) -> str:
    """A finished cell in one line: its figure, the printed one, how long it took."""
    key = get_experiment(str(cell["experiment"])).figure
    value = number(result, key)
    words = f"{key.replace('_', ' ')} {decibels(value, 1 if key.endswith('_db') else 3)}"
    paper = compared(str(cell["experiment"]), str(cell["model"]), int(str(cell["measurements"])))
    if paper is not None:
        words += f" (paper {paper[0]:.3f})"
    if (trained := number(result, "train_seconds")) is not None:
        words += f", trained in {trained:.0f} s"
    if "seconds_to_printed" in result:
        reached = number(result, "seconds_to_printed")
        words += (
            ", printed figure not reached" if reached is None else f", printed figure reached after {reached:.0f} s"
        )
    return f"{cell_id(cell)}: {words}, {number(result, 'seconds') or 0.0:.0f} s in all"


def _tell(finished: Finished) -> None:
    if finished.result is None:
        say(f"{cell_id(finished.cell)} failed: {finished.fault}")
    else:
        tell(describe(finished.cell, finished.result))
