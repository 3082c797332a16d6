"""The command line. What a command needs is imported when it runs, so that help comes at once."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chanest.studies import commands
from chanest.studies.commands import Estimators, Name, chosen_estimators, scenario_of
from vlista_core.terminal import TrainedOn, one_line_errors, out, say, share_bar, tell

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from chanest.scenario import Scenario
    from vlista_core.draws import Split

app = typer.Typer(
    name="chanest",
    help="Wireless MIMO channel estimation: scenarios, channels, estimators, studies.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Weights = Annotated[Path | None, typer.Option("--output", "-o", help="Folder for the files; your own if left out.")]

_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}


def _version(asked: bool) -> None:
    if asked:
        import chanest

        tell(f"chanest {chanest.__version__}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it and exit.")]


@app.callback()
def _main(version: Version = False) -> None:
    """Wireless MIMO channel estimation: scenarios, channels, estimators, studies."""


@app.command()
@one_line_errors()
def scenarios() -> None:
    """List the shipped scenarios."""
    from rich.table import Table

    from chanest.problem import ChannelProblem
    from chanest.scenario import load_scenario, scenario_names

    table = Table("name", "antennas", "unknowns", "measurements", "what it is", box=None, header_style="bold")
    for name in scenario_names():
        problem = ChannelProblem(load_scenario(name))
        antennas = f"{problem.users * problem.arrays[1].ports}×{problem.arrays[0].ports}"
        sizes = str(problem.signal_length), str(problem.measurements)
        table.add_row(name, antennas, *sizes, problem.scenario.description)
    out.print(table)


@app.command()
@one_line_errors()
def show(name: Name) -> None:
    """Show everything a scenario sets, defaults included."""
    from rich.table import Table

    from chanest.problem import ChannelProblem

    problem = ChannelProblem(scenario_of(name))
    scenario = problem.scenario
    table = Table(box=None, show_header=False, title=scenario.name, title_justify="left", title_style="bold")
    for key, value in scenario.model_dump(exclude={"name"}).items():
        settings = value if isinstance(value, dict) else {"": value}
        for inner, setting in settings.items():
            table.add_row(f"{key}.{inner}".rstrip("."), str(setting))
    table.add_row("", "")
    table.add_row("unknowns n", str(problem.signal_length))
    table.add_row("measurements m", str(problem.measurements))
    table.add_row("power before scaling", f"{problem.source.mean_power:.5g}")
    table.add_row("channel hash", scenario.channel_hash())
    out.print(table)


@app.command()
@one_line_errors()
def generate(
    name: Name,
    output: Annotated[Path, typer.Option("--output", "-o", help="The HDF5 file to write.")],
    count: Annotated[int | None, typer.Option("--count", "-n", help="The scenario's size if left out.")] = None,
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "train",
    seed: Annotated[int | None, typer.Option(help="The scenario's seed if left out.")] = None,
) -> None:
    """Generate channels into an HDF5 file. Run it again after an interruption and it goes on where it stopped."""
    from chanest.channels.store import write_channels
    from vlista_core.terminal import progress

    scenario = scenario_of(name)
    data = scenario.data_set(_split(split), count=count, seed=seed)
    with progress() as bar:
        task = bar.add_task(f"{scenario.name} {data.split}", total=data.count)
        file = write_channels(output, data, on_progress=lambda done: bar.update(task, completed=done))
    tell(f"{file.count} channels in {file.path}")


@app.command()
@one_line_errors()
def trace(
    name: Name,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder; that of the cache if left out.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="train, validation or test; all if left out.")] = None,
) -> None:
    """Trace the users of a scenario of kind rt with Sionna RT, once for all arrays; what the cache has is kept."""
    from chanest.channels.rt import RtSource, find_users
    from chanest.channels.tracing import trace as trace_into
    from vlista_core.terminal import progress

    source = scenario_of(name).source()
    if not isinstance(source, RtSource):
        raise ValueError(f"{name} has no channel of kind rt, so there is nothing to trace")
    for each in source.splits if split is None else (_split(split),):
        count = source.count(each)
        with progress() as bar:
            task = bar.add_task(f"{source.site.scene} {each}", total=count)

            def told(done: int, task: "TaskID" = task, bar: "Progress" = bar) -> None:
                bar.update(task, completed=done)

            if output is None:
                path = find_users(source.site, each, count, on_progress=told)
            else:
                path = output / f"{source.site.name()}-{each}.safetensors"
                trace_into(source.site, each, count, path, on_progress=told)
        tell(f"{count} {each} users in {path}")


@app.command("plot-channel")
@one_line_errors()
def plot_channel(
    name: Name,
    output: Annotated[Path, typer.Option("--output", "-o", help="A .png, .pdf or .svg.")] = Path("channel.png"),
    seed: Annotated[int | None, typer.Option(help="The scenario's seed if left out.")] = None,
    index: Annotated[int, typer.Option(help="Which sample of the test split to draw.")] = 0,
) -> None:
    """Draw a channel: angular power spectrum, delay profile, singular values."""
    from chanest.plotting.channel import draw_channel
    from chanest.problem import ChannelProblem

    scenario = scenario_of(name)
    draw_channel(ChannelProblem(scenario), output, seed=scenario.data.seed if seed is None else seed, index=index)
    tell(f"wrote {output}")


@app.command("estimators")
@one_line_errors()
def list_estimators(
    name: Annotated[str | None, typer.Argument(help="Say whether there are weights for this scenario.")] = None,
) -> None:
    """List the estimators, and for which scenarios there are weights."""
    from rich.table import Table

    from chanest.estimators import estimator_class, estimator_names

    table = Table("name", "weights", "what it is", box=None, header_style="bold")
    scenario = None if name is None else scenario_of(name)
    for known in estimator_names():
        table.add_row(known, _weights(known, scenario), estimator_class(known).summary)
    out.print(table)


@app.command()
@one_line_errors()
def train(
    name: Name,
    estimators: Annotated[str, typer.Option("--estimators", "-e", help="Names with commas between.")],
    budget: Annotated[str, typer.Option(help="Time for each, as 90s, 20min or 1h.")] = "5min",
    steps: Annotated[int | None, typer.Option(help="In place of a time: the same weights on any machine.")] = None,
    output: Weights = None,
    seed: Annotated[int, typer.Option(help="Of the training draws.")] = 0,
    start_from: Annotated[
        Path | None, typer.Option(help="Weights of the one estimator to go on from; take another seed then.")
    ] = None,
    device: TrainedOn = "auto",
) -> None:
    """Fit estimators to a scenario and store their weights, where `evaluate` finds them."""
    from chanest.fit import Fit
    from chanest.problem import ChannelProblem
    from chanest.weights.training import train_estimator
    from vlista_core.devices import find_device

    place = str(find_device("device", device))
    problem = ChannelProblem(scenario_of(name))
    seconds = parse_budget(budget)
    chosen = chosen_estimators(problem.scenario, estimators)[0]
    if start_from is not None and len(chosen) != 1:
        raise ValueError(f"start-from is for one estimator at a time, got {', '.join(chosen)}")
    for each in chosen:
        with share_bar(each) as report:
            plan = Fit(seconds=seconds, steps=steps, seed=seed, report=report, device=place)
            path = train_estimator(each, problem, plan, folder=output, start_from=start_from)
        tell(f"wrote {path}")


@app.command()
@one_line_errors()
def calibrate(
    name: Name,
    estimators: Estimators = "all",
    channels: Annotated[int, typer.Option(help="Validation channels at each of nine SNRs.")] = 256,
    output: Weights = None,
    seed: Annotated[int, typer.Option(help="Of the validation draws.")] = 1000,
) -> None:
    """Fit the variances and intervals of estimators on validation draws, where they are found with the weights."""
    from chanest.problem import ChannelProblem
    from chanest.weights.training import calibrate_estimator

    problem = ChannelProblem(scenario_of(name))
    chosen, notes = chosen_estimators(problem.scenario, estimators)
    for note in notes:
        say(f"note: {note}")
    for each in chosen:
        with share_bar(each) as report:
            path = calibrate_estimator(each, problem, channels=channels, seed=seed, folder=output, report=report)
        tell(f"wrote {path}")


for _command in (
    commands.evaluate, commands.bench, commands.calibration, commands.link, commands.novelty, commands.track, commands.report,
):  # fmt: skip
    app.command()(_command)


def parse_budget(text: str) -> float:
    """90s, 20min or 1h in seconds, or a ValueError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|min|h)", text.strip())
    if found is None or not float(found[1]) > 0:
        raise ValueError(f"budget must be a time such as 90s, 20min or 1h, got {text!r}")
    return float(found[1]) * _SECONDS[found[2]]


def _split(text: str) -> "Split":
    match text:
        case "train" | "validation" | "test":
            return text
        case _:
            raise ValueError(f"split must be train, validation or test, got {text!r}")


def _weights(name: str, scenario: "Scenario | None") -> str:
    """Where the weights for a scenario are, or for which scenarios there are some."""
    from chanest.estimators import estimator_class
    from chanest.weights import SHIPPED, find_weights, own_folder, weights_file

    if scenario is not None:
        path = find_weights(name, scenario.name)
        if path is None:
            return "missing" if estimator_class(name).needs_fit else "not needed"
        return "shipped" if path.parent == SHIPPED else "your own"
    ending = weights_file(name, "")
    files = {path.name for folder in (own_folder(), SHIPPED) for path in folder.glob(f"*{ending}")}
    found = ", ".join(sorted(file.removesuffix(ending) for file in files))
    return found or ("none" if estimator_class(name).needs_fit else "not needed")
