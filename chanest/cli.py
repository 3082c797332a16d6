"""The command line. What a command needs is imported when it runs, so that help comes at once."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vlista_core.terminal import (
    FOREVER,
    Hours,
    Output,
    Restart,
    Scheduler,
    Workers,
    names_in,
    one_line_errors,
    out,
    say,
    share_bar,
    tell,
)  # fmt: skip

if TYPE_CHECKING:
    from chanest.scenario import Scenario
    from chanest.studies.accuracy import Sweep
    from chanest.studies.common import ChannelStudy
    from vlista_core.draws import Split
    from vlista_core.study import Options

app = typer.Typer(
    name="chanest",
    help="Wireless MIMO channel estimation: scenarios, channels, estimators, studies.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Name = Annotated[str, typer.Argument(help="A shipped scenario (see `chanest scenarios`) or the path of a .toml file.")]
Estimators = Annotated[str, typer.Option("--estimators", "-e", help="all, or names with commas between.")]
Snr = Annotated[str, typer.Option("--snr", help="start:step:stop in dB, or numbers with commas between.")]
Channels = Annotated[int, typer.Option("--channels", help="How many test channels at each SNR.")]
Seed = Annotated[int, typer.Option("--seed", help="Of the test draws, which no training or calibration has seen.")]
TrainedOn = Annotated[
    str | None, typer.Option("--trained-on", help="Take the weights of this scenario, which has the same arrays.")
]
Weights = Annotated[Path | None, typer.Option("--output", "-o", help="Folder for the files; your own if left out.")]

_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_SWEEPS: tuple[Sweep, ...] = ("pilots", "chains", "bits")
_ERR_VAR = {"estimated": ("estimated",), "zero": ("zero",), "both": ("estimated", "zero")}
_MOST_POINTS = 1000


def _version(asked: bool) -> None:
    if asked:
        import chanest

        tell(f"chanest {chanest.__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Wireless MIMO channel estimation: scenarios, channels, estimators, studies."""


@app.command()
def scenarios() -> None:
    """List the shipped scenarios."""
    from rich.table import Table

    from chanest.problem import ChannelProblem
    from chanest.scenario import load_scenario, scenario_names

    table = Table("name", "antennas", "unknowns", "measurements", "what it is", box=None, header_style="bold")
    for name in scenario_names():
        with one_line_errors():
            problem = ChannelProblem(load_scenario(name))
        antennas = f"{problem.arrays[1].ports}×{problem.arrays[0].ports}"
        sizes = str(problem.signal_length), str(problem.measurements)
        table.add_row(name, antennas, *sizes, problem.scenario.description)
    out.print(table)


@app.command()
def show(name: Name) -> None:
    """Show everything a scenario sets, defaults included."""
    from rich.table import Table

    from chanest.problem import ChannelProblem

    with one_line_errors():
        problem = ChannelProblem(_scenario(name))
    scenario = problem.scenario
    table = Table(box=None, show_header=False, title=scenario.name, title_justify="left", title_style="bold")
    for key, value in scenario.model_dump(exclude={"name"}).items():
        settings = value if isinstance(value, dict) else {"": value}
        for inner, setting in settings.items():
            table.add_row(f"{key}.{inner}".rstrip("."), str(setting))
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
    from chanest.channels.store import write_channels
    from vlista_core.terminal import progress

    with one_line_errors():
        scenario = _scenario(name)
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
    from chanest.plotting.channel import draw_channel
    from chanest.problem import ChannelProblem

    with one_line_errors():
        scenario = _scenario(name)
        draw_channel(ChannelProblem(scenario), output, seed=scenario.data.seed if seed is None else seed, index=index)
    tell(f"wrote {output}")


@app.command("estimators")
def list_estimators(
    name: Annotated[str | None, typer.Argument(help="Say whether there are weights for this scenario.")] = None,
) -> None:
    """List the estimators, and for which scenarios there are weights."""
    from rich.table import Table

    from chanest.estimators import estimator_class, estimator_names

    table = Table("name", "weights", "what it is", box=None, header_style="bold")
    with one_line_errors():
        scenario = None if name is None else _scenario(name)
        for known in estimator_names():
            table.add_row(known, _weights(known, scenario), estimator_class(known).summary)
    out.print(table)


