"""Every source against every estimator: NMSE, the gap to the best bound, and the lead or loss of ours.

The figures of a scenario are those of an accuracy study of it; here many are planned, run and shown together.
"""

from collections import defaultdict
from pathlib import Path
from typing import ClassVar, cast

import pandas as pd

from chanest.bounds import BOUNDS
from chanest.estimators import estimator_class
from chanest.problem import ChannelProblem
from chanest.scenario import Scenario
from chanest.studies.accuracy import AccuracyStudy, Sweep
from chanest.studies.common import DrawsStudy, NamedScenario, level_of, planned_weights, problem_of
from chanest.studies.standing import Standing
from chanest.weights import weights_for
from vlista_core.problems import check_count
from vlista_core.study import Cell, Context, Figure, Row, Table

SCENARIOS = (
    "cdl_c_upa64x4", "scm_64x1", "umi_64x1", "umi_upa64x4", "uma_upa64x4", "rma_upa64x4", "inh_dual64x4",
    "rt_canyon_upa64x4", "rt_munich_upa64x4", "rt_etoile_upa64x4", "rt_florence_upa64x4", "clusters_upa64x4",
)  # fmt: skip
"""Every source at least once, narrowband; all of them take less than half an hour on two cores."""
_REFERENCES = ("genie-angles", "genie-covariance", "genie-cells", "genie-rays")
"""Bounds that gaps are counted from, the one with the least knowledge that estimators lack first."""


