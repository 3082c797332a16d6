"""The commands that run studies, and what all commands read from their arguments. What one needs is imported when it runs."""

import math
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vlista_core.terminal import FOREVER, Hours, Output, Restart, Scheduler, Workers, names_in, one_line_errors

if TYPE_CHECKING:
    from chanest.link import ErrVar, Precoding
    from chanest.scenario import Scenario
    from chanest.studies.accuracy import Sweep
    from chanest.studies.common import DrawsStudy

Name = Annotated[str, typer.Argument(help="A shipped scenario (see `chanest scenarios`) or the path of a .toml file.")]
Estimators = Annotated[str, typer.Option("--estimators", "-e", help="all, or names with commas between.")]
Tracked = Annotated[str, typer.Option("--estimators", "-e", help="Those with a family of covariances.")]
Snr = Annotated[str, typer.Option("--snr", help="start:step:stop in dB, or numbers with commas between.")]
Channels = Annotated[int, typer.Option("--channels", help="How many test channels at each SNR.")]
Seed = Annotated[int, typer.Option("--seed", help="Of the test draws, which no training or calibration has seen.")]
TrainedOn = Annotated[str | None, typer.Option("--trained-on", help="Take the weights of this scenario.")]
Swept = Annotated[str | None, typer.Option("--sweep", help="pilots=8,16,24 or chains=… or bits=…, at each SNR.")]

_SWEEPS: "tuple[Sweep, ...]" = ("pilots", "chains", "bits")
_ERR_VAR: "dict[str, tuple[ErrVar, ...]]" = {
    "estimated": ("estimated",),
    "zero": ("zero",),
    "both": ("estimated", "zero"),
}
_MOST_POINTS = 1000


@one_line_errors()
def evaluate(
    name: Name,
    estimators: Estimators = "all",
    snr: Snr = "0:10:20",
    sweep: Swept = None,
    channels: Channels = 1000,
    bounds: Annotated[bool, typer.Option(help="Evaluate the bounds beside the estimators.")] = True,
    trained_on: TrainedOn = None,
    device: Annotated[str, typer.Option("--device", help="Where estimators run: auto, cpu, cuda or cuda:N.")] = "cpu",
    seed: Seed = 1,
    workers: Workers = 1,
    scheduler: Scheduler = None,
    restart: Restart = False,
    hours: Hours = FOREVER,
    output: Output = None,
) -> None:
    """Compare estimators on the same test channels. Run it again after an interruption and it goes on."""
    from chanest.studies.accuracy import AccuracyStudy, usable_bounds
    from vlista_core.devices import find_device

    place = str(find_device("device", device))
    scenario, lender = scenario_of(name), _lender(trained_on)
    chosen, notes = chosen_estimators(scenario, estimators, lender)
    over, values = parse_sweep(sweep)
    study = AccuracyStudy(
        scenario=scenario, estimators=chosen, bounds=usable_bounds(scenario) if bounds else (),
        snr_db=parse_snr(snr), channels=channels, seed=seed, sweep=over, values=values, trained_on=lender, device=place,
    )  # fmt: skip
    _run(study, output, workers, scheduler, restart, hours, notes)


@one_line_errors()
def bench(
    estimators: Estimators = "ls,lmmse,omp,sbl,nomp,gmm,gated-lmmse,universal",
    scenarios: Annotated[
        str, typer.Option(help="all (some of every source), or names or .toml files with commas.")
    ] = "all",
    snr: Snr = "0:10:20",
    sweep: Swept = None,
    channels: Channels = 1000,
    trained_on: Annotated[
        str | None, typer.Option("--trained-on", help="Lends its weights to those of the same arrays that have none.")
    ] = None,
    seed: Seed = 1,
    workers: Workers = 1,
    scheduler: Scheduler = None,
    restart: Restart = False,
    hours: Hours = FOREVER,
    output: Output = None,
) -> None:
    """Compare estimators on channels of every source: NMSE, the gap to the best bound, the lead or loss of ours."""
    from chanest.estimators import estimator_names
    from chanest.studies.bench import SCENARIOS, BenchStudy

    over, values = parse_sweep(sweep)
    study = BenchStudy(
        scenarios=tuple(scenario_of(name) for name in (SCENARIOS if scenarios == "all" else names_in(scenarios))),
        estimators=tuple(estimator_names() if estimators == "all" else names_in(estimators)),
        snr_db=parse_snr(snr), channels=channels, seed=seed, sweep=over, values=values,
        trained_on=None if trained_on is None else scenario_of(trained_on),
    )  # fmt: skip
    study.check()
    _run(study, output, workers, scheduler, restart, hours, study.left_out())


@one_line_errors()
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
    from chanest.studies.coverage import CoverageStudy

    scenario = scenario_of(name)
    chosen, notes = chosen_estimators(scenario, estimators)
    study = CoverageStudy(scenario=scenario, estimators=chosen, snr_db=parse_snr(snr), channels=channels, seed=seed)
    if estimators == "all" and (bare := study.without_variance()):
        advice = f"made by: chanest calibrate {shlex.quote(name)} -e {','.join(bare)}"
        notes = [*notes, f"left out: {', '.join(bare)} for want of variances ({advice})"]
        study = study.model_copy(update={"estimators": tuple(each for each in chosen if each not in bare)})
    _run(study, output, workers, scheduler, restart, hours, notes)


