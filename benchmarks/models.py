"""Networks on sparse recovery: ours beside the published figures, trained here and now.

python benchmarks/models.py fixed   [--minutes 20]   ALISTA, NALISTA, HyperLISTA: 250x1000, 40 dB, one Φ, 16 layers
python benchmarks/models.py varying [--minutes 4]    LISTA, DLISTA, A-DLISTA: 250x500, noiseless and 40 dB, one Φ per sample
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from rich.console import Console
from rich.table import Table

from vlista_core.data.synthetic import SyntheticProblem, benchmark
from vlista_core.dictionaries import LearnedDictionary
from vlista_core.estimate import Estimator
from vlista_core.metrics import nmse_db, nmse_median_db
from vlista_core.models import ADLISTA, ALISTA, DLISTA, LISTA, NALISTA, HyperLISTA, UnfoldedModel
from vlista_core.models.fixed_dictionary import analytic_weights
from vlista_core.problems import Batch
from vlista_core.solvers import AMP, FISTA, ISTA, VAMP
from vlista_core.training import Trainer

TRAINING_SEED, TEST_SEED, TEST_SAMPLES = 1, 2, 2000
LAYERS_FIXED, LAYERS_VARYING = 16, 12
console = Console()


@dataclass(frozen=True)
class Row:
    name: str
    ratio: float
    median: float
    minutes: float
    published: str


def measure(name: str, estimator: Estimator, problem: SyntheticProblem, minutes: float, published: str = "") -> Row:
    """NMSE on test draws that no training or tuning has seen."""
    errors, signals = [], []
    for start in range(0, TEST_SAMPLES, 250):
        batch = problem.sample(250, seed=TEST_SEED, start=start)
        errors.append(estimator.estimate(batch.y, batch.phi, batch.noise_var).signal)
        signals.append(batch.signal)
    estimate, signal = torch.cat(errors), torch.cat(signals)
    row = Row(name, nmse_db(estimate, signal), nmse_median_db(estimate, signal), minutes, published)
    console.print(f"  {name}: {row.ratio:.1f} dB (median {row.median:.1f}) after {minutes:.1f} min", highlight=False)
    return row


def trained(
    name: str,
    model: UnfoldedModel,
    problem: SyntheticProblem,
    trainer: Trainer,
    start_from: Callable[[Batch], None] | None = None,
    published: str = "",
) -> Row:
    """Start from training draws of its own, train for the trainer's time, then measure."""
    start = time.perf_counter()
    if start_from is not None:
        start_from(problem.sample(256, seed=TRAINING_SEED, split="train", start=10**8))
    result = trainer.fit(model, problem, seed=TRAINING_SEED)
    for message in result.messages:
        console.print(f"  {name}: {message}", highlight=False)
    return measure(name, model, problem, (time.perf_counter() - start) / 60, published)


def show(title: str, rows: list[Row]) -> None:
    table = Table(title=title)
    for heading in ("model", "NMSE (dB)", "median (dB)", "published (dB)", "minutes"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for row in rows:
        table.add_row(row.name, f"{row.ratio:.1f}", f"{row.median:.1f}", row.published, f"{row.minutes:.1f}")
    console.print(table)


def fixed(minutes: float) -> None:
    """One Φ, 250x1000, 40 dB: the set-up of ALISTA and NALISTA."""
    problem = benchmark("250x1000", fixed_phi_seed=0)
    matrix = problem.fixed_phi()
    if matrix is None:
        raise ValueError("the problem must have one fixed Φ")
    weights = analytic_weights(matrix.double()).float()
    seconds = 60 * minutes
    rows = [
        measure("ISTA, 16 iterations", ISTA(iterations=16, penalty=0.4), problem, 0.0, "-3.9"),
        measure("FISTA, 16 iterations", FISTA(iterations=16, penalty=0.3), problem, 0.0, "-6.7"),
        measure("AMP, 16 iterations", AMP(iterations=16), problem, 0.0),
        measure("VAMP, 16 iterations", VAMP(iterations=16), problem, 0.0),
    ]
    hyper = HyperLISTA(matrix, layers=LAYERS_FIXED)
    start = time.perf_counter()
    hyper.tune(problem.sample(256, seed=TRAINING_SEED, split="train", start=10**8))
    rows.append(measure("HyperLISTA", hyper, problem, (time.perf_counter() - start) / 60))
    alista = ALISTA(weights, layers=LAYERS_FIXED)
    tuned = Trainer(seconds=seconds / 2, batch_size=128, learning_rate=5e-3, schedule="cosine", clip_norm=1.0)
    rows.append(trained("ALISTA", alista, problem, tuned, alista.start_from, "-33.6"))
    nalista = NALISTA(weights, layers=LAYERS_FIXED)
    tuned = Trainer(seconds=seconds, batch_size=128, learning_rate=2e-3, schedule="cosine", clip_norm=1.0)
    rows.append(trained("NALISTA", nalista, problem, tuned, nalista.start_from, "-39.4"))
    show("250x1000, 40 dB, one Φ, 16 layers", rows)


def varying(minutes: float, only: str | None) -> None:
    """One Φ per sample, 250x500: equal training time for the three networks."""
    for snr_db in (40.0, None):
        problem = benchmark("250x500", snr_db=snr_db)
        n = problem.signal_length

        def trainer(rate: float) -> Trainer:
            return Trainer(
                seconds=60 * minutes,
                batch_size=64,
                learning_rate=rate,
                schedule="cosine",
                clip_norm=1.0,
                validate_every=50,
                validation_samples=256,
            )

        identity = LearnedDictionary(torch.eye(n))
        lista = LISTA(n, n, layers=LAYERS_VARYING, loss="relative")
        dlista = DLISTA(identity, layers=LAYERS_VARYING, loss="relative")
        paper = ADLISTA(
            identity, layers=LAYERS_VARYING, loss="relative", augmentation="paper", step=0.5, threshold=0.05
        )
        adaptive = ADLISTA(identity, layers=LAYERS_VARYING, loss="relative")

        runs: dict[str, Callable[[], Row]] = {
            "amp": partial(measure, f"AMP, {LAYERS_VARYING} iterations", AMP(iterations=LAYERS_VARYING), problem, 0.0),
            "lista": partial(trained, "LISTA", lista, problem, trainer(1e-3), lista.start_from),
            "dlista": partial(trained, "DLISTA", dlista, problem, trainer(1e-4), dlista.start_from),
            "a-dlista": partial(trained, "A-DLISTA (paper)", paper, problem, trainer(1e-4), paper.start_from),
            "a-dlista-adaptive": partial(
                trained, "A-DLISTA (adaptive)", adaptive, problem, trainer(1e-4), adaptive.start_from
            ),
        }
        rows = [run() for name, run in runs.items() if only in (None, name)]
        noise = "noiseless" if snr_db is None else f"{snr_db:g} dB"
        show(f"250x500, {noise}, a new Φ for each sample, {LAYERS_VARYING} layers", rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("which", choices=("fixed", "varying"))
    parser.add_argument("--minutes", type=float, help="training time of a network (ALISTA takes half)")
    names = ("amp", "lista", "dlista", "a-dlista", "a-dlista-adaptive")
    parser.add_argument("--only", choices=names, help="one row of the varying table")
    chosen = parser.parse_args()
    if chosen.minutes is not None and not chosen.minutes > 0:
        parser.error(f"--minutes must be positive, got {chosen.minutes}")
    if chosen.which == "fixed":
        fixed(chosen.minutes or 20.0)
    else:
        varying(chosen.minutes or 4.0, chosen.only)


if __name__ == "__main__":
    main()
