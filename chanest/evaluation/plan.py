"""What to evaluate: a frozen plan and the independent cells of work it comes to."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal, TypedDict, get_args

import torch
from pydantic import ValidationError

from chanest.evaluation.stored import StoredPlan
from chanest.scenario import Scenario
from vlista_core.problems import check_count
from vlista_core.tensorfile import Json

Sweep = Literal["snr", "pilots", "chains", "bits"]
"""What a figure has on its horizontal axis: the SNR, or a setting of the front end at each SNR."""
Kind = Literal["estimator", "bound", "cost"]
BATCH = 256
"""Channels that an estimator is given at once."""


class Cell(TypedDict):
    """One independent piece of work, as JSON."""

    kind: Kind
    """The error of an estimator or a bound at one point of the sweep, or what an estimator costs."""
    name: str
    value: float
    """Of the sweep; the SNR itself where the sweep is over it."""
    snr_db: float
    channels: int
    seed: int
    scenario: dict[str, Json]
    """In full, with the front end of this cell."""
    trained_on: str | None
    weights: str | None
    """Hash of the file the estimator is loaded from."""
    device: str


@dataclass(frozen=True)
class Plan(StoredPlan):
    """Which estimators and bounds on which test channels, at which SNRs, over which sweep."""

    estimators: tuple[str, ...]
    bounds: tuple[str, ...] = ()
    snr_db: tuple[float, ...] = (0.0, 10.0, 20.0)
    channels: int = 1000
    seed: int = 1
    """Of the test split, which shares no draw with what estimators were trained or tuned on, whatever the seed."""
    sweep: Sweep = "snr"
    values: tuple[int, ...] = ()
    """Of the sweep where it is not over the SNR."""
    trained_on: str | None = None
    """The scenario whose weights to take; None takes those of `scenario`."""
    device: str = "cpu"

    def __post_init__(self) -> None:
        check_count("channels", self.channels)
        check_count("seed", self.seed, least=0)
        if self.sweep not in get_args(Sweep):
            raise ValueError(f"sweep must be one of {', '.join(get_args(Sweep))}, got {self.sweep!r}")
        if not self.estimators and not self.bounds:
            raise ValueError("estimators must name at least one")
        if not self.snr_db or not all(math.isfinite(snr) for snr in self.snr_db):
            raise ValueError(f"snr_db must be one or more finite numbers, got {list(self.snr_db)}")
        for name in ("estimators", "bounds", "snr_db", "values"):
            if len(set(getattr(self, name))) != len(getattr(self, name)):
                raise ValueError(f"{name} must not name anything twice, got {list(getattr(self, name))}")
        for name in (*self.estimators, *self.bounds):
            if not re.fullmatch(r"[\w .+()-]+", name):
                raise ValueError(
                    f"an estimator's name goes into file names: letters, digits and _ .+()- only, got {name!r}"
                )
        if (self.sweep == "snr") != (not self.values):
            raise ValueError(f"values must be given for a sweep other than snr and only there, got {list(self.values)}")
        for value in self.values:
            self.variant(value)
        _check_device(self.device)

    def variant(self, value: float) -> Scenario:
        """The scenario at a value of the sweep. Weights stay those of the scenario: the channels are the same."""
        if self.sweep == "snr":
            return self.scenario
        front = self.scenario.frontend
        if self.sweep == "bits" and "quantised" not in (front.beams, front.combiners if front.chains else ""):
            raise ValueError(f"a sweep over bits changes nothing: {self.scenario.name} has no quantised beams")
        content = self.scenario.model_dump()
        content["frontend"][self.sweep] = value
        try:
            return Scenario.model_validate(content)
        except ValidationError as error:
            said = error.errors()[0]["msg"].removeprefix("Value error, ")
            raise ValueError(f"{self.sweep}={value:g} does not suit {self.scenario.name}: {said}") from None

    def points(self) -> list[tuple[float, float]]:
        """(value, SNR) of every point of the sweep, in the order of work."""
        if self.sweep == "snr":
            return [(snr, snr) for snr in self.snr_db]
        return [(value, snr) for value in self.values for snr in self.snr_db]

    def cell(self, kind: Kind, name: str, value: float, snr_db: float, weights: str | None) -> Cell:
        """One piece of work."""
        scenario = self.scenario if kind == "cost" else self.variant(value)
        return Cell(
            kind=kind, name=name, value=value, snr_db=snr_db, channels=self.channels, seed=self.seed,
            scenario=scenario.model_dump(mode="json"), trained_on=self.trained_on, weights=weights, device=self.device,
        )  # fmt: skip

    def middle_snr(self) -> float:
        """The SNR at which estimators are ranked."""
        return sorted(self.snr_db)[len(self.snr_db) // 2]


def _check_device(device: str) -> None:
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise ValueError(f"device must be cpu, cuda or cuda:N, got {device!r}") from None
    if kind not in ("cpu", "cuda") or (kind == "cuda" and not torch.cuda.is_available()):
        raise ValueError(f"there is no device {device} on this machine")


def cell_id(cell: Cell) -> str:
    """A name for the cell within its plan, fit for a file."""
    if cell["kind"] == "cost":
        return f"{cell['name']}.cost"
    return f"{cell['name']}.at_{cell['value']:g}.snr_{cell['snr_db']:g}"
