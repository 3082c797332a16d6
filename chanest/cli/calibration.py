"""Commands on variances: fit them, and see what they are worth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chanest.cli.app import Name, app
from chanest.cli.estimators import parse_snr
from chanest.estimators import estimator_class
from chanest.evaluation import usable_estimators
from chanest.evaluation.calibration import calibration_tables, measure_calibration, write_calibration
from chanest.problem import ChannelProblem
from chanest.scenario import Scenario, load_scenario
from chanest.uncertainty.calibrating import CHANNELS, SEED
from chanest.weights.training import calibrate_estimator
from vlista_core.files import check_folder
from vlista_core.tables import print_table
from vlista_core.terminal import names_in, one_line_errors, out, say, share_bar, step_bar, tell


@app.command()
def calibrate(
    name: Name,
    estimators: Annotated[str, typer.Option("--estimators", "-e", help="all, or names with commas between.")] = "all",
    channels: Annotated[int, typer.Option(help="Validation channels at each of nine SNRs.")] = CHANNELS,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for the files; that of your own weights if left out.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the validation draws.")] = SEED,
) -> None:
    """Fit the variances and intervals of estimators on validation draws, where they are found with the weights."""
    with one_line_errors():
        scenario = load_scenario(name)
        problem = ChannelProblem(scenario)
        for each in _chosen(scenario, estimators):
            with share_bar(each) as report:
                path = calibrate_estimator(each, problem, channels=channels, seed=seed, folder=output, report=report)
            tell(f"wrote {path}")


@app.command()
def calibration(
    name: Name,
    estimators: Annotated[str, typer.Option("--estimators", "-e", help="all, or names with commas between.")] = "all",
    snr: Annotated[str, typer.Option(help="start:step:stop in dB, or numbers with commas between.")] = "0,10,20",
    channels: Annotated[int, typer.Option(help="How many test channels at each SNR.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of the test draws, which no training or calibration has seen.")] = 1,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the run; out/SCENARIO if left out.")
    ] = None,
) -> None:
    """Measure what the intervals of estimators cover on fresh test channels: table, JSON and reliability figure."""
    with one_line_errors():
        scenario = load_scenario(name)
        problem = ChannelProblem(scenario)
        folder = output or Path("out") / scenario.name
        check_folder(folder)
        chosen, levels = _chosen(scenario, estimators), parse_snr(snr)
        with step_bar(scenario.name) as progress:
            rows = measure_calibration(problem, chosen, snr_db=levels, channels=channels, seed=seed, progress=progress)
        write_calibration(problem, rows, folder, seed=seed)
    for table in calibration_tables(rows):
        print_table(table, out)
    tell(f"wrote {folder / 'calibration.json'}, calibration.md and reliability.png")


def _chosen(scenario: Scenario, names: str) -> list[str]:
    """The estimators that were named, or all that can run; a ValueError for an unknown one before any work."""
    if names != "all":
        chosen = names_in(names)
        for each in chosen:
            estimator_class(each)
        return chosen
    usable, notes = usable_estimators(scenario)
    for note in notes:
        say(f"note: {note}")
    return usable
