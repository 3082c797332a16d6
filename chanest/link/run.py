"""Run a plan: the cells that are not there yet, each stored as soon as it is done, then the results of all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import cast

from chanest.evaluation.stored import finished_cells
from chanest.link.plan import Cell, LinkPlan, cell_id
from chanest.link.results import LinkResults, LinkRow
from vlista_core.files import check_folder, read_json, write_json
from vlista_core.jobs import run_here, run_in_processes
from vlista_core.problems import check_count
from vlista_core.provenance import environment, now
from vlista_core.tensorfile import Json

Progress = Callable[[int, int, str], None]
"""Called with the cells done, the cells in all and what was done last."""


def _silent(done: int, total: int, words: str) -> None:
    """A Progress that says nothing."""


def run_link(
    plan: LinkPlan,
    folder: Path | str,
    *,
    workers: int = 1,
    restart: bool = False,
    notes: tuple[str, ...] = (),
    progress: Progress = _silent,
) -> LinkResults:
    """Run `plan` into `folder` and return its results.

    A folder that holds a part of it is continued, and so is one of a plan that differs in its receivers or SNRs alone.
    """
    folder = Path(folder)
    check_count("workers", workers)
    plan.check_receivers()
    todo = plan.cells()
    _prepare(plan, folder, restart)
    stored = finished_cells(folder, {cell_id(cell): cell for cell in todo})
    missing = [cell for cell in todo if cell_id(cell) not in stored]
    progress(len(stored), len(todo), "")
    for cell, result in _results(missing, workers):
        write_json(folder / "cells" / f"{cell_id(cell)}.json", {"cell": cast(Json, cell), "result": result})
        stored[cell_id(cell)] = result
        progress(len(stored), len(todo), cell_id(cell))
    return _collect(plan, folder, todo, stored, notes)


def _results(cells: list[Cell], workers: int) -> Iterator[tuple[Cell, dict[str, Json]]]:
    if not cells:
        return iter(())
    from chanest.link.cells import run_cell

    return run_here(run_cell, cells) if workers == 1 else run_in_processes(run_cell, cells, min(workers, len(cells)))


def _prepare(plan: LinkPlan, folder: Path, restart: bool) -> None:
    """The folder with the manifest of this plan in it, or a ValueError if it holds another run."""
    check_folder(folder)
    check_folder(folder / "cells")
    path = folder / "manifest.json"
    kept = path.is_file() and not restart
    if kept:
        before = read_json(path)
        if before.get("plan_hash") == plan.hash():
            return
        if _alike(before.get("plan")) != _alike(plan.to_json()):
            raise ValueError(f"{folder} holds a run of other blocks; give another folder, or restart to replace it")
    stale = [] if kept else [*(folder / "cells").glob("*.json")]
    for old in [*stale, folder / "results.json", folder / "results.csv"]:
        old.unlink(missing_ok=True)
    write_json(
        path,
        {
            "plan_hash": plan.hash(),
            "started": now(),
            "finished": None,
            "split": "test",
            **environment("sionna-no-rt"),
            "notes": [],
            "plan": plan.to_json(),
        },
    )


def _alike(plan: Json) -> Json:
    """What plans must share for the cells of one to serve the other."""
    return (
        {key: value for key, value in plan.items() if key not in ("receivers", "snr_db")}
        if isinstance(plan, dict)
        else None
    )


def _collect(
    plan: LinkPlan, folder: Path, todo: list[Cell], stored: dict[str, dict[str, Json]], notes: tuple[str, ...]
) -> LinkResults:
    known = {field.name for field in fields(LinkRow)}
    rows = []
    for cell in todo:
        for mode, figures in stored[cell_id(cell)].items():
            values = {"err_var": mode, **cell, **cast(dict[str, Json], figures)}
            rows.append(LinkRow(**{key: value for key, value in values.items() if key in known}))  # type: ignore[arg-type]
    manifest = {**read_json(folder / "manifest.json"), "finished": now(), "notes": cast(Json, list(notes))}
    results = LinkResults(plan, tuple(rows), manifest)
    results.write(folder)
    return results