@app.command()
def train(
    name: Name,
    estimators: Annotated[str, typer.Option("--estimators", "-e", help="Names with commas between.")],
    budget: Annotated[str, typer.Option(help="Time for each, as 90s, 20min or 1h.")] = "5min",
    steps: Annotated[
        int | None, typer.Option(help="In place of a time: the same weights on every machine for the same seed.")
    ] = None,
    output: Weights = None,
    seed: Annotated[int, typer.Option(help="Of the training draws.")] = 0,
) -> None:
    """Fit estimators to a scenario and store their weights, where `evaluate` finds them."""
    from chanest.fit import Fit
    from chanest.problem import ChannelProblem
    from chanest.weights.training import train_estimator

    with one_line_errors():
        problem = ChannelProblem(_scenario(name))
        seconds = parse_budget(budget)
        for each in _chosen(problem.scenario, estimators):
            with share_bar(each) as report:
                plan = Fit(seconds=seconds, steps=steps, seed=seed, report=report)
                path = train_estimator(each, problem, plan, folder=output)
            tell(f"wrote {path}")


@app.command()
def calibrate(
    name: Name,
    estimators: Estimators = "all",
    channels: Annotated[int, typer.Option(help="Validation channels at each of nine SNRs.")] = 512,
    output: Weights = None,
    seed: Annotated[int, typer.Option(help="Of the validation draws.")] = 101,
) -> None:
    """Fit the variances and intervals of estimators on validation draws, where they are found with the weights."""
    from chanest.problem import ChannelProblem
    from chanest.weights.training import calibrate_estimator

    with one_line_errors():
        problem = ChannelProblem(_scenario(name))
        for each in _chosen(problem.scenario, estimators):
            with share_bar(each) as report:
                path = calibrate_estimator(each, problem, channels=channels, seed=seed, folder=output, report=report)
            tell(f"wrote {path}")


@app.command()
def evaluate(
    name: Name,
    estimators: Estimators = "all",
    snr: Snr = "0:10:20",
    sweep: Annotated[
        str | None, typer.Option(help="pilots=8,16,24 or chains=… or bits=…, at each SNR; over the SNR if left out.")
    ] = None,
    channels: Channels = 1000,
    bounds: Annotated[bool, typer.Option(help="Evaluate the bounds beside the estimators.")] = True,
    trained_on: TrainedOn = None,
    device: Annotated[str, typer.Option(help="Where estimators run: cpu or cuda.")] = "cpu",
    seed: Seed = 1,
    workers: Workers = 1,
    scheduler: Scheduler = None,
    restart: Restart = False,
    hours: Hours = FOREVER,
    output: Output = None,
) -> None:
    """Compare estimators on the same test channels. Run it again after an interruption and it goes on."""
    with one_line_errors():
        from chanest.studies.accuracy import AccuracyStudy, usable_bounds

        scenario, lender, notes = _scenario(name), _lender(trained_on), list[str]()
        over, values = parse_sweep(sweep)
        study = AccuracyStudy(
            scenario=scenario, estimators=tuple(_chosen(scenario, estimators, lender, notes)),
            bounds=usable_bounds(scenario) if bounds else (), snr_db=parse_snr(snr), channels=channels, seed=seed,
            sweep=over, values=values, trained_on=lender, device=device,
        )  # fmt: skip
        folder = scenario.name if over == "snr" else f"{scenario.name}_{over}"
        _run(study, output, folder, _options(workers, scheduler, restart, hours, notes))


@app.command()
def calibration(
    name: Name,
    estimators: Estimators = "all",
    snr: Snr = "0:10:20",
    channels: Channels = 1000,
    seed: Seed = 1,
    workers: Workers = 1,
    scheduler: Scheduler = None,
    restart: Restart = False,
    hours: Hours = FOREVER,
    output: Output = None,
) -> None:
    """Measure what the intervals of estimators cover on fresh test channels."""
    with one_line_errors():
        from chanest.studies.coverage import CoverageStudy

        scenario, notes = _scenario(name), list[str]()
        chosen = tuple(_chosen(scenario, estimators, None, notes))
        study = CoverageStudy(scenario=scenario, estimators=chosen, snr_db=parse_snr(snr), channels=channels, seed=seed)
        _run(study, output, f"{scenario.name}_calibration", _options(workers, scheduler, restart, hours, notes))


