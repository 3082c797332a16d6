"""Run a plan: the cells that are not there yet, each stored as soon as it is done, then the results of all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import cast

from chanest.bounds import BOUNDS
from chanest.estimators import estimator_names
from chanest.evaluation import cells as work
from chanest.evaluation.plan import Cell, Plan, cell_id
from chanest.evaluation.results import Results, Row, finished_manifest, new_manifest
from chanest.evaluation.stored import finished_cells
from chanest.problem import ChannelProblem
from chanest.scenario import Scenario
from chanest.weights import get_estimator
from vlista_core.estimate import Estimator
from vlista_core.files import check_folder, file_digest, read_json, write_json
from vlista_core.jobs import connect, run_here, run_in_processes, run_on_cluster
from vlista_core.problems import check_count
from vlista_core.tensorfile import Json

Progress = Callable[[int, int, str], None]
"""Called with the cells done, the cells in all and what was done last."""


def _silent(done: int, total: int, words: str) -> None:
    """A Progress that says nothing."""


def evaluate(
    plan: Plan,
    folder: Path | str,
    *,
    extra: Mapping[str, Estimator] | None = None,
    workers: int = 1,
    scheduler: str | None = None,
    restart: bool = False,
    notes: tuple[str, ...] = (),
    progress: Progress = _silent,
) -> Results:
    """Run `plan` into `folder` and return its results; a folder that holds a part of it already is continued.

    extra: estimators of your own by the names the plan has for them. They run in this process and always afresh, for
    nobody can tell whether their code has changed. Latencies are measured last, here, with nothing beside them.
    """
    folder, extra = Path(folder), dict(extra or {})
    check_count("workers", workers)
    _check_names(plan, extra)
    todo = _cells(plan, extra)
    with nullcontext() if scheduler is None else connect(scheduler) as client:
        _prepare(plan, folder, restart)
        stored = finished_cells(folder, {cell_id(cell): cell for cell in todo if cell["name"] not in extra})
        missing = [cell for cell in todo if cell_id(cell) not in stored]
        progress(len(stored), len(todo), "")

        def keep(finished: Iterator[tuple[Cell, dict[str, Json]]]) -> None:
            for cell, result in finished:
                write_json(folder / "cells" / f"{cell_id(cell)}.json", {"cell": cast(Json, cell), "result": result})
                stored[cell_id(cell)] = result
                progress(len(stored), len(todo), cell_id(cell))

        by_name = [cell for cell in missing if cell["name"] not in extra]
        errors = [cell for cell in by_name if cell["kind"] != "cost"]
        if client is not None:
            keep(run_on_cluster(work.run_cell, errors, client))
        elif workers > 1 and errors:
            keep(run_in_processes(work.run_cell, errors, min(workers, len(errors))))
        else:
            keep(run_here(work.run_cell, errors))
        for name, estimator in extra.items():
            own = partial(work.run_with, estimator)
            keep(run_here(own, [cell for cell in missing if cell["name"] == name]))
        keep(run_here(work.run_cell, [cell for cell in by_name if cell["kind"] == "cost"]))
    return _collect(plan, folder, todo, stored, notes)


def usable_estimators(scenario: Scenario, trained_on: str | None = None) -> tuple[list[str], list[str]]:
    """The registered estimators that can run on a scenario now, and a line on each that cannot."""
    problem, usable, notes = ChannelProblem(scenario), [], []
    for name in estimator_names():
        try:
            get_estimator(name, problem, trained_on=work.lender(name, trained_on))
        except ValueError as fault:
            notes.append(f"{name} is left out: {fault}")
        else:
            usable.append(name)
    return usable, notes


def usable_bounds(scenario: Scenario) -> list[str]:
    """The bounds that are defined for a scenario."""
    problem = ChannelProblem(scenario)
    return [name for name, bound in BOUNDS.items() if bound.applies(problem)]


def _check_names(plan: Plan, extra: Mapping[str, Estimator]) -> None:
    """ValueError unless every name of the plan stands for something that can run."""
    problem = ChannelProblem(plan.scenario)
    for name in extra:
        if name in estimator_names() or name in BOUNDS:
            raise ValueError(f"{name} is the name of a registered estimator or bound; give yours another")
        if name not in plan.estimators:
            raise ValueError(f"the plan does not name {name}; add it to its estimators: {', '.join(plan.estimators)}")
    for name in plan.estimators:
        if name not in extra:
            get_estimator(name, problem, trained_on=work.lender(name, plan.trained_on))
    for name in plan.bounds:
        if name not in BOUNDS:
            raise ValueError(f"unknown bound {name!r}; known are {', '.join(BOUNDS)}")
        if not BOUNDS[name].applies(problem):
            raise ValueError(f"the bound {name} is not defined for {plan.scenario.name}")


def _cells(plan: Plan, extra: Mapping[str, Estimator]) -> list[Cell]:
    """Point by point, so that all share the draws of a point; costs last."""
    paths = {
        name: work.weights_path(name, plan.scenario.name, plan.trained_on)
        for name in plan.estimators
        if name not in extra
    }
    weights = {name: file_digest(path) for name, path in paths.items() if path is not None}
    cells = []
    for value, snr in plan.points():
        cells += [plan.cell("estimator", name, value, snr, weights.get(name)) for name in plan.estimators]
        cells += [plan.cell("bound", name, value, snr, None) for name in plan.bounds]
    middle = plan.middle_snr()
    return cells + [plan.cell("cost", name, middle, middle, weights.get(name)) for name in plan.estimators]


def _prepare(plan: Plan, folder: Path, restart: bool) -> None:
    """The folder with the manifest of this plan in it, or a ValueError if it holds another evaluation."""
    check_folder(folder)
    check_folder(folder / "cells")
    path = folder / "manifest.json"
    if path.is_file() and not restart:
        before = read_json(path)
        if before.get("plan_hash") == plan.hash():
            return
        raise ValueError(
            f"{folder} holds another evaluation ({_difference(before.get('plan'), plan)}); give another folder, or "
            "restart to replace it"
        )
    for old in [*(folder / "cells").glob("*.json"), folder / "results.json", folder / "results.csv"]:
        old.unlink(missing_ok=True)
    write_json(path, new_manifest(plan))


def _difference(before: Json, plan: Plan) -> str:
    """What another plan has different, in a few words."""
    now = plan.to_json()
    if not isinstance(before, dict):
        return "of another version"
    changed = [field.name for field in fields(Plan) if before.get(field.name) != now[field.name]]
    return "with other " + ", ".join(name.replace("_", " ") for name in changed)


def _collect(
    plan: Plan, folder: Path, todo: list[Cell], stored: dict[str, dict[str, Json]], notes: tuple[str, ...]
) -> Results:
    """Rows with the cost of their estimator beside the error, written to the folder."""
    costs = {cell["name"]: dict(stored[cell_id(cell)]) for cell in todo if cell["kind"] == "cost"}
    weights = {name: cost.pop("provenance") for name, cost in costs.items()}
    known = {field.name for field in fields(Row)}
    rows = []
    for cell in (cell for cell in todo if cell["kind"] != "cost"):
        values: dict[str, Json] = {
            **{key: cell[key] for key in ("kind", "name", "value", "snr_db", "weights")},
            "label": cell["name"],
            "sweep": plan.sweep,
            **costs.get(cell["name"], {}),
            **stored[cell_id(cell)],
        }
        rows.append(Row(**{key: value for key, value in values.items() if key in known}))  # type: ignore[arg-type]
    manifest = finished_manifest(read_json(folder / "manifest.json"), weights, list(notes))
    results = Results(plan, tuple(rows), manifest)
    results.write(folder)
    return results
