"""Recover sparse vectors from random projections that differ for every sample, with each classical solver.

python examples/sparse_recovery.py [--samples 128] [--snr 40] [--output out]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from rich.console import Console
from rich.table import Table

from vlista_core.data.synthetic import SyntheticProblem
from vlista_core.files import check_folder, replacing
from vlista_core.metrics import nmse_db, nmse_median_db, squared_error_ratios
from vlista_core.solvers import SOLVERS


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--samples", type=int, default=128, help="test samples")
    parser.add_argument("--snr", type=float, default=40.0, help="signal-to-noise ratio in dB")
    parser.add_argument("--output", type=Path, default=Path("out"), help="where the figure goes")
    chosen = parser.parse_args()
    if chosen.samples < 1:
        parser.error(f"--samples must be at least 1, got {chosen.samples}")
    return chosen


def plot_distribution(axis: Axes, name: str, ratios: torch.Tensor, style: str) -> None:
    """The share of samples whose error is below each level."""
    ordered = 10 * torch.log10(ratios.sort().values.clamp_min(1e-20))
    axis.plot(ordered, torch.linspace(0, 1, len(ordered)), style, label=name, linewidth=1.8)


def main() -> None:
    chosen = arguments()
    check_folder(chosen.output)
    problem = SyntheticProblem(length=500, rows=250, sparsity=0.1, snr_db=chosen.snr)
    batch = problem.sample(chosen.samples, seed=2024)

    table = Table(title=f"250 measurements of 500 unknowns, 10 % non-zero, {chosen.snr:g} dB, a new Φ for each sample")
    for heading in ("solver", "NMSE (dB)", "median (dB)", "iterations", "ms per sample"):
        table.add_column(heading, justify="left" if heading == "solver" else "right")
    figure, axis = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for (name, solver), style in zip(SOLVERS.items(), ["-", "--", "-.", ":", "-", "--", "-."], strict=True):
        start = time.perf_counter()
        out = solver().estimate(batch.y, batch.phi, batch.noise_var)
        milliseconds = 1e3 * (time.perf_counter() - start) / len(batch)
        iterations = 0.0 if out.iterations is None else float(out.iterations.double().mean())
        table.add_row(
            name,
            f"{nmse_db(out.signal, batch.signal):.1f}",
            f"{nmse_median_db(out.signal, batch.signal):.1f}",
            f"{iterations:.0f}",
            f"{milliseconds:.2f}",
        )
        plot_distribution(axis, name, squared_error_ratios(out.signal, batch.signal), style)
    Console().print(table)

    axis.set(xlabel="NMSE of a sample (dB)", ylabel="share of samples below", ylim=(0, 1))
    axis.grid(alpha=0.3)
    figure.legend(loc="outside right center")
    path = chosen.output / "sparse_recovery.png"
    with replacing(path) as partial:  # a whole file or none, even when the program is killed
        figure.savefig(partial, dpi=150)
    Console().print(f"Figure: {path}")


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
