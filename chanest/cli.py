"""The command line. What a command needs is imported when it runs, so that help comes at once."""

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from chanest.export.command import export
from chanest.studies import commands
from chanest.studies.commands import Estimators, Name, chosen_estimators, scenario_of
from vlista_core.terminal import TrainedOn, Version, next_step, one_line_errors, out, say, share_bar, tell

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

    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading, justify in (("name", "left"), ("antennas", "left"), ("n", "right"), ("m", "right")):
        table.add_column(heading, justify="right" if justify == "right" else "left", no_wrap=True)
    table.add_column("what it is")
    names = scenario_names()
    for name in names:
        problem = ChannelProblem(load_scenario(name))
        antennas = f"{problem.users * problem.arrays[1].ports}×{problem.arrays[0].ports}"
        sizes = str(problem.signal_length), str(problem.measurements)
        table.add_row(name, antennas, *sizes, problem.scenario.description)
    out.print(table)
    tell(f"{len(names)} scenarios, with n unknowns and m measurements")
    next_step("chanest show NAME, or chanest evaluate NAME")


@app.command()
@one_line_errors()
def show(name: Name) -> None:
    """Show everything a scenario sets, defaults included, and what each key means."""
    from rich.table import Table

    from chanest.problem import ChannelProblem
    from chanest.scenario import settings_of

    problem = ChannelProblem(scenario_of(name))
    scenario = problem.scenario
    tell(f"{scenario.name}: {scenario.description}".removesuffix(": "))
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("key", "value"):
        table.add_column(heading, overflow="fold", max_width=40)
    table.add_column("what it means", style="dim")
    for key, value, meaning in settings_of(scenario):
        table.add_row(Text(key), Text(value), Text(meaning))
    out.print(table)
    sizes = f"{problem.measurements} measurements of {problem.signal_length} unknowns"
    tell(f"{sizes}; power before scaling {problem.source.mean_power:.5g}; channel hash {scenario.channel_hash()}")
    given = shlex.quote(name)
    next_step(f"chanest estimators {given}, then chanest evaluate {given}")