@one_line_errors()
def link(
    name: Name,
    estimators: Estimators = "all",
    snr: Snr = "9:2:17",
    blocks: Annotated[int, typer.Option(help="How many blocks at each SNR.")] = 1000,
    modulation: Annotated[str, typer.Option(help="qpsk, 16qam, 64qam or 256qam.")] = "16qam",
    rate: Annotated[float, typer.Option(help="Of the 5G LDPC code.")] = 0.5,
    streams: Annotated[int, typer.Option(help="Data streams, each through a beam of the training.")] = 2,
    data_symbols: Annotated[int, typer.Option(help="After the training symbols of a block.")] = 24,
    subcarriers: Annotated[int, typer.Option(help="Of a block.")] = 2,
    precoding: Annotated[
        str, typer.Option(help="Beams of the data: trained, or hybrid ones chosen from the estimate.")
    ] = "trained",
    err_var: Annotated[str, typer.Option(help="Told of errors: estimated, zero, or both in turn.")] = "estimated",
    validation: Annotated[int, typer.Option(help="Validation blocks from which the size of errors is learnt.")] = 200,
    seed: Seed = 1,
    workers: Workers = 1,
    scheduler: Scheduler = None,
    restart: Restart = False,
    hours: Hours = FOREVER,
    output: Output = None,
) -> None:
    """Send coded blocks through Sionna with each estimator (or sionna-ls, perfect, …) in the receiver."""
    from chanest.studies.link import LinkStudy, usable_receivers
    from chanest.weights import left_out

    scenario = scenario_of(name)
    if err_var not in _ERR_VAR:
        raise ValueError(f"err-var must be one of {', '.join(_ERR_VAR)}, got {err_var!r}")
    beams = _precoding(precoding)
    chosen, refused = usable_receivers(scenario, beams) if estimators == "all" else (names_in(estimators), {})
    study = LinkStudy(
        scenario=scenario, receivers=tuple(chosen), snr_db=parse_snr(snr), blocks=blocks, seed=seed,
        modulation=modulation, rate=rate, streams=streams, data_symbols=data_symbols, subcarriers=subcarriers,
        precoding=beams, validation=validation, err_var=_ERR_VAR[err_var],
    )  # fmt: skip
    _run(study, output, workers, scheduler, restart, hours, left_out(scenario, refused))


@one_line_errors()
def novelty(
    name: Name,
    score: Annotated[str, typer.Option(help="antennas, residual, likelihood, dictionary, or several.")] = "antennas",
    estimators: Annotated[
        str | None, typer.Option("--estimators", "-e", help="One name, in place of each score's own.")
    ] = None,
    changes: Annotated[str, typer.Option(help="all, none (false alarms only), or names such as cdl-a,tilt.")] = "all",
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
    from chanest.novelty.changes import change_names
    from chanest.studies.novelty import NoveltyStudy

    scenario = scenario_of(name)
    named = names_in(estimators or "")
    if len(named) > 1:
        raise ValueError(f"estimators must be one name in a novelty study, got {', '.join(named)}")
    known = {"all": change_names(scenario), "none": []}
    study = NoveltyStudy(
        scenario=scenario, scores=tuple(names_in(score)), estimator=named[0] if named else None,
        changes=tuple(known.get(changes, names_in(changes))), snr_db=parse_snr(snr), lengths=parse_lengths(lengths),
        frames=frames, home_frames=home, reference_frames=reference, level=level, seed=seed,
    )  # fmt: skip
    _run(study, output, workers, scheduler, restart, hours)


@one_line_errors()
def track(
    name: Name,
    estimators: Tracked = "gated-lmmse,gmm",
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
    from chanest.studies.tracking import TrackingStudy

    study = TrackingStudy(
        scenario=scenario_of(name), estimators=tuple(names_in(estimators)), snr_db=parse_snr(snr), tracks=tracks,
        memory=memory, trained_on=_lender(trained_on), seed=seed,
    )  # fmt: skip
    _run(study, output, workers, scheduler, restart, hours)


@one_line_errors()
def report(
    run: Annotated[Path, typer.Argument(help="The folder of a study; those in its subfolders come too.")],
) -> None:
    """Draw the figures and write the tables and the page of a study again."""
    from chanest.studies import STUDIES
    from vlista_core.study.commands import show

    show(run, STUDIES)


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


def parse_sweep(text: str | None) -> "tuple[Sweep, tuple[int, ...]]":
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


def scenario_of(name: str) -> "Scenario":
    """A shipped scenario by name or one of a file, or a ValueError."""
    from chanest.scenario import load_scenario

    return load_scenario(name)


def _precoding(text: str) -> "Precoding":
    match text:
        case "trained" | "hybrid":
            return text
        case _:
            raise ValueError(f"precoding must be trained or hybrid, got {text!r}")


def _lender(trained_on: str | None) -> str | None:
    return None if trained_on is None else scenario_of(trained_on).name


def chosen_estimators(
    scenario: "Scenario", names: str, trained_on: str | None = None
) -> tuple[tuple[str, ...], list[str]]:
    """The estimators that were named, or all that can run; and a line on those that cannot."""
    from chanest.estimators import estimator_class
    from chanest.problem import ChannelProblem
    from chanest.weights import left_out, usable_estimators

    if names != "all":
        for each in names_in(names):
            estimator_class(each)
        return tuple(names_in(names)), []
    problem = ChannelProblem(scenario)
    usable, refused = usable_estimators(problem, trained_on)
    return tuple(usable), left_out(problem, refused, trained_on)


def _run(
    study: "DrawsStudy", output: Path | None, workers: int, scheduler: str | None, restart: bool, hours: float,
    notes: Sequence[str] = (),
) -> None:  # fmt: skip
    from chanest.studies import STUDIES
    from vlista_core.study import Options
    from vlista_core.study.commands import run_command

    study.check()
    run_command(
        study, output or Path("out") / study.folder(), STUDIES, Options(workers, scheduler, restart, hours, notes)
    )
