"""The commands: list, run, table, report."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.table import Table

from vlista_core.devices import find_device
from vlista_core.experiments import EXPERIMENTS
from vlista_core.experiments.images import SIZES, ImageExperiment
from vlista_core.study import Cell, Ended, Options, Study, read_study, study_class
from vlista_core.study.commands import FOREVER, Hours, Restart, Scheduler, Workers, finish, run_with_bar
from vlista_core.study.page import markdown, write_page
from vlista_core.study.store import holds_study
from vlista_core.terminal import TrainedOn, names_in, one_line_errors, out, tell

app = typer.Typer(
    name="vlista_core.experiments",
    help="The paper's experiments: run them, and see ours beside what the paper prints.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Output = Annotated[Path, typer.Option("--output", "-o", help="Folder of the run; each experiment has its own in it.")]
Only = Annotated[str | None, typer.Option(help="Only these, with commas between.")]
Sized = Annotated[str, typer.Option(help="full, or half: images of half the width and height, in well under an hour.")]
Wanted = Mapping[str, Sequence[str | int]]
"""Key of a cell -> its wanted values; none wanted is any."""
FOLDER = Path("out") / "experiments"
TITLE = "Variational Learning ISTA: the experiments"


@app.command("list")
def list_experiments(output: Output = FOLDER, size: Sized = "full") -> None:
    """List the experiments, and how much of each is done."""
    table = Table("name", "cells", "done", "what it is", box=None, header_style="bold")
    with one_line_errors():
        for study in chosen_studies("all", size=size):
            folder = output / folder_of(study)
            done = len(read_study(folder, EXPERIMENTS).records) if holds_study(folder) else 0
            table.add_row(study.name, str(len(study.cells())), str(done), study.summary)
    out.print(table)


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
    finish(results)


@app.command("table")
def show_table(
    name: Annotated[str, typer.Argument(help="An experiment.")], output: Output = FOLDER, size: Sized = "full"
) -> None:
    """Print the tables of an experiment, in Markdown: ours, the paper's, the difference."""
    with one_line_errors():
        (study,) = chosen_studies(name, size=size)
        read = read_study(output / folder_of(study), EXPERIMENTS)
        tell(markdown(read.study, read.frame))


@app.command()
def report(output: Output = FOLDER) -> None:
    """Write every table and figure, and one HTML page that holds all of them."""
    with one_line_errors():
        page = write_page(output, EXPERIMENTS, title=TITLE)
    tell(f"report: {page}")


def chosen_studies(
    name: str, data: Path | None = None, device: torch.device | str = "cpu", size: str = "full"
) -> list[Study]:
    """The study of a name, or those of "all", which at half size are those of images."""
    if size not in SIZES:
        raise ValueError(f"size must be one of {', '.join(SIZES)}, got {size!r}")
    found = [study_class(each, EXPERIMENTS) for each in (EXPERIMENTS if name == "all" else [name])]
    shared = {"data": data and data.resolve(), "device": str(device)}
    if size == "full":
        return [kind.model_validate(shared) for kind in found]
    images = [kind for kind in found if issubclass(kind, ImageExperiment)]
    if not images:
        raise ValueError(f"{name} has no images, so size must be full, got {size}")
    return [kind.model_validate({**shared, "size": size}) for kind in images]


def folder_of(study: Study) -> str:
    """Where a study lies in the folder of a run."""
    half = isinstance(study, ImageExperiment) and study.size == "half"
    return f"{study.name}-half" if half else study.name


def wanted_studies(name: str, studies: Sequence[Study], wanted: Wanted) -> list[Study]:
    """The studies that have wanted cells; ValueError unless there are some, and each value is one of some cell."""
    where = f"{name} has no cells" if name != "all" else "no experiment has cells"
    for key, values in wanted.items():
        known = list(dict.fromkeys(cell[key] for study in studies for cell in study.cells() if key in cell))
        for value in (value for value in values if value not in known):
            raise ValueError(f"{where} with {key} {value!s}; allowed are {', '.join(map(str, known))}")
    found = [study for study in studies if any(is_wanted(cell, wanted) for cell in study.cells())]
    if not found:
        raise ValueError(f"{name} has no cell with all of these models, measurements and seeds at once")
    return found


def is_wanted(cell: Cell, wanted: Wanted) -> bool:
    """Whether a cell has one of the wanted values of each key."""
    return all(not values or cell.get(key) in values for key, values in wanted.items())


def integers(option: str, text: str | None) -> list[int]:
    """Integers with commas between, none for None, or a ValueError that names the option."""
    try:
        return [] if text is None else [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{option} must be integers with commas between, such as 1,10, got {text!r}") from None


def _tell(ended: Ended) -> None:
    """A finished cell in one line."""
    if ended.record is not None:
        words = ended.study.describe(ended.record.cell, ended.record.row)
        tell(f"{ended.name}: {words}, {ended.record.provenance.seconds or 0.0:.0f} s in all")
