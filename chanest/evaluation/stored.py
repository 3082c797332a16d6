"""What runs of independent cells keep on disk: the plan as JSON, finished cells, rows with the manifest they were made with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self, TypeVar, cast

from chanest.scenario import Scenario
from vlista_core.files import read_json, write_csv, write_json
from vlista_core.tensorfile import Json

AnyPlan = TypeVar("AnyPlan", bound="StoredPlan")
AnyRow = TypeVar("AnyRow")


@dataclass(frozen=True)
class StoredPlan:
    """What to run: a scenario, and whatever else a subclass adds, as JSON and back."""

    scenario: Scenario

    def to_json(self) -> dict[str, Json]:
        """Everything, as JSON."""
        content = {field.name: getattr(self, field.name) for field in fields(self)}
        content["scenario"] = self.scenario.model_dump(mode="json")
        return cast(dict[str, Json], json.loads(json.dumps(content)))

    @classmethod
    def from_json(cls, content: dict[str, Json]) -> Self:
        """The plan that `to_json` gave."""
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in content.items()
        }
        return cls(**{**values, "scenario": read_scenario(content["scenario"])})

    def hash(self) -> str:
        """A name for the plan: 16 hex digits."""
        return digest(self.to_json())


def finished_cells(folder: Path, cells: Mapping[str, Mapping[str, object]]) -> dict[str, dict[str, Json]]:
    """Results of cells that were finished before and are the same still, by the names given."""
    found: dict[str, dict[str, Json]] = {}
    for name, cell in cells.items():
        path = folder / "cells" / f"{name}.json"
        if path.is_file():
            content = read_json(path)
            if content.get("cell") == cell:
                found[name] = cast(dict[str, Json], content["result"])
    return found


def write_rows(folder: Path, plan: StoredPlan, kind: type, rows: Sequence[Any], manifest: dict[str, Json]) -> None:
    """results.json, results.csv and manifest.json. kind: the dataclass of the rows."""
    values = [asdict(row) for row in rows]
    write_csv(folder / "results.csv", [field.name for field in fields(kind)], values)
    write_json(folder / "manifest.json", manifest)
    write_json(folder / "results.json", {"plan_hash": plan.hash(), "rows": cast(Json, values)})


def read_rows(
    folder: Path | str, plan: type[AnyPlan], kind: type[AnyRow], *, what: str
) -> tuple[AnyPlan, tuple[AnyRow, ...], dict[str, Json]]:
    """What `write_rows` has stored, or a ValueError. what: how to call it and which command makes one."""
    folder = Path(folder)
    for name in ("results.json", "manifest.json"):
        if not (folder / name).is_file():
            raise ValueError(f"{folder} holds no finished {what}: there is no {name}")
    content, manifest = read_json(folder / "results.json"), read_json(folder / "manifest.json")
    try:
        stored = plan.from_json(cast(dict[str, Json], manifest["plan"]))
        rows = tuple(kind(**row) for row in cast(list[dict[str, Any]], content["rows"]))
    except (KeyError, TypeError) as fault:
        raise ValueError(f"{folder} holds no {what}, or one of another version of chanest: {fault}") from None
    if content.get("plan_hash") != stored.hash():
        raise ValueError(f"{folder} holds results.json and manifest.json of two different runs")
    return stored, rows, manifest


def digest(content: Json) -> str:
    """A hash of JSON content: 16 hex digits."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def read_scenario(content: Json) -> Scenario:
    """A scenario from its JSON."""
    return Scenario.model_validate_json(json.dumps(content))