class BenchStudy(DrawsStudy):
    """Which estimators on which scenarios, at which SNRs, over which setting of the front end."""

    name: ClassVar[str] = "bench"
    summary: ClassVar[str] = "NMSE of estimators on channels of every source, beside the best bound of each."
    growing: ClassVar[frozenset[str]] = frozenset({"scenarios", "estimators", "snr_db"})

    scenarios: tuple[NamedScenario, ...]
    estimators: tuple[str, ...]
    channels: int = 1000
    """Of every scenario, or as many as its source has where those are fewer."""
    sweep: Sweep = "snr"
    values: tuple[int, ...] = ()
    """Of the sweep where it is not over the SNR."""
    trained_on: NamedScenario | None = None
    """Lends its weights to scenarios that have the same arrays and no weights of their own."""

    def title(self) -> str:
        return "channel estimators on every source"

    def folder(self) -> str:
        return self.name if self.sweep == "snr" else f"{self.name}_{self.sweep}"

    def check(self) -> None:
        names = [scenario.name for scenario in self.scenarios]
        for kind, given in (("scenarios", names), ("estimators", self.estimators)):
            if not given or len(set(given)) < len(given):
                raise ValueError(f"{kind} must be one or more, each once, got {', '.join(given) or 'none'}")
        super().check()
        check_count("channels", self.channels)
        for estimator in self.estimators:
            estimator_class(estimator)
        if not any(self._plan(scenario)[0] for scenario in self.scenarios):
            refused = (why for scenario in self.scenarios for why in self._plan(scenario)[1].values())
            raise ValueError(f"nothing can run: {next(refused, None) or self.left_out()[0]}")

    def cells(self) -> list[Cell]:
        """Scenario by scenario and point by point, so that all share the draws of a point.

        Times are taken in passing: to measure them alone would take as long as all the rest.
        """
        self.check()
        return [cell for scenario in self.scenarios for cell in self._cells_of(scenario)]

    def _cells_of(self, scenario: Scenario) -> list[Cell]:
        lenders, _ = self._plan(scenario)
        cells: list[Cell] = []
        bounds = best_bound(problem_of(scenario))
        for lender in dict.fromkeys(lenders.values()):
            named = tuple(name for name, other in lenders.items() if other == lender)
            part = self.part(scenario, lender).model_copy(update={"estimators": named, "bounds": bounds})
            cells += [{**cell, "lent_by": lender} for cell in part.cells() if not part.timed(cell)]
            bounds = ()
        points = self.part(scenario).points()
        return sorted(cells, key=lambda cell: points.index((cast(float, cell["value"]), level_of(cell))))

    def part(self, scenario: Scenario, lent_by: str | None = None) -> AccuracyStudy:
        """The accuracy study of a scenario, without names: values of the sweep that suit it, channels that its source has."""
        most = problem_of(scenario).source.different("test")
        part = AccuracyStudy(
            scenario=scenario, snr_db=self.snr_db, seed=self.seed, trained_on=lent_by, sweep=self.sweep,
            channels=self.channels if most is None else min(self.channels, most),
        )  # fmt: skip
        return part.model_copy(update={"values": tuple(value for value in self.values if _suits(part, value))})

    def _plan(self, scenario: Scenario) -> tuple[dict[str, str | None], dict[str, str]]:
        """Estimator -> who lends its weights (None: nobody needs to), and why each of the others cannot run."""
        lenders: dict[str, str | None] = {}
        refused: dict[str, str] = {}
        problem, other = problem_of(scenario), self.trained_on
        if self._obstacle(scenario):
            return {}, {}
        for name in self.estimators:
            own = weights_for(name, problem) is not None or not estimator_class(name).needs_fit
            lender = None if own or other is None or problem_of(other).arrays != problem.arrays else other.name
            try:
                planned_weights(name, problem, lender)
            except ValueError as fault:
                refused[name] = str(fault)
            else:
                lenders[name] = lender
        return lenders, refused

    def _obstacle(self, scenario: Scenario) -> str:
        """Why nothing can run on a scenario; empty where something can."""
        if self.sweep != "snr" and not self.part(scenario).values:
            return f"no value of the sweep over {self.sweep} suits it"
        return problem_of(scenario).source.obstacle("test")

    def left_out(self) -> list[str]:
        """A line on the estimators that some scenarios cannot use, and one on every scenario with fewer channels or none."""
        where: dict[str, list[str]] = defaultdict(list)
        notes = []
        for scenario in self.scenarios:
            for name in self._plan(scenario)[1]:
                where[name].append(scenario.name)
            part = self.part(scenario)
            if obstacle := self._obstacle(scenario):
                notes.append(f"{scenario.name} is left out: {obstacle}")
                continue
            if part.channels < self.channels:
                notes.append(f"{scenario.name} has {part.channels:,} different test channels, and gets no more")
            if unfit := [f"{value:g}" for value in self.values if value not in part.values]:
                notes.append(f"{scenario.name} is left out at {self.sweep} = {', '.join(unfit)}, which do not suit it")
        together: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for name, places in where.items():
            together[tuple(places)].append(name)
        said = "; ".join(f"{', '.join(names)} on {', '.join(places)}" for places, names in together.items())
        return [*([f"left out: {said} (why: chanest estimators SCENARIO)"] if said else []), *notes]

    def cell_id(self, cell: Cell) -> str:
        return f"{cell['scenario']}.{cell['name']}.at_{cell['value']:g}.snr_{cell['snr_db']:g}"

    def run(self, cell: Cell, context: Context) -> Row:
        scenario = next(each for each in self.scenarios if each.name == cell["scenario"])
        return self.part(scenario, cast(str | None, cell["lent_by"])).run(cell, context)

    def tables(self, frame: pd.DataFrame) -> list[Table]:
        return Standing(self, frame).tables()

    def headline(self, frame: pd.DataFrame) -> str:
        return Standing(self, frame).headline()

    def explanation(self, frame: pd.DataFrame) -> str:
        return f"{self.summary} {Standing(self, frame).explanation()}"

    def figures(self, frame: pd.DataFrame, folder: Path) -> list[Figure]:
        from chanest.plotting.bench import draw_gaps

        standing, path = Standing(self, frame), folder / "gap_to_bound.png"
        if not standing.names:
            return []
        draw_gaps(standing, path)
        return [Figure("Gap to the best bound", standing.caption(), path, on_page=False)]


def best_bound(problem: ChannelProblem) -> tuple[str, ...]:
    """The bound that gaps are counted from, in a tuple; none where nobody knows what is behind the channels."""
    return tuple(name for name in _REFERENCES if name in BOUNDS and BOUNDS[name].applies(problem))[:1]


def _suits(part: AccuracyStudy, value: float) -> bool:
    try:
        part.variant(value)
    except ValueError:
        return False
    return True
