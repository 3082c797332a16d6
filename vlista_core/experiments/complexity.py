"""Parameters, multiplications and latency of the models beside the paper's, at n = b = 1024, three layers, batch 32.

The rows are those of the paper's two tables: ISTA with the part that its spectral norm takes, A-DLISTA with its augmentation
network, VLISTA in all (with one draw of its dictionaries, and without its prior, which only training needs), and one iteration
of each of its parts. The paper's latencies are of an RTX 2080 Ti over 1,000 batches with 10 and 500 measurements (its caption
says 50); ours are processor time of one thread of the machine that the provenance describes, which other work on it hardly
changes. Nothing is trained.
"""

import math
import time
from collections.abc import Callable
from functools import partial
from typing import ClassVar

import pandas as pd
import torch
from torch import Tensor, nn

from vlista_core.dictionaries import LearnedDictionary
from vlista_core.estimate import Measurement
from vlista_core.experiments.experiment import Experiment, cells_of, identity, published, rows_by
from vlista_core.linops import DenseMap, LinearMap
from vlista_core.models import ADLISTA, LISTA, NALISTA, VLISTA, UnfoldedModel
from vlista_core.models.complexity import inputs, latency, macs_of, parameters
from vlista_core.models.dlista import LikelihoodBlock
from vlista_core.solvers import ISTA
from vlista_core.solvers.ista import gradient_step_size, pieces
from vlista_core.study import Cell, Context, Row, Table
from vlista_core.study.tables import milliseconds, missing, number

LENGTH, LAYERS, BATCH = 1024, 3, 32
ISTA_ITERATIONS = 100
"""The paper took as many as gave the best images, and does not say how many."""
HIDDEN = 256
"""Of NALISTA's LSTM."""
_NETWORKS: dict[str, Callable[[int, LearnedDictionary], UnfoldedModel]] = {
    "nalista": lambda m, psi: NALISTA(torch.zeros(m, LENGTH), layers=LAYERS, hidden=HIDDEN),
    "lista": lambda m, psi: LISTA(LENGTH, LENGTH, layers=LAYERS),
    "a-dlista": lambda m, psi: ADLISTA(psi, layers=LAYERS, augmentation="paper"),
    "a-dlista-adaptive": lambda m, psi: ADLISTA(psi, layers=LAYERS, covariance=torch.eye(LENGTH)),
}
Prepare = Callable[[int, int], Callable[[], object]]
"""(The number of a batch, its size) -> the call that is counted and timed."""


