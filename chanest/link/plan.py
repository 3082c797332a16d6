"""What to send: a frozen plan of a link and the independent cells of work it comes to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Self, TypedDict

from chanest.bounds.genie import GenieAngles
from chanest.estimators import estimator_names
from chanest.evaluation.stored import StoredPlan, digest
from chanest.problem import ChannelProblem
from chanest.scenario import Scenario
from chanest.weights import find_weights, get_estimator
from vlista_core.files import file_digest
from vlista_core.problems import check_count
from vlista_core.tensorfile import Json

ErrVar = Literal["estimated", "zero"]
"""What the equaliser is told of the estimate's errors: their variance, or that there are none."""
MODULATIONS = {"qpsk": 2, "16qam": 4, "64qam": 6, "256qam": 8}
"""Name -> bits a symbol."""
REFERENCES = {
    "sionna-ls": "Sionna LS",
    "sionna-lmmse": "Sionna LMMSE",
    "perfect": "perfect CSI",
    GenieAngles.name: GenieAngles.label,
}
"""Receivers that are not of our registry -> how tables call them. The last two know what no receiver can."""
BOUNDS = ("perfect", GenieAngles.name)
_CODE_BITS = (12, 8448)
_CODE_RATES = (0.2, 0.9)


class Cell(TypedDict):
    """One receiver at one SNR, as JSON."""

    name: str
    snr_db: float
    plan: dict[str, Json]
    """All but the receivers and SNRs of the plan."""
    weights: str | None
    """Hash of what the estimator is loaded from, its weights and its calibration."""


