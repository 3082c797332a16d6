"""The command on snapshots over time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chanest.cli.app import Name, app
from chanest.cli.estimators import parse_snr
from chanest.evaluation.tracking import evaluate_tracking
from chanest.scenario import load_scenario
from vlista_core.tables import print_table
from vlista_core.terminal import names_in, one_line_errors, out, step_bar, tell


@app.command()
def track(
    name: Name,
    estimators: Annotated[
        str, typer.Option("--estimators", "-e", help="With a family of covariances, commas between.")
    ] = "a-dlista+,gmm",
    snr: Annotated[str, typer.Option(help="start:step:stop in dB, or numbers with commas between.")] = "0:10:20",
    tracks: Annotated[int, typer.Option(help="How many test tracks.")] = 100,
    seed: Annotated[int, typer.Option(help="Of the test draws, which no training has seen.")] = 1,
    memory: Annotated[float, typer.Option(help="What a snapshot still counts after one more, 0 to 1.")] = 1.0,
    trained_on: Annotated[
        str | None, typer.Option(help="Take the weights of this scenario, which has the same arrays.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder; out/SCENARIO_track if left out.")
    ] = None,
) -> None:
    """Let estimators carry what they have seen of the angles from snapshot to snapshot of a moving scenario."""
    with one_line_errors():
        scenario = load_scenario(name)
        lender = None if trained_on is None else load_scenario(trained_on).name
        with step_bar(scenario.name) as progress:
            found = evaluate_tracking(
                scenario, names_in(estimators), trained_on=lender, snr_db=parse_snr(snr), tracks=tracks, seed=seed,
                memory=memory, progress=progress,
            )  # fmt: skip
        page = found.write(output or Path("out") / f"{scenario.name}_track")
    for table in found.tables():
        print_table(table, out)
    tell(f"report: {page}")
