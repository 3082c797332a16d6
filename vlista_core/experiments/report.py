"""The report of a run: tables in Markdown, figures, and one HTML page with all of them; made from the finished cells only."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path

from vlista_core.experiments import Experiment, experiment_names, get_experiment
from vlista_core.experiments.base import Done
from vlista_core.experiments.store import Store, read_cells
from vlista_core.files import check_folder, write_text
from vlista_core.page import figure_html, folded, page_html, quiet, table_html
from vlista_core.tensorfile import Json

TITLE = "Variational Learning ISTA: the experiments"


def cells_of(name: str, done: Done) -> Done:
    """The finished cells of one experiment."""
    return [cell for cell in done if cell["experiment"] == name]


def markdown(experiment: Experiment, done: Done) -> str:
    """Every table of an experiment. done: its finished cells."""
    return "\n".join(table.markdown() for table in experiment.tables(done))


def write_report(folder: Path) -> Path:
    """tables/*.md, figures/*.png and report.html into the folder of a run; returns the path of the page."""
    done = read_cells(folder)
    if not done:
        raise ValueError(f"{folder} holds no finished cells; see python -m vlista_core.experiments run")
    for name in ("tables", "figures"):
        check_folder(folder / name)
    parts = [f"<h1>{escape(TITLE)}</h1>"]
    for name in experiment_names():
        found = cells_of(name, done)
        if found:
            parts += _section(get_experiment(name), found, folder)
    manifest = json.dumps(Store(folder).manifest(), indent=1, ensure_ascii=False)
    parts.append(folded("What the cells were run with", f"<pre>{escape(manifest)}</pre>"))
    page = folder / "report.html"
    write_text(page, page_html(TITLE, parts))
    return page


def _section(experiment: Experiment, done: Done, folder: Path) -> list[str]:
    write_text(folder / "tables" / f"{experiment.name}.md", markdown(experiment, done))
    drawn = experiment.figures(done, folder / "figures")
    return [
        f"<h2>{escape(experiment.name)}</h2>",
        quiet(f"{experiment.summary} {len(done)} of {len(experiment.cells())} cells are done{_minutes(done)}."),
        *(figure_html(figure.title, figure.path, caption=figure.caption, level=3) for figure in drawn),
        *(f"{table_html(table)}<br>" for table in experiment.tables(done)),
    ]


def _minutes(done: list[dict[str, Json]]) -> str:
    total = sum(float(value) for cell in done if isinstance(value := cell.get("seconds"), int | float))
    return f", in {total / 60:.0f} minutes of work" if total >= 90 else ""
