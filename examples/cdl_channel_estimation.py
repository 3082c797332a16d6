"""Which channel estimator comes closest to the limit? All of them on the same 5G channels, with a table and a report.

python examples/cdl_channel_estimation.py [--scenario cdl_c_upa64x4] [--snr 0:10:20] [--channels 32] [--device cpu] [--train]
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import chanest
from chanest.estimators import estimator_class
from chanest.fit import Fit
from chanest.studies import STUDIES
from chanest.studies.accuracy import AccuracyStudy, usable_bounds
from chanest.studies.commands import parse_snr
from chanest.weights import left_out, usable_estimators
from chanest.weights.training import train_estimator
from vlista_core.metrics import nmse_db
from vlista_core.study import run_study
from vlista_core.study.commands import show
from vlista_core.terminal import share_bar, step_bar

CHANNELS = 32  # as many as fit into two minutes with the slowest of them; `chanest evaluate` takes 1,000


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--scenario", default="cdl_c_upa64x4", help="a shipped name or the path of a .toml file")
    parser.add_argument("--snr", default="0:10:20", help="start:step:stop in dB, or numbers with commas between")
    parser.add_argument("--channels", type=int, default=CHANNELS, help="test channels")
    parser.add_argument("--device", default="cpu", help="where estimators run: cpu or cuda")
    parser.add_argument(
        "--train", type=float, nargs="?", const=5.0, metavar="MINUTES", help="first retrain what learns, 5 minutes each"
    )
    parser.add_argument("--output", type=Path, default=Path("out"), help="where the figure and the report go")
    chosen = parser.parse_args()
    if chosen.train is not None and not chosen.train > 0:
        parser.error(f"--train must be a positive number of minutes, got {chosen.train}")
    return chosen


def first_look(problem: chanest.ChannelProblem, snr_db: float) -> None:
    """One batch by hand: what an estimator is given, and what it gives back."""
    # y = Φ vec(H) + n; a new H, new beams Φ, new noise for each sample
    batch = problem.sample(64, seed=7, snr_db=snr_db)
    shapes = f"y {[*batch.y.shape]}, Φ {batch.phi.shape}"
    print(f"{problem.measurements} measurements of {problem.signal_length} unknowns: {shapes}")
    estimator = chanest.get_estimator("ls", problem)
    estimate = estimator.estimate(batch.y, batch.phi, batch.noise_var)  # estimate.signal = vec(Ĥ)
    print(f"least squares at {snr_db:g} dB SNR: NMSE {nmse_db(estimate.signal, batch.signal):.1f} dB")


def retrain(problem: chanest.ChannelProblem, minutes: float) -> None:
    """Fit everything that learns on the training split; weights go to your own folder and are found from now on."""
    for name in chanest.estimator_names():
        if estimator_class(name).needs_fit:
            with share_bar(name) as report:
                train_estimator(name, problem, Fit(seconds=60 * minutes, report=report))


def main() -> None:
    chosen = arguments()

    # A scenario is arrays, a channel model and a front end; a problem draws samples of it.
    scenario = chanest.load_scenario(chosen.scenario)
    problem = chanest.ChannelProblem(scenario)
    print(f"{scenario.name}: {scenario.description}")
    first_look(problem, parse_snr(chosen.snr)[0])
    if chosen.train is not None:
        retrain(problem, chosen.train)

    # Every estimator that has weights here, or needs none, on the same test channels, and the bounds beside them.
    names, refused = usable_estimators(problem)
    notes = left_out(problem, refused)
    for note in notes:
        print(f"note: {note}")
    study = AccuracyStudy(
        scenario=scenario,
        estimators=tuple(names),
        bounds=usable_bounds(scenario),
        snr_db=parse_snr(chosen.snr),
        channels=chosen.channels,
        device=chosen.device,
    )
    with step_bar(f"{study.channels} channels") as progress:
        workers = min(2, os.cpu_count() or 1)
        run_study(study, chosen.output, workers=workers, restart=True, notes=notes, progress=progress)

    # The figures, the tables and one page that holds everything.
    show(chosen.output, STUDIES)


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