@app.command()
@one_line_errors()
def generate(
    name: Name,
    output: Annotated[Path, typer.Option("--output", "-o", help="The HDF5 file to write.")],
    count: Annotated[int | None, typer.Option("--channels", "-n", help="The scenario's size if left out.")] = None,
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
    tell(f"{file.count} channels in {file.path}, {file.path.stat().st_size / 1e6:.1f} MB")
    read = f"ChannelProblem({name!r}, stored=(ChannelFile.open({str(output)!r}),))"
    next_step(f"in Python, with chanest.channels.store.ChannelFile: {read}")


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
    next_step(f"chanest evaluate {shlex.quote(name)}")


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
    tell(f"wrote {output}: sample {index} of the test split")
    next_step(f"chanest show {shlex.quote(name)}, or another sample with --index {index + 1}")


@app.command("estimators")
@one_line_errors()
def list_estimators(
    name: Annotated[str | None, typer.Argument(help="Say whether there are weights for this scenario.")] = None,
) -> None:
    """List the estimators and for which scenarios there are weights; of one scenario, which run on it and why others do not."""
    from rich.table import Table

    from chanest.estimators import estimator_class, estimator_names
    from chanest.problem import ChannelProblem
    from chanest.weights import learnable, usable_estimators

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("weights")
    table.add_column("what it is")
    if name is None:
        for known in estimator_names():
            table.add_row(known, _weights(known), estimator_class(known).summary)
        out.print(table)
        tell(f"{len(estimator_names())} estimators")
        next_step(
            "chanest estimators SCENARIO says which run on a scenario; chanest train SCENARIO -e NAME makes weights"
        )
        return
    scenario = scenario_of(name)
    problem = ChannelProblem(scenario)
    usable, refused = usable_estimators(problem)
    lacking = learnable(problem, refused)
    for known in estimator_names():
        if known in usable or known in lacking:
            weights = _weights_for(known, scenario) if known in usable else "missing"
            table.add_row(known, weights, estimator_class(known).summary)
        else:
            table.add_row(known, "–", Text(refused[known].removeprefix(f"{known} "), style="dim"))
    out.print(table)
    tell(f"{len(usable)} of {len(estimator_names())} estimators run on {scenario.name}")
    if lacking:
        tell(f"missing weights are made by: chanest train {shlex.quote(name)} -e {','.join(lacking)}")
    next_step(f"chanest evaluate {shlex.quote(name)}")


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
    from_pilots: Annotated[
        bool, typer.Option("--from-pilots", help="See y, the beams and the noise of training draws, and no channel.")
    ] = False,
    device: TrainedOn = "auto",
) -> None:
    """Fit estimators to a scenario and store their weights, where `evaluate` finds them."""
    from chanest.estimators import estimator_class
    from chanest.fit import Fit
    from chanest.problem import ChannelProblem
    from chanest.recordings import ScenarioRecordings
    from chanest.weights.training import check_learns_from_pilots, train_estimator
    from vlista_core.devices import find_device

    place = str(find_device("device", device))
    problem = ChannelProblem(scenario_of(name))
    seconds = parse_budget(budget)
    chosen = chosen_estimators(problem.scenario, estimators)[0]
    if start_from is not None and len(chosen) != 1:
        raise ValueError(f"start-from is for one estimator at a time, got {', '.join(chosen)}")
    recordings = ScenarioRecordings(problem) if from_pilots else None
    for each in chosen:  # before the first is trained
        estimator_class(each).check(problem)
        if from_pilots:
            check_learns_from_pilots(each, problem)
        else:
            estimator_class(each).check_training(problem)
    for each in chosen:
        with share_bar(each) as report:
            plan = Fit(seconds=seconds, steps=steps, seed=seed, report=report, device=place)
            path = train_estimator(each, problem, plan, folder=output, start_from=start_from, recordings=recordings)
        tell(f"wrote {path}{_validated(path)}")
    if output is None:
        next_step(f"chanest evaluate {shlex.quote(name)} -e {','.join(chosen)}")
    else:
        next_step(
            f"CHANEST_WEIGHTS={shlex.quote(str(output))} chanest evaluate {shlex.quote(name)} -e {','.join(chosen)}"
        )


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
    next_step(f"chanest calibration {shlex.quote(name)} -e {','.join(chosen)} says what the intervals cover")


for _command in (
    commands.evaluate, commands.bench, commands.calibration, commands.link, commands.novelty, commands.track, commands.report,
):  # fmt: skip
    app.command()(_command)
app.command()(export)


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


def _validated(path: Path) -> str:
    """The NMSE of a fit on validation draws, as its file says; empty where it says none."""
    from chanest.weights import provenance

    match provenance(path):
        case {"validation_snr_db": [*snrs], "validation_nmse_db": [*levels]}:
            pairs = zip(snrs, levels, strict=False)
            said = (f"{level:.1f} dB at {snr:g} dB" for snr, level in pairs if isinstance(level, float))
            return f": NMSE on validation draws {', '.join(said)} SNR"
        case {"validation_nmse_db": float(level)}:
            return f": NMSE on validation draws {level:.1f} dB"
    return ""


def _weights_for(name: str, scenario: "Scenario") -> str:
    """Where the weights for a scenario are, of an estimator that can run on it; what needs none may have been tuned."""
    from chanest.estimators import estimator_class
    from chanest.problem import as_problem
    from chanest.weights import ANY_SCENARIO, SHIPPED, weights_for

    path = weights_for(name, as_problem(scenario))
    if path is None:
        return "not needed"
    origin = path.name.split(".")[0]
    if origin not in (scenario.name, ANY_SCENARIO):
        return f"of {origin}"
    if not estimator_class(name).needs_fit:
        return "tuned"
    return "shipped" if path.parent == SHIPPED else "your own"


def _weights(name: str) -> str:
    """For which scenarios there are weights. What needs none may be tuned to some, which is not told here."""
    from chanest.estimators import estimator_class
    from chanest.weights import SHIPPED, own_folder, weights_file

    if not estimator_class(name).needs_fit:
        return "not needed"
    ending = weights_file(name, "")
    files = {path.name for folder in (own_folder(), SHIPPED) for path in folder.glob(f"*{ending}")}
    return ", ".join(sorted(file.removesuffix(ending) for file in files)) or "none"
