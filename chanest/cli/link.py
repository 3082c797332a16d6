"""The command on the coded link."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chanest.cli.app import Name, app
from chanest.cli.estimators import parse_snr
from chanest.link import MODULATIONS, LinkPlan, run_link, usable_receivers
from chanest.link.plan import ErrVar
from chanest.link.report import headline, tables, write_link_report
from chanest.scenario import load_scenario
from vlista_core.tables import print_table
from vlista_core.terminal import names_in, one_line_errors, out, say, step_bar, tell

_ERR_VAR: dict[str, tuple[ErrVar, ...]] = {
    "estimated": ("estimated",), "zero": ("zero",), "both": ("estimated", "zero"),
}  # fmt: skip


@app.command("link")
def link_command(
    name: Name,
    estimators: Annotated[
        str, typer.Option("--estimators", "-e", help="all, or names with commas between; sionna-ls, perfect … too.")
    ] = "all",
    snr: Annotated[str, typer.Option(help="start:step:stop in dB, or numbers with commas between.")] = "9:2:17",
    blocks: Annotated[int, typer.Option(help="How many blocks at each SNR.")] = 1000,
    modulation: Annotated[str, typer.Option(help=f"One of {', '.join(MODULATIONS)}.")] = LinkPlan.modulation,
    rate: Annotated[float, typer.Option(help="Of the 5G LDPC code.")] = LinkPlan.rate,
    streams: Annotated[int, typer.Option(help="Data streams, each through a beam of the training.")] = LinkPlan.streams,
    data_symbols: Annotated[int, typer.Option(help="After the training symbols of a block.")] = LinkPlan.data_symbols,
    subcarriers: Annotated[int, typer.Option(help="Of a block.")] = LinkPlan.subcarriers,
    err_var: Annotated[
        str, typer.Option(help="What the equaliser is told of errors: estimated, zero, or both one after the other.")
    ] = "estimated",
    validation: Annotated[
        int, typer.Option(help="Validation blocks from which the size of errors is learnt.")
    ] = LinkPlan.validation,
    seed: Annotated[int, typer.Option(help="Of the test draws, which no training has seen.")] = 1,
    workers: Annotated[int, typer.Option(help="Processes of this machine.")] = 1,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the run; out/SCENARIO_link if left out.")
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Replace what the folder holds.")] = False,
) -> None:
    """Send coded blocks through Sionna with each estimator in the receiver. Run it again and it goes on."""
    with one_line_errors():
        scenario = load_scenario(name)
        if err_var not in _ERR_VAR:
            raise ValueError(f"err-var must be one of {', '.join(_ERR_VAR)}, got {err_var!r}")
        chosen, notes = usable_receivers(scenario) if estimators == "all" else (names_in(estimators), [])
        plan = LinkPlan(
            scenario, tuple(chosen), parse_snr(snr), blocks, seed, modulation, rate, streams, data_symbols, subcarriers,
            validation, _ERR_VAR[err_var],
        )  # fmt: skip
        for note in notes:
            say(f"note: {note}")
        folder = output or Path("out") / f"{scenario.name}_link"
        with step_bar(scenario.name, resumes_in=folder) as progress:
            results = run_link(plan, folder, workers=workers, restart=restart, notes=tuple(notes), progress=progress)
        page = write_link_report(results, folder)
    for table in tables(results):
        print_table(table, out)
    tell(headline(results))
    tell(f"report: {page}")
