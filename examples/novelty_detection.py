"""Does the channel still come from what the estimator was trained on? A detector with a level, tried on ten changes.

python examples/novelty_detection.py [--scenario cdl_c_upa64x4] [--score antennas] [--frames 20] [--snr 10] [--level 0.05]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

import chanest
from chanest.novelty import CHANGES, SCORES, NoveltyDetector, Verdict, change_names, changed_frames
from chanest.problem import ChannelBatch
from vlista_core.files import check_folder
from vlista_core.plotting import new_figure
from vlista_core.study import Table, print_table
from vlista_core.terminal import share_bar

REFERENCE = 3000  # home frames that the detector learns from, about ten seconds


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--scenario", default="cdl_c_upa64x4", help="home: a shipped name or the path of a .toml file")
    parser.add_argument("--score", default="antennas", help=f"what to look at: {', '.join(SCORES)}")
    parser.add_argument("--estimator", help="any that has weights for home, in place of the score's own")
    parser.add_argument("--frames", type=int, default=20, help="frames of a stream")
    parser.add_argument("--streams", type=int, default=10, help="streams of each kind")
    parser.add_argument("--reference", type=int, default=REFERENCE, help="home frames to learn from")
    parser.add_argument("--snr", type=float, default=10.0, metavar="DB", help="SNR in dB")
    parser.add_argument("--level", type=float, default=0.05, help="share of false alarms that is allowed")
    parser.add_argument("--output", type=Path, default=Path("out"), help="where the figure goes")
    chosen = parser.parse_args()
    for name in ("frames", "streams"):
        if getattr(chosen, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(chosen, name)}")
    return chosen


def verdicts(detector: NoveltyDetector, batch: ChannelBatch, frames: int) -> list[Verdict]:
    """One verdict for each stream of `frames` consecutive frames. The channel itself is not looked at."""
    found = []
    for start in range(0, len(batch), frames):
        stream = batch.select(torch.arange(start, start + frames))
        found.append(detector.test(stream.y, stream.phi, stream.noise_var))
    return found


def draw(path: Path, found: dict[str, list[Verdict]], level: float) -> None:
    """The p-values of all streams, one line per kind."""
    with new_figure(path, (7.6, 4.8)) as figure:
        axes = figure.subplots()
        for place, streams in enumerate(found.values()):
            axes.plot(
                [verdict.p_value for verdict in streams], [place] * len(streams), "|", ms=14, mew=1.6, color="#0072b2"
            )
        axes.axvline(level, color="#c8500a", lw=1.2)
        axes.annotate(f" level {level:g}", (level, -0.6), color="#c8500a", va="center")
        axes.set(xscale="log", xlabel="p-value of a stream", ylim=(len(found) - 0.5, -0.9))
        axes.set_yticks(range(len(found)), list(found))
        axes.grid(alpha=0.25, axis="x")


def main() -> None:
    chosen = arguments()
    check_folder(chosen.output)
    problem = chanest.ChannelProblem(chanest.load_scenario(chosen.scenario))
    estimator = chanest.get_estimator(chosen.estimator, problem) if chosen.estimator else None

    # What is usual? Validation frames of the home scenario tell, at the SNR that the receiver works at.
    with share_bar("home frames") as report:
        detector = NoveltyDetector.fit(
            problem,
            chosen.score,
            estimator=estimator,
            snr_db=(chosen.snr,),
            frames=chosen.reference,
            level=chosen.level,
            report=report,
        )
    print(f"{chosen.score} of {detector.estimator.name}: {SCORES[chosen.score].summary}")

    # Streams with nothing changed, then streams of every change. The estimator and the detector are not told.
    count = chosen.streams * chosen.frames
    found = {"nothing": verdicts(detector, problem.sample(count, seed=5, snr_db=chosen.snr), chosen.frames)}
    for name in change_names(problem.scenario):
        batch = changed_frames(problem, name, count, seed=5, snr_db=chosen.snr, hold=chosen.frames)
        found[CHANGES[name].words] = verdicts(detector, batch, chosen.frames)

    lines = []
    for words, streams in found.items():
        p_values = sorted(verdict.p_value for verdict in streams)
        alarms = sum(verdict.novel for verdict in streams)
        lines.append((words, f"{alarms} of {len(streams)}", f"{p_values[len(p_values) // 2]:.2g}"))
    title = f"Streams of {chosen.frames} frames at {chosen.snr:g} dB SNR, level {chosen.level:g}"
    print_table(Table.of(title, ("what has changed", "alarms", "median p-value"), lines))
    draw(chosen.output / "novelty_detection.png", found, chosen.level)
    print(f"Figure: {chosen.output / 'novelty_detection.png'}")


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
