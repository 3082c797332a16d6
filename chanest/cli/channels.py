"""Commands on channels: list and show scenarios, generate data sets, draw a channel."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from chanest.channels.store import write_channels
from chanest.cli.app import Name, app
from chanest.problem import ChannelProblem
from chanest.scenario import Scenario, load_scenario, scenario_names
from vlista_core.draws import Split
from vlista_core.terminal import one_line_errors, out, progress, tell


@app.command()
def scenarios() -> None:
    """List the shipped scenarios."""
    table = Table("name", "antennas", "unknowns", "measurements", "what it is", box=None, header_style="bold")
    for name in scenario_names():
        with one_line_errors():
            problem = ChannelProblem(load_scenario(name))
        rx, tx = problem.arrays
        table.add_row(
            name, f"{tx.ports}×{rx.ports}", str(problem.signal_length), str(problem.measurements),
            problem.scenario.description,
        )  # fmt: skip
    out.print(table)


@app.command()
def show(name: Name) -> None:
    """Show everything a scenario sets, defaults included."""
    with one_line_errors():
        scenario = load_scenario(name)
        problem = ChannelProblem(scenario)
    table = Table(box=None, show_header=False, title=scenario.name, title_justify="left", title_style="bold")
    for key, value in _flat(scenario):
        table.add_row(key, value)
    table.add_row("", "")
    table.add_row("unknowns n", str(problem.signal_length))
    table.add_row("measurements m", str(problem.measurements))
    table.add_row("power before scaling", f"{problem.source.mean_power:.4f}")
    table.add_row("channel hash", scenario.channel_hash())
    out.print(table)


@app.command()
def generate(
    name: Name,
    output: Annotated[Path, typer.Option("--output", "-o", help="The HDF5 file to write.")],
    count: Annotated[
        int | None, typer.Option("--count", "-n", help="How many channels; the scenario's size if left out.")
    ] = None,
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "train",
    seed: Annotated[int | None, typer.Option(help="The scenario's seed if left out.")] = None,
) -> None:
    """Generate channels into an HDF5 file. Run it again after an interruption and it goes on where it stopped."""
    with one_line_errors():
        scenario = load_scenario(name)
        data = scenario.data_set(_split(split), count=count, seed=seed)
        with progress() as bar:
            task = bar.add_task(f"{scenario.name} {data.split}", total=data.count)
            file = write_channels(output, data, on_progress=lambda done: bar.update(task, completed=done))
    tell(f"{file.count} channels in {file.path}")


@app.command("plot-channel")
def plot_channel(
    name: Name,
    output: Annotated[Path, typer.Option("--output", "-o", help="The image to write (.png, .pdf, .svg).")] = Path(
        "channel.png"
    ),
    seed: Annotated[int | None, typer.Option(help="The scenario's seed if left out.")] = None,
    index: Annotated[int, typer.Option(help="Which sample of the test split to draw.")] = 0,
) -> None:
    """Draw a channel: angular power spectrum, delay profile, singular values."""
    with one_line_errors():
        from chanest.plotting import draw_channel

        scenario = load_scenario(name)
        draw_channel(ChannelProblem(scenario), output, seed=scenario.data.seed if seed is None else seed, index=index)
    tell(f"wrote {output}")


def _split(value: str) -> Split:
    match value:
        case "train" | "validation" | "test":
            return value
        case _:
            raise ValueError(f"split must be train, validation or test, got {value!r}")


def _flat(scenario: Scenario) -> list[tuple[str, str]]:
    """Every setting as (key, value) text."""
    rows = []
    for key, value in scenario.model_dump().items():
        if isinstance(value, dict):
            rows += [(f"{key}.{inner}", str(setting)) for inner, setting in value.items()]
        elif key != "name":
            rows.append((key, str(value)))
    return rows