@app.command()
def link(
    name: Name,
    estimators: Annotated[
        str, typer.Option("--estimators", "-e", help="all, or names with commas between; sionna-ls, perfect … too.")
    ] = "all",
    snr: Snr = "9:2:17",
    blocks: Annotated[int, typer.Option(help="How many blocks at each SNR.")] = 1000,
    modulation: Annotated[str, typer.Option(help="qpsk, 16qam, 64qam or 256qam.")] = "16qam",
    rate: Annotated[float, typer.Option(help="Of the 5G LDPC code.")] = 0.5,
    streams: Annotated[int, typer.Option(help="Data streams, each through a beam of the training.")] = 2,
    data_symbols: Annotated[int, typer.Option(help="After the training symbols of a block.")] = 24,
    subcarriers: Annotated[int, typer.Option(help="Of a block.")] = 2,
    err_var: Annotated[
        str, typer.Option(help="What the equaliser is told of errors: estimated, zero, or both one after the other.")
    ] = "estimated",
    validation: Annotated[int, typer.Option(help="Validation blocks from which the size of errors is learnt.")] = 200,
    seed: Seed = 1,
    workers: Workers = 1,
    scheduler: Scheduler = None,
    restart: Restart = False,
    hours: Hours = FOREVER,
    output: Output = None,
) -> None:
    """Send coded blocks through Sionna with each estimator in the receiver."""
    with one_line_errors():
        from chanest.studies.link import LinkStudy, usable_receivers

        scenario = _scenario(name)
        if err_var not in _ERR_VAR:
            raise ValueError(f"err-var must be one of {', '.join(_ERR_VAR)}, got {err_var!r}")
        chosen, refused = usable_receivers(scenario) if estimators == "all" else (names_in(estimators), {})
        study = LinkStudy.model_validate(
            {
                "scenario": scenario, "receivers": tuple(chosen), "snr_db": parse_snr(snr), "blocks": blocks,
                "seed": seed, "modulation": modulation, "rate": rate, "streams": streams, "data_symbols": data_symbols,
                "subcarriers": subcarriers, "validation": validation, "err_var": _ERR_VAR[err_var],
            }
        )  # fmt: skip
        _run(study, output, f"{scenario.name}_link", _options(workers, scheduler, restart, hours, _notes(refused)))


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
    snr: Snr = "10",
    lengths: Annotated[str, typer.Option(help="Frames of a stream, with commas between.")] = "1,5,10,20,50",
    frames: Annotated[int, typer.Option(help="Test frames of each change, cut into streams.")] = 1000,
    home: Annotated[int, typer.Option(help="Test frames with nothing changed, for the false alarms.")] = 2000,
    reference: Annotated[int, typer.Option(help="Validation frames that a detector learns from at each SNR.")] = 4000,
    level: Annotated[float, typer.Option(help="Of false alarms.")] = 0.05,
    seed: Annotated[int, typer.Option(help="Of all draws.")] = 1,
    workers: Workers = 1,
    scheduler: Scheduler = None,
    restart: Restart = False,
    hours: Hours = FOREVER,
    output: Output = None,
) -> None:
    """Say how surely an estimator's receiver would notice other channels, by SNR and number of frames."""
    with one_line_errors():
        from chanest.novelty.changes import change_names
        from chanest.studies.novelty import NoveltyStudy

        scenario = _scenario(name)
        known = {"all": change_names(scenario), "none": []}
        study = NoveltyStudy(
            scenario=scenario, scores=tuple(names_in(score)), estimator=estimator,
            changes=tuple(known.get(changes, names_in(changes))), snr_db=parse_snr(snr), lengths=parse_lengths(lengths),
            frames=frames, home_frames=home, reference_frames=reference, level=level, seed=seed,
        )  # fmt: skip
        _run(study, output, f"{scenario.name}_novelty", _options(workers, scheduler, restart, hours))


