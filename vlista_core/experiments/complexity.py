"""Parameters, multiplications and latency of the models beside the paper's, at n = b = 1024, three layers, batch 32.

The paper's latencies are of an RTX 2080 Ti; ours are of the machine that the manifest describes. Nothing is trained.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from vlista_core.dictionaries import LearnedDictionary
from vlista_core.experiments.base import Cell, Context, Done, Experiment, number
from vlista_core.experiments.published import printed_latency, printed_parameters
from vlista_core.linops import DenseMap
from vlista_core.models import ADLISTA, LISTA, NALISTA, VLISTA, UnfoldedModel
from vlista_core.models.complexity import complexity, parameters
from vlista_core.solvers import ISTA
from vlista_core.tables import Table, milliseconds
from vlista_core.tensorfile import Json

LENGTH, LAYERS, BATCH = 1024, 3, 32
MEASUREMENTS = (10, 500)
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
MODELS = ("ista", *_NETWORKS)


class ComplexityExperiment(Experiment):
    """What the models cost."""

    name = "complexity"
    summary = f"Parameters, multiplications and latency at n = b = {LENGTH}, batch {BATCH}."
    figure = "latency_ms"
    timed = True

    def cells(self) -> list[Cell]:
        return [
            {"experiment": self.name, "model": model, "measurements": m, "seed": 0}
            for model in reversed(MODELS)
            for m in MEASUREMENTS
        ]

    def run(self, cell: Cell, context: Context) -> dict[str, Json]:
        m = int(str(cell["measurements"]))
        shared: dict[str, Json] = {"test_samples": BATCH, "threads": torch.get_num_threads()}
        if cell["model"] == "ista":
            return {"parameters": 0, "macs": 2 * ISTA_ITERATIONS * m * LENGTH, "latency_ms": _solver_ms(m), **shared}
        model = _NETWORKS[str(cell["model"])](m).eval()
        cost = complexity(model, m, LENGTH, batch=BATCH)
        prior = parameters(model.prior) if isinstance(model, VLISTA) else 0
        return {
            "parameters": cost.parameters - prior,
            "prior_parameters": prior,
            "macs": cost.macs,
            "latency_ms": round(cost.latency_ms, 3),
            **shared,
        }

    def tables(self, done: Done) -> list[Table]:
        found = {(str(cell["model"]), int(str(cell["measurements"]))): cell for cell in done}
        heading = ["model", "parameters", "paper"]
        for m in MEASUREMENTS:
            heading += [f"MACs, m = {m}", f"ms, m = {m}", "paper"]
        lines = []
        for model in MODELS:
            cells = [found.get((model, m), {}) for m in MEASUREMENTS]
            line = [model, _millions(number(cells[-1], "parameters")), _printed_millions(printed_parameters(model))]
            for m, cell in zip(MEASUREMENTS, cells, strict=True):
                times = number(cell, "latency_ms"), printed_latency(model, m)
                line += [_millions(number(cell, "macs")), *(milliseconds(each) for each in times)]
            lines.append(tuple(line))
        title = (
            f"Cost at n = b = {LENGTH}, {LAYERS} layers (ISTA: {ISTA_ITERATIONS} iterations): parameters at m = 500 and "
            "multiplications of a sample in millions, VLISTA without its prior, which only training needs; milliseconds of "
            f"a batch of {BATCH}, ours on the CPU of the manifest, the paper's on an RTX 2080 Ti"
        )
        return [Table(title, tuple(heading), tuple(lines))]


def _solver_ms(m: int, repeats: int = 3) -> float:
    """Milliseconds of ISTA on a batch, the best of several after a warm-up."""
    generator = torch.Generator().manual_seed(0)
    phi = DenseMap(torch.randn(BATCH, m, LENGTH, generator=generator) / m**0.5)
    y = torch.randn(BATCH, m, generator=generator)
    solver = ISTA(iterations=ISTA_ITERATIONS, tolerance=1e-30)
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        solver.estimate(y, phi, 0.0)
        times.append(time.perf_counter() - start)
    return round(1e3 * min(times[1:]), 3)


def _millions(value: float | None) -> str:
    return "–" if value is None else f"{value / 1e6:,.3f}"


def _printed_millions(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
