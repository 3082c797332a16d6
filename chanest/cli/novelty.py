"""Is a change of the channel noticed? An experiment with test frames, from home and changed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from chanest.cli.app import Name, app
from chanest.cli.estimators import parse_snr
from chanest.problem import ChannelProblem
from chanest.scenario import load_scenario
from vlista_core.files import check_folder, write_text
from vlista_core.tables import print_table
from vlista_core.terminal import names_in, one_line_errors, out, share_bar, tell


@app.command()
def novelty(
    name: Name,
    score: Annotated[
        str, typer.Option(help="antennas, residual, likelihood, dictionary, or several with commas between.")
    ] = "antennas",
    estimator: Annotated[
        str | None, typer.Option("--estimator", "-e", help="In place of the one that each score has for a default.")
    ] = None,
    changes: Annotated[
        str, typer.Option(help="all, none (false alarms only), or names with commas between, such as cdl-a,tilt.")
    ] = "all",
    snr: Annotated[str, typer.Option(help="start:step:stop in dB, or numbers with commas between.")] = "10",
    lengths: Annotated[str, typer.Option(help="Frames of a stream, with commas between.")] = "1,5,10,20,50",
    frames: Annotated[int, typer.Option(help="Test frames of each change, cut into streams.")] = 1000,
    home: Annotated[int, typer.Option(help="Test frames with nothing changed, for the false alarms.")] = 2000,
    reference: Annotated[int, typer.Option(help="Validation frames that a detector learns from at each SNR.")] = 4000,
    level: Annotated[float, typer.Option(help="Of false alarms.")] = 0.05,
    seed: Annotated[int, typer.Option(help="Of all draws.")] = 1,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the run; out/SCENARIO_novelty if left out.")
    ] = None,
) -> None:
    """Say how surely an estimator's receiver would notice other channels, by SNR and number of frames, and at what cost."""
    with one_line_errors():
        from chanest.novelty.experiment import run_experiment
        from chanest.novelty.tables import headline, tables
        from chanest.plotting.novelty import draw_novelty

        problem = ChannelProblem(load_scenario(name))
        folder = output or Path("out") / f"{problem.scenario.name}_novelty"
        counts = parse_lengths(lengths)
        check_folder(folder)
        with share_bar(problem.scenario.name) as report:
            experiment = run_experiment(
                problem, names_in(score), estimator=estimator,
                changes={"all": None, "none": []}.get(changes, names_in(changes)), snr_db=parse_snr(snr), lengths=counts,
                frames=frames, home_frames=home, reference_frames=reference, level=level, seed=seed,
                report=report,
            )  # fmt: skip
        experiment.write(folder / "results.json")
        found = tables(experiment)
        write_text(
            folder / "table.md", "\n".join([f"{headline(experiment)}\n", *(table.markdown() for table in found)])
        )
        if changes != "none":
            draw_novelty(experiment, folder / "novelty.png")
    for table in found:
        print_table(table, out)
    tell(headline(experiment))
    tell(f"written to {folder}")


def parse_lengths(text: str) -> tuple[int, ...]:
    """Whole numbers with commas between, ascending, or a ValueError."""
    if not re.fullmatch(r"\d+(,\d+)*", text) or 0 in (found := [int(part) for part in text.split(",")]):
        raise ValueError(f"lengths must be numbers of frames with commas between, such as 1,5,20, got {text!r}")
    return tuple(sorted(set(found)))
