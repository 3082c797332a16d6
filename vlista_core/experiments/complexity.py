"""Parameters, multiplications and latency of the models beside the paper's, at n = b = 1024, three layers, batch 32.

The paper's latencies are of an RTX 2080 Ti; ours are of the machine that the provenance describes. Nothing is trained.
"""

import math
from collections.abc import Callable
from typing import ClassVar

import pandas as pd
import torch

from vlista_core.dictionaries import LearnedDictionary
from vlista_core.experiments.experiment import Experiment, cells_of, identity, published, rows_by
from vlista_core.models import ADLISTA, LISTA, NALISTA, VLISTA, UnfoldedModel
from vlista_core.models.complexity import complexity, inputs, parameters
from vlista_core.solvers import ISTA
from vlista_core.study import Cell, Context, Row, Table
from vlista_core.study.measuring import milliseconds_of
from vlista_core.study.tables import milliseconds, number

LENGTH, LAYERS, BATCH = 1024, 3, 32
ISTA_ITERATIONS = 100
"""The paper took as many as gave the best images, and does not say how many."""
_NETWORKS: dict[str, Callable[[int, LearnedDictionary], UnfoldedModel]] = {
    "nalista": lambda m, psi: NALISTA(torch.zeros(m, LENGTH), layers=LAYERS),
    "lista": lambda m, psi: LISTA(LENGTH, LENGTH, layers=LAYERS),
    "a-dlista": lambda m, psi: ADLISTA(psi, layers=LAYERS, augmentation="paper"),
    "a-dlista-adaptive": lambda m, psi: ADLISTA(psi, layers=LAYERS, covariance=torch.eye(LENGTH)),
    "vlista": lambda m, psi: VLISTA(psi, m, layers=LAYERS),
}


class Complexity(Experiment):
    """What the models cost."""

    name: ClassVar[str] = "complexity"
    summary: ClassVar[str] = f"Parameters, multiplications and latency at n = b = {LENGTH}, batch {BATCH}."
    figure: ClassVar[str] = "latency_ms"

    models: tuple[str, ...] = ("ista", *_NETWORKS)
    measurements: tuple[int, ...] = (10, 500)

    def cells(self) -> list[Cell]:
        return cells_of(seed=[0], model=reversed(self.models), measurements=self.measurements)

    def timed(self, cell: Cell) -> bool:
        return True

    def run(self, cell: Cell, context: Context) -> Row:
        name, m, _ = identity(cell)
        shared: Row = {"test_samples": BATCH, "threads": torch.get_num_threads()}
        if name == "ista":
            return {"parameters": 0, "macs": 2 * ISTA_ITERATIONS * m * LENGTH, "latency_ms": _solver_ms(m), **shared}
        model = _NETWORKS[name](m, LearnedDictionary(torch.eye(LENGTH))).eval()
        cost = complexity(model, m, LENGTH, batch=BATCH)
        prior = parameters(model.prior) if isinstance(model, VLISTA) else 0
        own: Row = {"parameters": cost.parameters - prior, "prior_parameters": prior, "macs": cost.macs}
        return {**own, "latency_ms": round(cost.latency_ms, 3), **shared}

    def tables(self, frame: pd.DataFrame) -> list[Table]:
        found = rows_by(frame, "model", "measurements")

        def millions(model: str, m: int, key: str) -> str:
            return number(found.get((model, m), {}).get(key, math.nan) / 1e6, ",.3f")

        def cost(model: str, m: int) -> tuple[str, str, str]:
            ours, paper = found.get((model, m), {}), published("inference_ms_rtx2080ti_batch32", model, m)
            return millions(model, m, "macs"), milliseconds(ours.get("latency_ms")), milliseconds(paper)

        heading, lines = ["model", "parameters", "paper"], []
        for m in self.measurements:
            heading += [f"MACs, m = {m}", f"ms, m = {m}", "paper"]
        for model in self.models:
            learned = millions(model, self.measurements[-1], "parameters")
            costs = (text for m in self.measurements for text in cost(model, m))
            lines.append([model, learned, number(published("parameters_millions", model), ".3f"), *costs])
        title = (
            f"Cost at n = b = {LENGTH}, {LAYERS} layers (ISTA: {ISTA_ITERATIONS} iterations): parameters at m = 500 and "
            "multiplications of a sample in millions, VLISTA without its prior, which only training needs; milliseconds of "
            f"a batch of {BATCH}, ours on the CPU of the provenance, the paper's on an RTX 2080 Ti"
        )
        return [Table.of(title, heading, lines)]


def _solver_ms(m: int) -> float:
    """Milliseconds of ISTA on a batch."""
    measured, solver = inputs(m, LENGTH, BATCH), ISTA(iterations=ISTA_ITERATIONS, tolerance=1e-30)
    return round(milliseconds_of(lambda: solver.estimate(*measured)), 3)
