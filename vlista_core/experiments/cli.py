"""The commands: list, run, table, report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from vlista_core.experiments import EXPERIMENTS
from vlista_core.study import Cell, Ended, Options, Study, read_study, study_class
from vlista_core.study.commands import FOREVER, Hours, Restart, Scheduler, Workers, finish, run_with_bar
from vlista_core.study.page import markdown, write_page
from vlista_core.study.store import holds_study
from vlista_core.terminal import names_in, one_line_errors, out, tell

app = typer.Typer(
    name="vlista_core.experiments",
    help="The paper's experiments: run them, and see ours beside what the paper prints.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Output = Annotated[Path, typer.Option("--output", "-o", help="Folder of the run; each experiment has its own in it.")]
FOLDER = Path("out") / "experiments"
TITLE = "Variational Learning ISTA: the experiments"


@app.callback()
def _main() -> None:
    """The paper's experiments: run them, and see ours beside what the paper prints."""


@app.command("list")
def list_experiments(output: Output = FOLDER) -> None:
    """List the experiments, and how much of each is done."""
    table = Table("name", "cells", "done", "what it is", box=None, header_style="bold")
    with one_line_errors():
        for study in chosen_studies("all"):
            folder = output / study.name
            done = len(read_study(folder, EXPERIMENTS).records) if holds_study(folder) else 0
            table.add_row(study.name, str(len(study.cells())), str(done), study.summary)
    out.print(table)


@app.command()
def run(
    name: Annotated[str, typer.Argument(help="An experiment (see `list`), or all.")],
    measurements: Annotated[str | None, typer.Option(help="Only these, with commas between.")] = None,
    models: Annotated[str | None, typer.Option(help="Only these, with commas between.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Only these, with commas between.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of the data sets.")] = None,
    hours: Hours = FOREVER,
    workers: Workers = 1,
    scheduler: Scheduler = None,
    output: Output = FOLDER,
    restart: Restart = False,
) -> None:
    """Run the cells that are not done yet. Run it again after an interruption and it goes on."""
    with one_line_errors():
        wanted: dict[str, Sequence[str | int]] = {
            "measurements": [] if measurements is None else integers("measurements", measurements),
            "model": [] if models is None else names_in(models),
            "seed": [] if seeds is None else integers("seeds", seeds),
        }
        studies = chosen_studies(name, data)
        check_wanted(name, studies, wanted)
        folders = {
            output / study.name: study for study in studies if any(is_wanted(cell, wanted) for cell in study.cells())
        }
        options = Options(workers, scheduler, restart, hours, (), lambda cell: is_wanted(cell, wanted), None, _tell)
        results = run_with_bar(name, folders, output, options)
    finish(results)


@app.command("table")
def show_table(name: Annotated[str, typer.Argument(help="An experiment.")], output: Output = FOLDER) -> None:
    """Print the tables of an experiment, in Markdown: ours, the paper's, the difference."""
    with one_line_errors():
        study_class(name, EXPERIMENTS)
        read = read_study(output / name, EXPERIMENTS)
        tell(markdown(read.study, read.frame))


@app.command()
def report(output: Output = FOLDER) -> None:
    """Write every table and figure, and one HTML page that holds all of them."""
    with one_line_errors():
        page = write_page(output, EXPERIMENTS, title=TITLE)
    tell(f"report: {page}")


def chosen_studies(name: str, data: Path | None = None) -> list[Study]:
    """The study of a name, or those of "all"."""
    found = [study_class(each, EXPERIMENTS) for each in (EXPERIMENTS if name == "all" else [name])]
    return [kind.model_validate({"data": data and data.resolve()}) for kind in found]


def check_wanted(name: str, studies: Sequence[Study], wanted: dict[str, Sequence[str | int]]) -> None:
    """ValueError unless some cell has all wanted values, and each value is one of some cell."""
    cells = [cell for study in studies for cell in study.cells()]
    where = f"{name} has no cells" if name != "all" else "no experiment has cells"
    for key, values in wanted.items():
        known = list(dict.fromkeys(cell[key] for cell in cells))
        for value in values:
            if value not in known:
                raise ValueError(f"{where} with {key} {value!s}; allowed are {', '.join(str(each) for each in known)}")
    if not any(is_wanted(cell, wanted) for cell in cells):
        raise ValueError(f"{name} has no cell with all of these models, measurements and seeds at once")


def is_wanted(cell: Cell, wanted: dict[str, Sequence[str | int]]) -> bool:
    """Whether a cell has one of the wanted values of each key; none wanted is any."""
    return all(not values or cell[key] in values for key, values in wanted.items())


def integers(option: str, text: str) -> list[int]:
    """Integers with commas between, or a ValueError that names the option."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{option} must be integers with commas between, such as 1,10, got {text!r}") from None


def _tell(ended: Ended) -> None:
    """A finished cell in one line."""
    if ended.record is not None:
        words = ended.study.describe(ended.record.cell, ended.record.row)
        tell(f"{ended.name}: {words}, {ended.record.provenance.seconds or 0.0:.0f} s in all")
