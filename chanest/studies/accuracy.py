"""Every estimator on the same test channels: NMSE with intervals, its gap to a bound, latency and parameters."""

import math
import re
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal, Self, cast

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from pydantic import PrivateAttr, ValidationError
from torch import Tensor, nn

from chanest.bases.estimator import ChannelEstimator
from chanest.bounds import BOUNDS, Bound
from chanest.estimators import estimator_names
from chanest.problem import ChannelBatch
from chanest.scenario import Scenario, as_scenario
from chanest.studies.common import ChannelStudy, draws, level_of, load, planned_weights, problem_of
from chanest.studies.ranking import Ranking
from vlista_core.estimate import Estimator, as_estimator, estimated
from vlista_core.problems import check_count
from vlista_core.study import Cell, Context, Figure, Row, Table
from vlista_core.study.measuring import finite, milliseconds_of, ratio_interval
from vlista_core.validation import sentence

Sweep = Literal["snr", "pilots", "chains", "bits"]
"""What a figure has on its horizontal axis: the SNR, or a setting of the front end at each SNR."""


class AccuracyStudy(ChannelStudy):
    """Which estimators and bounds on which test channels, at which SNRs, over which sweep."""

    name: ClassVar[str] = "accuracy"
    heading: ClassVar[str] = "channel estimators compared"
    summary: ClassVar[str] = "NMSE of estimators on the same test channels, beside bounds, and what they cost."
    growing: ClassVar[frozenset[str]] = frozenset({"estimators", "bounds", "snr_db"})

    estimators: tuple[str, ...] = ()
    bounds: tuple[str, ...] = ()
    channels: int = 1000
    sweep: Sweep = "snr"
    values: tuple[int, ...] = ()
    """Of the sweep where it is not over the SNR."""
    trained_on: str | None = None
    """The scenario whose weights to take; None takes those of `scenario`."""
    device: str = "cpu"
    _own: dict[str, Estimator] = PrivateAttr(default_factory=dict)

    def panels(self) -> list[float | None]:
        """The SNR of each table and each panel of a figure; None for all in one."""
        return [None] if self.sweep == "snr" else [*sorted(self.snr_db)]

    def including(self, own: Mapping[str, Estimator]) -> Self:
        """The study with estimators of your own, by name. They run in this process and always afresh."""
        for estimator in own.values():
            as_estimator(estimator)
        study = self.model_copy(update={"estimators": (*own, *self.estimators)})
        study._own = {**self._own, **own}
        return study

    def check(self) -> None:
        super().check()
        check_count("channels", self.channels)
        most = self.problem.source.available("test")
        if most is not None and self.channels > most:
            raise ValueError(
                f"channels must be at most {most}, the test channels of {self.scenario.name}, got {self.channels}"
            )
        if not self.estimators and not self.bounds:
            raise ValueError("estimators must name at least one")
        if (self.sweep == "snr") != (not self.values):
            raise ValueError(f"values must be given for a sweep other than snr and only there, got {list(self.values)}")
        for value in self.values:
            self.variant(value)
        _check_device(self.device)
        for name in self._own:
            if not re.fullmatch(r"[\w .+()-]+", name):
                raise ValueError(f"an estimator's name must be of letters, digits and _ .+()-, got {name!r}")
            if name in estimator_names() or name in BOUNDS:
                raise ValueError(f"{name} is the name of a registered estimator or bound; give yours another")
        for name in self.bounds:
            if name not in BOUNDS:
                raise ValueError(f"unknown bound {name!r}; known are {', '.join(BOUNDS)}")
            if not BOUNDS[name].applies(self.problem):
                raise ValueError(f"the bound {name} is not defined for {self.scenario.name}")

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
            raise ValueError(f"{self.sweep}={value:g} does not suit {self.scenario.name}: {sentence(error)}") from None

    def points(self, snr_db: float | None = None) -> list[tuple[float, float]]:
        """(value, SNR) of every point of the sweep, or of those at one SNR, in the order of work."""
        if self.sweep == "snr":
            return [(snr, snr) for snr in self.snr_db]
        return [(value, snr) for value in self.values for snr in self.snr_db if snr_db in (None, snr)]

    def middle(self) -> tuple[float, float]:
        """The point at which estimators are ranked: the middle SNR and the last value of the sweep."""
        snr = sorted(self.snr_db)[len(self.snr_db) // 2]
        return next(point for point in reversed(self.points()) if point[1] == snr)

    def cells(self) -> list[Cell]:
        """Point by point, so that all share the draws of a point; costs last."""
        self.check()
        named = [name for name in self.estimators if name not in self._own]
        weights = {name: planned_weights(name, self.problem, self.trained_on) for name in named}
        common: Cell = {"scenario": self.scenario.name, "channels": self.channels, "seed": self.seed}
        cells: list[Cell] = []
        for value, snr in self.points():
            for kind, names in (("estimator", self.estimators), ("bound", self.bounds)):
                for name in names:
                    place: Cell = {"kind": kind, "name": name, "value": value, "snr_db": snr}
                    cells.append({**place, **common, "weights": weights.get(name)})
        place = {"kind": "cost", "value": None, "snr_db": self.middle()[1], **common}
        return cells + [{**place, "name": name, "weights": weights.get(name)} for name in self.estimators]

    def cell_id(self, cell: Cell) -> str:
        if cell["kind"] == "cost":
            return f"{cell['name']}.cost"
        return f"{cell['name']}.at_{cell['value']:g}.snr_{cell['snr_db']:g}"

    def timed(self, cell: Cell) -> bool:
        return cell["kind"] == "cost"

    def afresh(self, cell: Cell) -> bool:
        return cell["name"] in self._own

    def run(self, cell: Cell, context: Context) -> Row:
        name = str(cell["name"])
        if cell["kind"] == "bound":
            bound = _bound(BOUNDS[name], self.variant(cast(float, cell["value"])))
            return {"label": bound.label, **self._errors(bound.errors, cell)}
        estimator: Estimator
        facts: Row = {}
        if name in self._own:
            estimator = self._own[name]
        else:
            estimator, facts = load(cell, self.problem, self.trained_on)
        if isinstance(estimator, nn.Module):
            estimator.to(self.device)
        if cell["kind"] == "cost":
            return {**self._cost(estimator, cell), **facts}

        seconds = 0.0

        def errors(batch: ChannelBatch) -> Tensor:
            nonlocal seconds
            start = time.perf_counter()
            signal = estimated(name, estimator, batch).signal
            found = (signal - batch.signal).abs().double().square().sum(1)
            seconds += time.perf_counter() - start
            return found

        figures = self._errors(errors, cell)
        return {**figures, "ms_in_passing": 1e3 * seconds / self.channels, **facts}

    def _errors(self, errors: Callable[[ChannelBatch], Tensor], cell: Cell) -> Row:
        """NMSE of the channels of a cell. errors: ‖ĥ - h‖² of a batch, [batch]."""
        problem = problem_of(self.variant(cast(float, cell["value"])))
        error, power = [], []
        for batch in draws(problem, self.channels, seed=self.seed, snr_db=level_of(cell)):
            error.append(errors(batch.to(self.device) if cell["kind"] == "estimator" else batch))
            power.append(batch.signal.abs().double().square().sum(1))
        squares = [torch.cat(parts).double().cpu().numpy() for parts in (error, power)]
        return nmse_figures(*squares, group=problem.source.snapshots, seed=self.seed)

    def _cost(self, estimator: Estimator, cell: Cell) -> Row:
        """Milliseconds per channel, warm, alone and in a batch, and learned numbers."""
        batch = next(draws(self.problem, self.channels, seed=self.seed, snr_db=level_of(cell))).to(self.device)
        one = batch.select(torch.tensor([0]))
        return {
            "ms_batch_1": _milliseconds(estimator, one),
            "ms_batch": _milliseconds(estimator, batch),
            "batch": len(batch),
            "parameters": estimator.parameters_learned() if isinstance(estimator, ChannelEstimator) else 0,
            "threads": torch.get_num_threads(),
        }

    def tables(self, frame: pd.DataFrame) -> list[Table]:
        return Ranking(self, frame).tables()

    def headline(self, frame: pd.DataFrame) -> str:
        return Ranking(self, frame).headline()

    def figures(self, frame: pd.DataFrame, folder: Path) -> list[Figure]:
        from chanest.plotting.studies import latency_chart, nmse_chart

        curves, cost = folder / f"nmse_vs_{self.sweep}.png", folder / "accuracy_vs_latency.png"
        ranking = Ranking(self, frame)
        return [
            Figure.drawn("NMSE over the sweep", "", curves, nmse_chart(ranking)),
            Figure.drawn("Accuracy against latency", "", cost, latency_chart(ranking)),
        ]

    def folder(self) -> str:
        return self.scenario.name if self.sweep == "snr" else f"{self.scenario.name}_{self.sweep}"

    def explanation(self, frame: pd.DataFrame) -> str:
        return f"{self.scenario.description}. {Ranking(self, frame).explanation()}"


def usable_bounds(scenario: Scenario | str | Path) -> tuple[str, ...]:
    """The bounds that are defined for a scenario."""
    problem = problem_of(as_scenario(scenario))
    return tuple(name for name, bound in BOUNDS.items() if bound.applies(problem))


def nmse_figures(error: NDArray[np.float64], power: NDArray[np.float64], *, group: int = 1, seed: int = 0) -> Row:
    """NMSE in dB with its 95 % interval; None where it is not finite. error: ‖ĥ - h‖², power: ‖h‖², both [channels].

    `group` consecutive channels share their rays: the bootstrap draws whole groups, so that snapshots of one user do not
    count as independent channels. diverged: channels whose estimate has a NaN or Inf.
    """
    bad = ~np.isfinite(error)
    error = np.where(bad, np.inf, error)
    ratios = error / power
    low, high = ratio_interval(error, power, group=group, seed=seed)
    middle = np.quantile(ratios, 0.5, method="inverted_cdf" if bad.any() else "linear")
    return {
        "nmse_db": _db(float(error.sum() / power.sum())),
        "nmse_low_db": _db(low),
        "nmse_high_db": _db(high),
        "nmse_mean_db": _db(float(ratios.mean())),
        "nmse_median_db": _db(float(middle)),
        "diverged": int(bad.sum()),
    }


def _db(ratio: float) -> float | None:
    return finite(10 * math.log10(ratio)) if ratio > 0 else None


def _milliseconds(estimator: Estimator, batch: ChannelBatch) -> float:
    return milliseconds_of(lambda: estimator.estimate(batch.y, batch.phi, batch.noise_var)) / len(batch)


@lru_cache(maxsize=8)
def _bound(kind: type[Bound], scenario: Scenario) -> Bound:
    """Kept from point to point: some bounds take seconds to build."""
    return kind(problem_of(scenario))


def _check_device(device: str) -> None:
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise ValueError(f"device must be cpu, cuda or cuda:N, got {device!r}") from None
    if kind not in ("cpu", "cuda") or (kind == "cuda" and not torch.cuda.is_available()):
        raise ValueError(f"there is no device {device} on this machine")
