"""The folder of a study: study.json says what it is, rows.jsonl has one finished cell per line. One writer, many readers."""

import datetime
import json
import os
import platform
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, cast

import pandas as pd
import torch
from pydantic import BaseModel, JsonValue, ValidationError

from vlista_core.files import (
    check_folder,
    json_text,
    of_json,
    only_writer,
    replacing,
    to_json,
    versions,
    write_bytes,
    writing,
)  # fmt: skip
from vlista_core.study.base import Cell, Row, Study
from vlista_core.tensorfile import Json
from vlista_core.validation import printable, sentence

Registry = Mapping[str, str]
"""Name of a study -> "module:attribute" of its class. What a file names is looked up here and nowhere else."""
_ABOUT, _ROWS, _LOCK = "study.json", "rows.jsonl", ".lock"


class Provenance(BaseModel, frozen=True, extra="forbid"):
    """What a row was made with; None where it is not known or makes no sense. No paths and no names of machines."""

    commit: str | None = None
    dirty: bool | None = None
    """Whether files were changed since the commit."""
    versions: dict[str, str | None] | None = None
    machine: dict[str, JsonValue] | None = None
    seconds: float | None = None
    peak_gigabytes: float | None = None
    """The most memory that the process has held since it began."""
    finished: str | None = None
    """UTC."""
    recipe: JsonValue = None
    budget: JsonValue = None
    seed: JsonValue = None
    weights: JsonValue = None
    """Digest of the weights file."""

    @classmethod
    def here(cls, cell: Cell, row: Row, seconds: float, packages: Sequence[str] = ()) -> "Provenance":
        """Of a cell that this process has just finished."""
        given = {key: row.get(key, cell.get(key)) for key in ("recipe", "budget", "seed", "weights")}
        cost = {"seconds": round(seconds, 2), "peak_gigabytes": _peak_gigabytes(), "finished": now()}
        return cls.model_validate({**environment(*packages), **cost, **given})


class Record(BaseModel, frozen=True, extra="forbid"):
    """One line of rows.jsonl."""

    cell: dict[str, JsonValue]
    row: dict[str, JsonValue]
    provenance: Provenance


class About(BaseModel, frozen=True, extra="forbid"):
    """study.json."""

    study: str
    configuration: dict[str, JsonValue]
    started: str
    notes: tuple[str, ...] = ()
    cells: tuple[str, ...] = ()
    """The names of all cells, in the order of tables; records of others are of former configurations."""


class Read(NamedTuple):
    """A folder as it was read."""

    study: Study
    about: About
    records: list[Record]

    @property
    def frame(self) -> pd.DataFrame:
        return frame(self.records)


def frame(records: Iterable[Record]) -> pd.DataFrame:
    """One line per record: cell and row flattened with dots (the row wins), then the provenance under `provenance.`."""
    flat = [{**each.cell, **each.row, "provenance": each.provenance.model_dump(mode="json")} for each in records]
    return pd.json_normalize(flat)


def holds_study(folder: Path) -> bool:
    """Whether there is a study in the folder itself."""
    return (folder / _ABOUT).is_file()


def read_study(folder: Path | str, registry: Registry) -> Read:
    """The study of a folder with its finished cells, or a ValueError of one sentence."""
    folder = Path(folder)
    if not holds_study(folder):
        raise ValueError(f"{folder} holds no study: there is no {_ABOUT}")
    store = Store(folder)
    about = store.about()
    try:
        study = study_class(about.study, registry).model_validate_json(json.dumps(about.configuration))
    except ValidationError as fault:
        raise ValueError(f"{folder / _ABOUT} is of another version: {sentence(fault)}") from None
    except ValueError as fault:
        raise ValueError(f"{folder / _ABOUT}: {fault}") from None
    latest = store.latest(study)
    return Read(study, about, [latest[name] for name in about.cells if name in latest])