@app.command()
def track(
    name: Name,
    estimators: Annotated[
        str, typer.Option("--estimators", "-e", help="With a family of covariances, commas between.")
    ] = "gated-lmmse,gmm",
    snr: Snr = "0:10:20",
    tracks: Annotated[int, typer.Option(help="How many test tracks.")] = 100,
    memory: Annotated[float, typer.Option(help="What a snapshot still counts after one more, 0 to 1.")] = 1.0,
    trained_on: TrainedOn = None,
    seed: Seed = 1,
    workers: Workers = 1,
    scheduler: Scheduler = None,
    restart: Restart = False,
    hours: Hours = FOREVER,
    output: Output = None,
) -> None:
    """Let estimators carry what they have seen of the angles from snapshot to snapshot of a moving scenario."""
    with one_line_errors():
        from chanest.studies.tracking import TrackingStudy

        scenario = _scenario(name)
        study = TrackingStudy(
            scenario=scenario, estimators=tuple(names_in(estimators)), snr_db=parse_snr(snr), tracks=tracks,
            memory=memory, trained_on=_lender(trained_on), seed=seed,
        )  # fmt: skip
        _run(study, output, f"{scenario.name}_track", _options(workers, scheduler, restart, hours))


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="The folder of a study; those in its subfolders come too.")],
) -> None:
    """Draw the figures and write the tables and the page of a study again."""
    with one_line_errors():
        from chanest.studies import STUDIES
        from vlista_core.study.commands import show

        show(run, STUDIES)


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
    for sweep in _SWEEPS:
        if key == sweep and re.fullmatch(r"\d+(,\d+)*", values):
            return sweep, tuple(int(value) for value in values.split(","))
    raise ValueError(f"sweep must be one of {', '.join(f'{each}=8,16' for each in _SWEEPS)}, got {text!r}")


def parse_lengths(text: str) -> tuple[int, ...]:
    """Whole numbers with commas between, ascending, or a ValueError."""
    if not re.fullmatch(r"\d+(,\d+)*", text) or 0 in (found := [int(part) for part in text.split(",")]):
        raise ValueError(f"lengths must be numbers of frames with commas between, such as 1,5,20, got {text!r}")
    return tuple(sorted(set(found)))


def _split(text: str) -> Split:
    match text:
        case "train" | "validation" | "test":
            return text
        case _:
            raise ValueError(f"split must be train, validation or test, got {text!r}")


def _scenario(name: str) -> Scenario:
    from chanest.scenario import load_scenario

    return load_scenario(name)


def _lender(trained_on: str | None) -> str | None:
    return None if trained_on is None else _scenario(trained_on).name


def _chosen(scenario: Scenario, names: str, trained_on: str | None = None, notes: list[str] | None = None) -> list[str]:
    """The estimators that were named, or all that can run; a line on each that cannot is added to `notes` or said."""
    from chanest.estimators import estimator_class
    from chanest.problem import ChannelProblem
    from chanest.weights import usable_estimators

    if names != "all":
        for each in names_in(names):
            estimator_class(each)
        return names_in(names)
    usable, refused = usable_estimators(ChannelProblem(scenario), trained_on)
    if notes is not None:
        notes += _notes(refused)
    else:
        for note in _notes(refused):
            say(f"note: {note}")
    return usable


def _notes(refused: dict[str, str]) -> list[str]:
    return [f"{name} is left out: {why}" for name, why in refused.items()]


def _options(
    workers: int, scheduler: str | None, restart: bool, hours: float, notes: list[str] | None = None
) -> Options:
    from vlista_core.study import Options

    return Options(workers, scheduler, restart, hours, tuple(notes or ()))


def _run(study: ChannelStudy, output: Path | None, folder: str, options: Options) -> None:
    """Run a study into `output`, or out/`folder`."""
    from chanest.studies import STUDIES
    from vlista_core.study.commands import run_command

    run_command(study, output or Path("out") / folder, STUDIES, options)


def _weights(name: str, scenario: Scenario | None) -> str:
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