def _augmentation(m: int) -> int:
    """HWK² + BP with the largest output of a convolution and the 120 inputs of the linear layer that its weights imply."""
    return (m // 2) * (LENGTH // 2) * 3**2 + 120 * 25


FORMULAS: dict[str, Callable[[int], int]] = {
    "ista": lambda m: LENGTH * m * (2 * ISTA_ITERATIONS + LENGTH) + LENGTH**2 * m,
    "nalista": lambda m: LENGTH * m * (2 * LAYERS + LENGTH) + 4 * HIDDEN * (2 + HIDDEN) + HIDDEN**2,
    "lista": lambda m: LAYERS * LENGTH * 2 * LENGTH + LAYERS * m * LENGTH,
    "a-dlista": lambda m: LAYERS * LENGTH * m * LENGTH + _augmentation(m),
    "vlista-prior": lambda m: 3 * 128 * 128 * 64 * 128 * (3**2 + 2 * 7**2),
    "vlista-posterior": lambda m: LENGTH + m + LENGTH * LENGTH + (LENGTH + 2 * m) * 32 * 32 + 10 * 512 * 512 * 4**2,
    "vlista-likelihood": lambda m: LENGTH * m * LENGTH + _augmentation(m),
}
"""The paper's bounds on the multiplications of a sample, O(…) without its constant; those of VLISTA's parts with L = 1."""


class Complexity(Experiment):
    """What the models cost."""

    name: ClassVar[str] = "complexity"
    summary: ClassVar[str] = f"Parameters, multiplications and latency at n = b = {LENGTH}, batch {BATCH}."
    figure: ClassVar[str] = "latency_ms"

    models: tuple[str, ...] = (
        "ista", *_NETWORKS, "vlista", "vlista-prior", "vlista-posterior", "vlista-likelihood",
    )  # fmt: skip
    measurements: tuple[int, ...] = (10, 500)
    batches: int = 100
    seconds: float = 60.0
    """After so long a cell has as many batches as it has."""

    def cells(self) -> list[Cell]:
        return cells_of(seed=[0], model=reversed(self.models), measurements=self.measurements)

    @torch.no_grad()
    def run(self, cell: Cell, context: Context) -> Row:
        name, m, _ = identity(cell)
        modules, prepare = _subject(name, m)
        row: Row = {
            "parameters": sum(map(parameters, modules)), "macs": macs_of(prepare(0, 1), nn.ModuleList(modules)),
            "latency_ms": None, "test_samples": BATCH, "threads": torch.get_num_threads(),
        }  # fmt: skip
        if name != "vlista-prior":
            row |= self._timed("latency", prepare)
        if name == "ista":
            row |= self._timed("norm", partial(_norm, m))
        if name.startswith("a-dlista"):
            row["augmentation_parameters"] = parameters(modules[0].get_submodule("augmentation"))
        return row

    def _timed(self, key: str, prepare: Prepare) -> Row:
        """In processor time, which is the time of a call with one thread: cells that are not `timed` have one."""
        found = latency(
            lambda number: prepare(number, BATCH), batches=self.batches, seconds=self.seconds, clock=time.process_time
        )
        mean, error = round(found.mean_ms, 3), round(found.error_ms, 3)
        return {f"{key}_ms": mean, f"{key}_error_ms": error, f"{key}_batches": found.batches}

    def tables(self, frame: pd.DataFrame) -> list[Table]:
        found = rows_by(frame, "model", "measurements")
        last = self.measurements[-1]

        def own(model: str, m: int, key: str) -> float:
            return float(found.get((model, m), {}).get(key, math.nan))

        def size(model: str) -> str:
            words = number(own(model, last, "parameters") / 1e6, ".3f")
            inside = own(model, last, "augmentation_parameters")
            return words if missing(inside) else f"{words} (augmentation: {inside / 1e6:.5f})"

        def size_printed(model: str) -> str:
            inside = published("parameters_millions", f"{model}-augmentation")
            words = number(published("parameters_millions", model), ".3f")
            return words if inside is None else f"{words} (augmentation: {inside:.5f})"

        def spent(model: str, m: int) -> tuple[str, str, str]:
            ours = [_pair(own(model, m, f"{key}_ms"), own(model, m, f"{key}_error_ms")) for key in ("latency", "norm")]
            paper = [
                _pair(*published("inference_ms_rtx2080ti_batch32", each, m) or (math.nan, math.nan))
                for each in (model, f"{model}-norm")
            ]
            texts = (f"{whole} (norm: {norm})" if norm != "–" else whole for whole, norm in (ours, paper))
            return next(texts), number(own(model, m, "latency_batches"), ".0f"), next(texts)

        def multiplications(model: str, m: int) -> tuple[str, str]:
            formula = FORMULAS[model](m) / 1e6 if model in FORMULAS else None
            return number(own(model, m, "macs") / 1e6, ",.3f"), number(formula, ",.3f")

        times = [(model, size(model), size_printed(model), *(t for m in self.measurements for t in spent(model, m)))
                 for model in self.models]  # fmt: skip
        counts = [(model, *(t for m in self.measurements for t in multiplications(model, m))) for model in self.models]
        heading = [text for m in self.measurements for text in (f"ms, m = {m}", "batches", "paper")]
        columns = [text for m in self.measurements for text in (f"counted, m = {m}", "paper's formula")]
        setting = f"n = b = {LENGTH}, {LAYERS} layers (ISTA: {ISTA_ITERATIONS} iterations)"
        parts = "VLISTA with one draw and without its prior, which only training needs; of its parts one iteration"
        return [
            Table.of(
                f"Cost at {setting}: parameters at m = {last} in millions, and milliseconds of a batch of {BATCH}, mean ± "
                f"standard error, ours of processor time of one thread, the paper's on an RTX 2080 Ti; {parts}",
                ("model", "parameters", "paper", *heading), times,
            ),
            Table.of(
                f"Multiplications of a sample in millions at {setting}, counted, and by the paper's formula, a bound up to a "
                f"constant; {parts}", ("model", *columns), counts,
            ),
        ]  # fmt: skip


def _pair(mean: float, error: float) -> str:
    """mean ± error with the digits that the mean has, and one more for a small error."""
    if missing(mean):
        return "–"
    return f"{milliseconds(mean)} ± {number(error, '.0f' if error >= 10 else '.1f' if error >= 0.1 else '.2g')}"


def _norm(m: int, number: int, batch: int) -> Callable[[], object]:
    """The spectral norms of a batch, as many at a time as ISTA takes."""
    system = Measurement(*inputs(m, LENGTH, batch, seed=number))
    return lambda: [gradient_step_size(piece.phi) for piece in pieces(system, formed=False)]


def _subject(name: str, m: int) -> tuple[list[nn.Module], Prepare]:
    """The modules whose weights a row counts, and what it counts and times."""

    def drawn(number: int, batch: int) -> tuple[Tensor, LinearMap, Tensor]:
        return inputs(m, LENGTH, batch, seed=number)

    psi = LearnedDictionary(torch.eye(LENGTH))
    if name == "ista":
        solver = ISTA(iterations=ISTA_ITERATIONS, tolerance=1e-30)
        return [], lambda number, batch: partial(solver.estimate, *drawn(number, batch))
    if name in _NETWORKS:
        network = _NETWORKS[name](m, psi).eval()
        return [network], lambda number, batch: partial(network, *drawn(number, batch))
    model = VLISTA(psi, m, layers=LAYERS).eval()
    generator = torch.Generator().manual_seed(0)
    likelihood: list[nn.Module] = [model.decoder, model.augmentation]

    def whole(number: int, batch: int) -> Callable[[], object]:
        measured = drawn(number, batch)

        def call() -> None:
            shape = batch, LENGTH, LENGTH
            model.run(*measured, [torch.randn(shape, generator=generator) for _ in range(LAYERS)])

        return call

    def posterior(number: int, batch: int) -> Callable[[], object]:
        y, phi, _ = drawn(number, batch)
        return partial(model.posterior, torch.randn(batch, LENGTH, generator=generator), y, phi)

    def one_layer(number: int, batch: int) -> Callable[[], object]:
        """The second layer: the first has a code of zeros, and less to do."""
        block = LikelihoodBlock(*drawn(number, batch), model.augmentation)
        atoms = DenseMap(torch.randn(batch, LENGTH, LENGTH, generator=generator) / LENGTH**0.5)
        block.layer(atoms)
        return lambda: model.decoder.frozen().apply(block.layer(atoms).code)

    def prior(number: int, batch: int) -> Callable[[], object]:
        return partial(model.prior, torch.eye(LENGTH).expand(batch, -1, -1))

    parts: dict[str, tuple[list[nn.Module], Prepare]] = {
        "vlista": ([model.posterior, *likelihood], whole),
        "vlista-prior": ([model.prior], prior),
        "vlista-posterior": ([model.posterior], posterior),
        "vlista-likelihood": (likelihood, one_layer),
    }
    return parts[name]
