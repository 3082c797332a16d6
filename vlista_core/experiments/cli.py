"""The commands: list, run, table, report. What one needs is imported when it runs, so that help comes at once."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vlista_core.terminal import (
    FOREVER,
    Hours,
    Restart,
    Scheduler,
    TrainedOn,
    Version,
    Workers,
    names_in,
    next_step,
    one_line_errors,
    out,
    tell,
)

if TYPE_CHECKING:
    from vlista_core.experiments.choosing import Wanted
    from vlista_core.study import Ended

app = typer.Typer(
    name="vlista_core.experiments",
    help="The paper's experiments: run them, and see ours beside what the paper prints.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Output = Annotated[Path, typer.Option("--output", "-o", help="Folder of the run; each experiment has its own in it.")]
Only = Annotated[str | None, typer.Option(help="Only these, with commas between.")]
Sized = Annotated[str, typer.Option(help="full, or half: images of half the width and height, in well under an hour.")]
FOLDER = Path("out") / "experiments"
TITLE = "Variational Learning ISTA: the experiments"
_PROGRAM = "python -m vlista_core.experiments"


@app.callback()
def _main(version: Version = False) -> None:
    """The paper's experiments: run them, and see ours beside what the paper prints."""


@app.command("list")
def list_experiments(output: Output = FOLDER, size: Sized = "full") -> None:
    """List the experiments, and how much of each is done."""
    from rich.table import Table

    from vlista_core.experiments import EXPERIMENTS
    from vlista_core.experiments.choosing import chosen_studies, folder_of
    from vlista_core.study import read_study
    from vlista_core.study.store import holds_study

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("cells", justify="right", no_wrap=True)
    table.add_column("done", justify="right", no_wrap=True)
    table.add_column("what it is")
    count = finished = 0
    with one_line_errors():
        for study in chosen_studies("all", size=size):
            folder = output / folder_of(study)
            done = len(read_study(folder, EXPERIMENTS).records) if holds_study(folder) else 0
            table.add_row(study.name, str(len(study.cells())), str(done), study.summary)
            count, finished = count + len(study.cells()), finished + done
    out.print(table)
    tell(f"{finished} of {count} cells are done in {output}")
    next_step(f"{_PROGRAM} run NAME")


@app.command()
def run(
    name: Annotated[str, typer.Argument(help="An experiment (see `list`), or all.")],
    measurements: Only = None,
    models: Only = None,
    seeds: Only = None,
    recipes: Only = None,
    size: Sized = "full",
    data: Annotated[Path | None, typer.Option(help="Folder of the data sets.")] = None,
    hours: Hours = FOREVER,
    workers: Workers = 1,
    scheduler: Scheduler = None,
    output: Output = FOLDER,
    restart: Restart = False,
    device: TrainedOn = "auto",
) -> None:
    """Run the cells that are not done yet. Run it again after an interruption and it goes on."""
    from vlista_core.devices import find_device
    from vlista_core.experiments.choosing import chosen_studies, folder_of, integers, is_wanted, wanted_studies
    from vlista_core.study import Options
    from vlista_core.study.commands import finish, run_with_bar

    with one_line_errors():
        wanted: Wanted = {
            "measurements": integers("measurements", measurements),
            "model": names_in(models or ""),
            "seed": integers("seeds", seeds),
            "recipe": names_in(recipes or ""),
        }
        studies = wanted_studies(name, chosen_studies(name, data, find_device("device", device), size), wanted)
        options = Options(workers, scheduler, restart, hours, (), lambda cell: is_wanted(cell, wanted), None, _tell)
        results = run_with_bar(name, {output / folder_of(study): study for study in studies}, output, options)
    done = sum(len(result.records) for result in results)
    all_cells = sum(len(result.study.cells()) for result in results)
    tell(f"{done} of {all_cells} cells of {name} are done")
    if done:
        table = "" if name == "all" else f"{_PROGRAM} table {name} -o {output}, or "
        next_step(f"{table}{_PROGRAM} report {output}")
    finish(results)


@app.command("table")
def show_table(
    name: Annotated[str, typer.Argument(help="An experiment.")], output: Output = FOLDER, size: Sized = "full"
) -> None:
    """Print the tables of an experiment, in Markdown: ours, the paper's, the difference."""
    from vlista_core.experiments import EXPERIMENTS
    from vlista_core.experiments.choosing import chosen_studies, folder_of
    from vlista_core.study import read_study
    from vlista_core.study.page import markdown

    with one_line_errors():
        (study,) = chosen_studies(name, size=size)
        read = read_study(output / folder_of(study), EXPERIMENTS)
        tell(markdown(read.study, read.frame))


@app.command()
def report(run: Annotated[Path, typer.Argument(help="The folder of a run.")] = FOLDER) -> None:
    """Write every table and figure, and one HTML page that holds all of them."""
    from vlista_core.experiments import EXPERIMENTS
    from vlista_core.study.page import write_page

    with one_line_errors():
        page = write_page(run, EXPERIMENTS, title=TITLE)
    tell(f"report: {page}")
    next_step("open the report in a browser")


def _tell(ended: "Ended") -> None:
    """A finished cell in one line."""
    if ended.record is not None:
        words = ended.study.describe(ended.record.cell, ended.record.row)
        tell(f"{ended.name}: {words}, {ended.record.provenance.seconds or 0.0:.0f} s in all")
