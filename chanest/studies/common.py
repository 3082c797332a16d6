"""What the studies share: a scenario at some SNRs, estimators from the weights that were planned with, the same test draws."""

import hashlib
import math
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Annotated, ClassVar, cast

import pandas as pd
from pydantic import BeforeValidator

from chanest.bases.estimator import ChannelEstimator
from chanest.problem import ChannelBatch, ChannelProblem
from chanest.scenario import Scenario, load_scenario
from chanest.weights import check_usable, get_estimator, lender, provenance, weights_for
from vlista_core.files import file_digest
from vlista_core.problems import check_count
from vlista_core.study import Cell, Row, Study

BATCH = 256
"""Channels that an estimator is given at once."""
_CACHED_BYTES = 2**29
_IDENTITY = ("estimator", "scenario", "channel_hash", "frontend", "signal_length", "budget")
"""What the header of a weights file says besides how it was trained."""


NamedScenario = Annotated[
    Scenario, BeforeValidator(lambda given: load_scenario(given) if isinstance(given, str | Path) else given)
]
"""A field for which the name of a shipped scenario or the path of a file will do."""


class DrawsStudy(Study):
    """A study on test draws at some SNRs."""

    packages: ClassVar[tuple[str, ...]] = ("sionna-no-rt",)

    snr_db: tuple[float, ...] = (0.0, 10.0, 20.0)
    seed: int = 1
    """Of the test split, which shares no draw with what estimators were trained or tuned on, whatever the seed."""

    def check(self) -> None:
        """ValueError where a field has a value that cannot be run; a subclass adds its own."""
        check_count("seed", self.seed, least=0)
        if not self.snr_db or not all(math.isfinite(snr) for snr in self.snr_db):
            raise ValueError(f"snr_db must be one or more finite numbers, got {list(self.snr_db)}")
        for name, value in self:
            if isinstance(value, tuple) and len(set(value)) < len(value):
                raise ValueError(f"{name} must not name anything twice, got {list(value)}")

    def folder(self) -> str:
        """The name of the folder in out/ for a run that is given none."""
        return self.name


class ChannelStudy(DrawsStudy):
    """A study on test draws of one scenario."""

    heading: ClassVar[str]
    """Of the page, after the name of the scenario."""

    scenario: NamedScenario

    @property
    def problem(self) -> ChannelProblem:
        return problem_of(self.scenario)

    def title(self) -> str:
        return f"{self.scenario.name}: {self.heading}"

    def folder(self) -> str:
        return f"{self.scenario.name}_{self.name}"

    def cell_id(self, cell: Cell) -> str:
        return f"{cell['name']}.snr_{cell['snr_db']:g}"


@lru_cache(maxsize=8)
def problem_of(scenario: Scenario) -> ChannelProblem:
    """The problem of a scenario, kept from cell to cell."""
    return ChannelProblem(scenario)


def planned_weights(name: str, problem: ChannelProblem, trained_on: str | None = None) -> str | None:
    """Hash of the file an estimator will be loaded from, None for no file; a ValueError where the estimator cannot run."""
    path = _weights_path(name, problem, trained_on)
    check_usable(name, problem, path, lender(name, trained_on))
    return None if path is None else file_digest(path)


def planned_files(name: str, problem: ChannelProblem) -> Cell:
    """Hashes of the weights and of the calibration that an estimator comes with; None where there is none."""
    weights, calibration = planned_weights(name, problem), get_estimator(name, problem, substitute=False).calibration
    text = "" if calibration is None else calibration.model_dump_json()
    return {"weights": weights, "calibration": hashlib.sha256(text.encode()).hexdigest()[:16] if text else None}


def load(cell: Cell, problem: ChannelProblem, trained_on: str | None = None) -> tuple[ChannelEstimator, Row]:
    """The estimator `name` of a cell, from the very files that the cell was planned with, and how it was trained."""
    name = str(cell["name"])
    found = planned_files(name, problem) if "calibration" in cell else {}
    found["weights"] = planned_weights(name, problem, trained_on)
    if any(cell[key] != digest for key, digest in found.items()):
        raise ValueError(f"the weights of {name} have changed, or differ on a worker, since the study was planned")
    path = _weights_path(name, problem, trained_on)
    made = {} if path is None else provenance(path)
    recipe = {key: value for key, value in made.items() if key not in _IDENTITY}
    facts: Row = {"trained_on": made.get("scenario"), "budget": made.get("budget"), "recipe": recipe or None}
    return get_estimator(name, problem, trained_on=lender(name, trained_on), substitute=False), facts


def draws(
    problem: ChannelProblem, count: int, *, seed: int, snr_db: float, batch: int = BATCH
) -> Iterator[ChannelBatch]:
    """Test channels 0 … count - 1 in batches; those of the last call stay in memory for the next estimator."""
    kept = _kept(problem.scenario, count, seed, snr_db, batch)
    for start in range(0, count, batch):
        found = kept.get(start) or problem.sample(min(batch, count - start), seed=seed, start=start, snr_db=snr_db)
        if (len(kept) + 1) * _bytes(found) <= _CACHED_BYTES:
            kept[start] = found
        yield found


def level_of(cell: Cell) -> float:
    """The SNR of a cell in dB."""
    return float(cast(float, cell["snr_db"]))


def values_of(frame: pd.DataFrame, column: str) -> list[float]:
    """The different numbers of a column, ascending; none where the frame has no such column."""
    return sorted(float(value) for value in set(frame[column])) if column in frame else []


def nested(frame: pd.DataFrame, *keys: str) -> pd.DataFrame:
    """The rows under each of `keys` one below the other: column `key.x` becomes `x`, and `kind` says which key."""
    columns, parts = [str(column) for column in frame], []
    shared = [column for column in columns if not column.startswith(tuple(f"{key}." for key in keys))]
    for key in keys:
        own = {column: column.removeprefix(f"{key}.") for column in columns if column.startswith(f"{key}.")}
        part = frame[[*shared, *own]].rename(columns=own).assign(kind=key)
        parts.append(part.dropna(subset=list(own.values()), how="all"))
    return pd.concat(parts, ignore_index=True)


def _weights_path(name: str, problem: ChannelProblem, trained_on: str | None) -> Path | None:
    return weights_for(name, problem, lender(name, trained_on))


@lru_cache(maxsize=1)
def _kept(scenario: Scenario, count: int, seed: int, snr_db: float, batch: int) -> dict[int, ChannelBatch]:
    """What `draws` remembers: the batches by their first channel."""
    return {}


def _bytes(batch: ChannelBatch) -> int:
    held = (batch.signal, batch.y, *batch.phi.tensors(), *(batch.rays.tensors() if batch.rays else ()))
    return sum(tensor.nbytes for tensor in held)