@dataclass(frozen=True)
class LinkPlan(StoredPlan):
    """Which receivers, at which SNRs, and what a block is.

    A block is one channel, flat and constant: the scenario's T training symbols, one beam each, then `data_symbols`
    symbols through the last `streams` beams, `subcarriers` wide, with one codeword of the 5G LDPC code over all of it.
    """

    receivers: tuple[str, ...]
    snr_db: tuple[float, ...] = (9.0, 11.0, 13.0, 15.0, 17.0)
    blocks: int = 1000
    seed: int = 1
    """Of the test split, which shares no draw with what estimators were trained or tuned on, whatever the seed."""
    modulation: str = "16qam"
    rate: float = 0.5
    streams: int = 2
    data_symbols: int = 24
    subcarriers: int = 2
    validation: int = 200
    """Blocks of the validation split from which the size of an estimator's errors is learnt, at each SNR."""
    err_var: tuple[ErrVar, ...] = ("estimated",)

    def __post_init__(self) -> None:
        for name in ("blocks", "streams", "data_symbols", "subcarriers", "validation"):
            check_count(name, getattr(self, name))
        check_count("seed", self.seed, least=0)
        if not self.snr_db or not all(math.isfinite(snr) for snr in self.snr_db):
            raise ValueError(f"snr_db must be one or more finite numbers, got {list(self.snr_db)}")
        if not self.receivers or not self.err_var:
            raise ValueError("receivers and err_var must name at least one each")
        for name in ("receivers", "snr_db", "err_var"):
            if len(set(getattr(self, name))) != len(getattr(self, name)):
                raise ValueError(f"{name} must not name anything twice, got {list(getattr(self, name))}")
        if self.modulation not in MODULATIONS:
            raise ValueError(f"modulation must be one of {', '.join(MODULATIONS)}, got {self.modulation!r}")
        if not _CODE_RATES[0] <= self.rate <= _CODE_RATES[1]:
            raise ValueError(f"rate must be a code rate from {_CODE_RATES[0]} to {_CODE_RATES[1]}, got {self.rate}")
        if not _CODE_BITS[0] <= self.information_bits <= _CODE_BITS[1]:
            raise ValueError(
                f"a codeword must hold {_CODE_BITS[0]} to {_CODE_BITS[1]} information bits, these blocks make it "
                f"{self.information_bits}: change data_symbols or subcarriers"
            )
        self._check_scenario()

    def _check_scenario(self) -> None:
        problem = ChannelProblem(self.scenario)
        frontend = self.scenario.frontend
        if problem.subcarriers > 1:
            raise ValueError(
                f"the link is for narrowband scenarios, whose channel is flat over a block; {self.scenario.name} has "
                f"{problem.subcarriers} subcarriers of its own"
            )
        most = min(frontend.chains or problem.arrays[0].ports, frontend.pilots)
        if self.streams > most:
            raise ValueError(
                f"streams must be at most {most}, what the receiver's chains and the {frontend.pilots} training beams of "
                f"{self.scenario.name} allow, got {self.streams}"
            )

    @property
    def bits_per_symbol(self) -> int:
        return MODULATIONS[self.modulation]

    @property
    def coded_bits(self) -> int:
        """n, of a block."""
        return self.streams * self.data_symbols * self.subcarriers * self.bits_per_symbol

    @property
    def information_bits(self) -> int:
        """k, of a block."""
        return round(self.coded_bits * self.rate)

    @property
    def resource_elements(self) -> int:
        """Of a block, training included."""
        return (self.scenario.frontend.pilots + self.data_symbols) * self.subcarriers

    @property
    def peak_efficiency(self) -> float:
        """Information bits a resource element where no block is lost."""
        return self.information_bits / self.resource_elements

    def cells(self) -> list[Cell]:
        """SNR by SNR, so that all receivers share the blocks of one."""
        common = self.to_json()
        for field in ("receivers", "snr_db"):
            del common[field]
        problem = ChannelProblem(self.scenario)
        weights = {name: receiver_digest(name, problem) for name in self.receivers}
        return [
            Cell(name=name, snr_db=snr, plan=common, weights=weights[name])
            for snr in self.snr_db
            for name in self.receivers
        ]

    @classmethod
    def of_cell(cls, cell: Cell) -> Self:
        """The plan of one receiver at one SNR."""
        return cls.from_json({**cell["plan"], "receivers": [cell["name"]], "snr_db": [cell["snr_db"]]})

    def check_receivers(self) -> None:
        """ValueError unless every receiver can run: a known name, weights where it needs some."""
        problem = ChannelProblem(self.scenario)
        for name in self.receivers:
            if name in REFERENCES:
                if name == GenieAngles.name and not GenieAngles.applies(problem):
                    raise ValueError(f"the bound {name} is not defined for {self.scenario.name}")
            elif name not in estimator_names():
                known = ", ".join((*estimator_names(), *REFERENCES))
                raise ValueError(f"unknown receiver {name!r}; known are {known}")
            else:
                get_estimator(name, problem)


def usable_receivers(scenario: Scenario) -> tuple[list[str], list[str]]:
    """The estimators that can run on a scenario now and the references, and a line on each estimator that cannot."""
    problem, usable, notes = ChannelProblem(scenario), [], []
    for name in estimator_names():
        try:
            get_estimator(name, problem)
        except ValueError as fault:
            notes.append(f"{name} is left out: {fault}")
        else:
            usable.append(name)
    references = [name for name in REFERENCES if name != GenieAngles.name or GenieAngles.applies(problem)]
    return usable + references, notes


def cell_id(cell: Cell) -> str:
    """A name for the cell within its plan, fit for a file."""
    return f"{cell['name']}.snr_{cell['snr_db']:g}"


def receiver_digest(name: str, problem: ChannelProblem) -> str | None:
    """Hash of what an estimator is loaded from: the file of its weights and its calibration."""
    if name in REFERENCES:
        return None
    path, calibration = find_weights(name, problem.scenario.name), get_estimator(name, problem).calibration
    parts: list[Json] = [None if path is None else file_digest(path)]
    return digest([*parts, None if calibration is None else calibration.model_dump(mode="json")])
