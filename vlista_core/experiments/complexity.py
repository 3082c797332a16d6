"""Parameters, multiplications and latency of the models beside the paper's, at n = b = 1024, three layers, batch 32.

The paper's latencies are of an RTX 2080 Ti; ours are of the machine that the provenance describes. Nothing is trained.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

import torch

from vlista_core.dictionaries import LearnedDictionary
from vlista_core.experiments.experiment import Experiment, identity, rows_by
from vlista_core.experiments.published import printed_latency, printed_parameters
from vlista_core.linops import DenseMap
from vlista_core.models import ADLISTA, LISTA, NALISTA, VLISTA, UnfoldedModel
from vlista_core.models.complexity import complexity, parameters
from vlista_core.solvers import ISTA
from vlista_core.study import Cell, Context, Row, Table
from vlista_core.study.tables import milliseconds, number
from vlista_core.study.timing import milliseconds_of

if TYPE_CHECKING:
    import pandas as pd

LENGTH, LAYERS, BATCH = 1024, 3, 32
ISTA_ITERATIONS = 100
"""The paper took as many as gave the best images, and does not say how many."""


def _dictionary() -> LearnedDictionary:
    return LearnedDictionary(torch.eye(LENGTH))


_NETWORKS: dict[str, Callable[[int], UnfoldedModel]] = {
    "nalista": lambda m: NALISTA(torch.zeros(m, LENGTH), layers=LAYERS),
    "lista": lambda m: LISTA(LENGTH, LENGTH, layers=LAYERS),
    "a-dlista": lambda m: ADLISTA(_dictionary(), layers=LAYERS, augmentation="paper"),
    "a-dlista-adaptive": lambda m: ADLISTA(_dictionary(), layers=LAYERS, covariance=torch.eye(LENGTH)),
    "vlista": lambda m: VLISTA(_dictionary(), m, layers=LAYERS),
}


class Complexity(Experiment):
    """What the models cost."""

    name: ClassVar[str] = "complexity"
    summary: ClassVar[str] = f"Parameters, multiplications and latency at n = b = {LENGTH}, batch {BATCH}."
    figure: ClassVar[str] = "latency_ms"

    models: tuple[str, ...] = ("ista", *_NETWORKS)
    measurements: tuple[int, ...] = (10, 500)

    def cells(self) -> list[Cell]:
        return [
            {"model": model, "measurements": m, "seed": 0} for model in reversed(self.models) for m in self.measurements
        ]

    def timed(self, cell: Cell) -> bool:
        return True

    def run(self, cell: Cell, context: Context) -> Row:
        name, m, _ = identity(cell)
        shared: Row = {"test_samples": BATCH, "threads": torch.get_num_threads()}
        if name == "ista":
            return {"parameters": 0, "macs": 2 * ISTA_ITERATIONS * m * LENGTH, "latency_ms": _solver_ms(m), **shared}
        model = _NETWORKS[name](m).eval()
        cost = complexity(model, m, LENGTH, batch=BATCH)
        prior = parameters(model.prior) if isinstance(model, VLISTA) else 0
        return {
            "parameters": cost.parameters - prior,
            "prior_parameters": prior,
            "macs": cost.macs,
            "latency_ms": round(cost.latency_ms, 3),
            **shared,
        }

    def tables(self, frame: pd.DataFrame) -> list[Table]:
        found = rows_by(frame, "model", "measurements")
        heading = ["model", "parameters", "paper"]
        for m in self.measurements:
            heading += [f"MACs, m = {m}", f"ms, m = {m}", "paper"]
        lines = []
        for model in self.models:
            cells = {m: found.get((model, m), {}) for m in self.measurements}
            learned = cells[self.measurements[-1]].get("parameters")
            line = [model, _millions(learned), number(printed_parameters(model), ".3f")]
            for m, cell in cells.items():
                line += [_millions(cell.get("macs")), milliseconds(cell.get("latency_ms"))]
                line.append(milliseconds(printed_latency(model, m)))
            lines.append(line)
        title = (
            f"Cost at n = b = {LENGTH}, {LAYERS} layers (ISTA: {ISTA_ITERATIONS} iterations): parameters at m = 500 and "
            "multiplications of a sample in millions, VLISTA without its prior, which only training needs; milliseconds of "
            f"a batch of {BATCH}, ours on the CPU of the provenance, the paper's on an RTX 2080 Ti"
        )
        return [Table.of(title, heading, lines)]


def _solver_ms(m: int) -> float:
    """Milliseconds of ISTA on a batch."""
    generator = torch.Generator().manual_seed(0)
    phi = DenseMap(torch.randn(BATCH, m, LENGTH, generator=generator) / m**0.5)
    y = torch.randn(BATCH, m, generator=generator)
    solver = ISTA(iterations=ISTA_ITERATIONS, tolerance=1e-30)
    return round(milliseconds_of(lambda: solver.estimate(y, phi, 0.0)), 3)


def _millions(value: float | None) -> str:
    return number(None if value is None else value / 1e6, ",.3f")
