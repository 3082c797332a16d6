"""Commands on estimators: list, train, evaluate, report."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, cast, get_args

import typer
from rich.table import Table

from chanest.cli.app import Name, app
from chanest.estimators import Fit, estimator_class, estimator_names
from chanest.evaluation import Plan, Results, Sweep, evaluate, usable_bounds, usable_estimators
from chanest.problem import ChannelProblem
from chanest.report import write_report
from chanest.scenario import Scenario, load_scenario
from chanest.tables import headline, main_tables
from chanest.weights import SHIPPED, find_weights, own_folder, weights_file
from chanest.weights.training import train_estimator
from vlista_core.tables import print_table
from vlista_core.terminal import names_in, one_line_errors, out, say, share_bar, step_bar, tell

_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_MOST_POINTS = 1000


@app.command("estimators")
def list_estimators(
    name: Annotated[str | None, typer.Argument(help="Say whether there are weights for this scenario.")] = None,
) -> None:
    """List the estimators, and for which scenarios there are weights."""
    table = Table("name", "weights", "what it is", box=None, header_style="bold")
    with one_line_errors():
        scenario = None if name is None else load_scenario(name)
        for known in estimator_names():
            table.add_row(known, _weights(known, scenario), estimator_class(known).summary)
    out.print(table)


@app.command()
def train(
    name: Name,
    estimator: Annotated[str, typer.Option("--estimator", "-e", help="Which, or several with commas between.")],
    budget: Annotated[str, typer.Option(help="Time for each, as 90s, 20min or 1h.")] = "5min",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for the weights; your own if left out.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the training draws.")] = 0,
) -> None:
    """Fit an estimator to a scenario and store its weights, where `evaluate` finds them."""
    with one_line_errors():
        problem = ChannelProblem(load_scenario(name))
        names = names_in(estimator)
        for each in names:
            estimator_class(each)
        seconds = parse_budget(budget)
        for each in names:
            with share_bar(each) as report:
                path = train_estimator(each, problem, Fit(seconds, seed, report), folder=output)
            tell(f"wrote {path}")


@app.command("evaluate")
def evaluate_command(
    name: Name,
    estimators: Annotated[str, typer.Option("--estimators", "-e", help="all, or names with commas between.")] = "all",
    snr: Annotated[str, typer.Option(help="start:step:stop in dB, or numbers with commas between.")] = "0:10:20",
    sweep: Annotated[
        str | None, typer.Option(help="pilots=8,16,24 or chains=… or bits=…, at each SNR; over the SNR if left out.")
    ] = None,
    channels: Annotated[int, typer.Option(help="How many test channels.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of the test draws, which no training has seen.")] = 1,
    workers: Annotated[int, typer.Option(help="Processes of this machine.")] = 1,
    scheduler: Annotated[str | None, typer.Option(help="Address of a dask scheduler, in place of workers.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the run; out/SCENARIO if left out.")
    ] = None,
    trained_on: Annotated[
        str | None, typer.Option(help="Take the weights of this scenario, such as a mixture of channel models.")
    ] = None,
    bounds: Annotated[bool, typer.Option(help="Evaluate the bounds beside the estimators.")] = True,
    device: Annotated[str, typer.Option(help="Where estimators run: cpu or cuda.")] = "cpu",
    restart: Annotated[bool, typer.Option("--restart", help="Replace what the folder holds.")] = False,
) -> None:
    """Compare estimators on the same test channels. Run it again after an interruption and it goes on."""
    with one_line_errors():
        scenario = load_scenario(name)
        lender = None if trained_on is None else load_scenario(trained_on).name
        chosen, notes = usable_estimators(scenario, lender) if estimators == "all" else (names_in(estimators), [])
        over, values = parse_sweep(sweep)
        plan = Plan(
            scenario, tuple(chosen), tuple(usable_bounds(scenario)) if bounds else (), parse_snr(snr), channels, seed,
            over, values, lender, device,
        )  # fmt: skip
        for note in notes:
            say(f"note: {note}")
        folder = output or Path("out") / (scenario.name if over == "snr" else f"{scenario.name}_{over}")
        with step_bar(scenario.name, resumes_in=folder) as progress:
            results = evaluate(
                plan,
                folder,
                workers=workers,
                scheduler=scheduler,
                restart=restart,
                notes=tuple(notes),
                progress=progress,
            )
        page = write_report(results, folder)
    _print_results(results, page)


@app.command()
def report(run: Annotated[Path, typer.Argument(help="The folder of a finished evaluation.")]) -> None:
    """Draw the figures and write the tables and the page of an evaluation again."""
    with one_line_errors():
        results = Results.read(run)
        page = write_report(results, run)
    _print_results(results, page)


def parse_budget(text: str) -> float:
    """90s, 20min or 1h in seconds, or a ValueError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|min|h)", text.strip())
    if found is None or not float(found[1]) > 0:
        raise ValueError(f"budget must be a time such as 90s, 20min or 1h, got {text!r}")
    return float(found[1]) * _SECONDS[found[2]]


def parse_snr(text: str) -> tuple[float, ...]:
    """start:step:stop (stop included) or numbers with commas between, in dB, or a ValueError."""
    fault = f"snr must be start:step:stop, such as -5:5:25, or numbers with commas between, got {text!r}"
    try:
        if ":" not in text:
            return tuple(float(part) for part in text.split(","))
        start, step, stop = (float(part) for part in text.split(":"))
    except ValueError:
        raise ValueError(fault) from None
    if not (math.isfinite(start) and math.isfinite(stop) and step > 0 and start <= stop):
        raise ValueError(f"{fault}; step must be positive and start at most stop")
    count = math.floor((stop - start) / step + 1e-9) + 1
    if count > _MOST_POINTS:
        raise ValueError(f"snr may have {_MOST_POINTS} points at most, {text!r} has {count}")
    return tuple(round(start + step * index, 9) for index in range(count))


def parse_sweep(text: str | None) -> tuple[Sweep, tuple[int, ...]]:
    """pilots=8,16 and the like; None is the sweep over the SNR."""
    if text is None:
        return "snr", ()
    key, _, values = text.partition("=")
    allowed = [sweep for sweep in get_args(Sweep) if sweep != "snr"]
    if key not in allowed or not re.fullmatch(r"\d+(,\d+)*", values):
        raise ValueError(f"sweep must be one of {', '.join(f'{each}=8,16' for each in allowed)}, got {text!r}")
    return cast(Sweep, key), tuple(int(value) for value in values.split(","))


def _weights(name: str, scenario: Scenario | None) -> str:
    """Where the weights for a scenario are, or for which scenarios there are some."""
    if scenario is not None:
        path = find_weights(name, scenario.name)
        if path is None:
            return "missing" if estimator_class(name).needs_fit else "not needed"
        return "shipped" if path.parent == SHIPPED else "your own"
    ending = weights_file(name, "")
    files = {path.name for folder in (own_folder(), SHIPPED) for path in folder.glob(f"*{ending}")}
    found = ", ".join(sorted(file.removesuffix(ending) for file in files))
    return found or ("none" if estimator_class(name).needs_fit else "not needed")


def _print_results(results: Results, page: Path) -> None:
    for figures in main_tables(results):
        print_table(figures, out)
    tell(headline(results))
    tell(f"report: {page}")