def study_class(name: str, registry: Registry) -> type[Study]:
    """The class registered under a name, or a ValueError that lists the known ones."""
    if name not in registry:
        raise ValueError(f"unknown study {name!r:.60}; known are {', '.join(registry)}")
    module, _, attribute = registry[name].partition(":")
    found: type[Study] = getattr(import_module(module), attribute)
    return found


class Store:
    """Rows on disk. Only what holds `writing` may call the methods that write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows = folder / _ROWS

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Make the folder and keep other writers out, or a ValueError of one sentence."""
        check_folder(self.folder)
        with only_writer(self.folder / _LOCK, f"into {self.folder}"):
            yield

    def about(self) -> About:
        """study.json, or a ValueError that names it."""
        path = self.folder / _ABOUT
        try:
            return of_json(path.read_bytes(), About)
        except (ValueError, OSError) as fault:
            raise ValueError(f"{path} is not the file of a study: {fault}") from None

    def latest(self, study: Study) -> dict[str, Record]:
        """The last record of each cell by the name of the cell, or a ValueError that names the file and the line.

        A last line without an end was cut off while it was written and does not count.
        """
        try:
            *lines, _torn = self.rows.read_bytes().split(b"\n") if self.rows.exists() else [b""]
        except OSError as fault:
            raise ValueError(f"{self.rows} cannot be read: {fault.strerror}") from None
        found: dict[str, Record] = {}
        for number, line in enumerate(lines, start=1):
            try:
                record = of_json(line, Record)
            except ValueError as fault:
                raise ValueError(f"{self.rows}, line {number} is damaged: {fault}") from None
            try:
                found[study.cell_id(record.cell)] = record
            except (LookupError, TypeError, ValueError, AttributeError) as fault:
                said = f"its cell has no {printable(fault)}"
                raise ValueError(f"{self.rows}, line {number} is of another version: {said}") from None
        return found

    def begin(
        self, study: Study, names: Iterable[str], notes: Sequence[str], kept: Collection[Record], *, restart: bool
    ) -> None:
        """Write study.json, and cut off what a killed run left of its last line. restart: keep the records `kept` only.

        The date of the first start stays while there are records. All that needs room comes before anything old is replaced.
        """
        started = self.about().started if kept else now()
        kind, configuration = study.name, study.configuration()
        about = About(study=kind, configuration=configuration, started=started, notes=tuple(notes), cells=tuple(names))
        with replacing(self.folder / _ABOUT) as partial:
            partial.write_text(json_text(about.model_dump(mode="json")), encoding="utf-8")
            if restart:
                write_bytes(self.rows, b"".join(_line(record) for record in kept))
        with writing(self.rows):
            self.rows.touch()
            os.truncate(self.rows, self.rows.read_bytes().rfind(b"\n") + 1)

    def append(self, record: Record) -> None:
        """Add a record; it is on the disk when this returns. A file that has vanished since `begin` is not made again."""
        with writing(self.rows), self.rows.open("r+b") as file:
            file.seek(0, os.SEEK_END)
            file.write(_line(record))
            file.flush()
            os.fsync(file.fileno())


def _line(record: Record) -> bytes:
    return to_json(cast(Json, record.model_dump(mode="json"))).encode() + b"\n"


def now() -> str:
    """The date and time, UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def environment(*packages: str) -> dict[str, Json]:
    """The commit, the versions (of `packages` too) and the kind of machine, as they are now."""
    commit, dirty = _commit()
    return {
        "commit": commit,
        "dirty": dirty,
        "versions": versions(*packages),
        "machine": {
            "system": platform.system(),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "torch_threads": torch.get_num_threads(),
        },
    }


@cache
def _commit() -> tuple[str | None, bool | None]:
    """The commit of a checkout, and whether files were changed since, when this process first asked."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None, None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None, None
    return said.removesuffix("-dirty"), said.endswith("-dirty")


def _peak_gigabytes() -> float | None:
    try:
        import resource
    except ImportError:
        return None
    unit = 1.0 if sys.platform == "darwin" else 1024.0
    return round(unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e9, 2)
