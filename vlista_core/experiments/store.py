"""The folder of a run: a file for each finished cell, a manifest of what they were run with, and one CSV of all."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from vlista_core.experiments.base import IDENTITY, Cell, Done, cell_id
from vlista_core.files import check_folder, read_json, write_csv, write_json
from vlista_core.provenance import environment, now
from vlista_core.tensorfile import Json


class Store:
    """Cells on disk, each written whole or not at all, as soon as it is done."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.weights = folder / "weights"

    def open(self) -> None:
        """Make the folder and note in its manifest what the cells are run with from now on, where that is new."""
        for folder in (self.folder, self.folder / "cells", self.weights):
            check_folder(folder)
        path = self.folder / "manifest.json"
        manifest: dict[str, Json] = read_json(path) if path.is_file() else {"created": now(), "runs": []}
        runs = cast(list[Json], manifest["runs"])
        here = environment()
        if not any(isinstance(run, dict) and {**run, "started": None} == {**here, "started": None} for run in runs):
            write_json(path, {**manifest, "runs": [*runs, {"started": now(), **here}]})

    def manifest(self) -> dict[str, Json]:
        """What the cells were run with."""
        path = self.folder / "manifest.json"
        return read_json(path) if path.is_file() else {}

    def path(self, cell: Cell) -> Path:
        """Of the file of a cell."""
        return self.folder / "cells" / f"{cell_id(cell)}.json"

    def write(self, cell: Cell, result: dict[str, Json]) -> None:
        """Keep a finished cell: one flat object, what it is before what came out."""
        write_json(self.path(cell), {**cell, **result})

    def read(self, cell: Cell) -> dict[str, Json] | None:
        """The result of a cell; None where it is not there, a ValueError where its file is not whole."""
        path = self.path(cell)
        if not path.is_file():
            return None
        content = _content(path)
        if {key: content.get(key) for key in cell} != cell:
            return None
        return {key: value for key, value in content.items() if key not in cell}

    def remove(self, cell: Cell) -> None:
        """Forget a cell and what it kept among the weights."""
        for path in (self.path(cell), *self.weights.glob(f"{cell_id(cell)}.*")):
            path.unlink(missing_ok=True)

    def write_csv(self) -> None:
        """cells.csv: a line for each finished cell; lists and objects are in its JSON file only."""
        flat = [
            {key: value for key, value in done.items() if not isinstance(value, dict | list)}
            for done in read_cells(self.folder)
        ]
        columns = list(dict.fromkeys(key for line in flat for key in line))
        write_csv(self.folder / "cells.csv", columns, flat)


def read_cells(folder: Path) -> Done:
    """The finished cells of a run, identity and result in one; files that are not whole are left out."""
    done = []
    for path in sorted((folder / "cells").glob("[!.]*.json")):
        try:
            done.append(_content(path))
        except ValueError:
            continue
    return done


def _content(path: Path) -> dict[str, Json]:
    content = read_json(path)
    missing = [key for key in (*IDENTITY, "seconds") if key not in content]
    if missing:
        raise ValueError(f"{path} is not the file of a cell: it has no {missing[0]}")
    return content
