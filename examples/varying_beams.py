"""Why beams that vary break LISTA and not A-DLISTA: both trained on one set of beams and on fresh ones, and compared.

LISTA learns matrices in the place of Φ: with new beams they are wrong, and for beams that always change there are no right
ones (its form for that case sees Φᴴy only). A-DLISTA takes Φ as an argument of every layer.

python examples/varying_beams.py [--seconds 25] [--output out]
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track
from rich.table import Table

import chanest
from chanest.dictionaries import LearnedKronecker
from vlista_core.draws import Split
from vlista_core.files import check_folder, replacing
from vlista_core.metrics import nmse_db
from vlista_core.models import ADLISTA, LISTA, UnfoldedModel
from vlista_core.problems import Batch, Problem
from vlista_core.training import Trainer

SNR_DB, LAYERS, TEST_CHANNELS, SEED = 10.0, 6, 1000, 1
CASES = (
    ("one set of beams,\nthe same in the field", "one", "one"),
    ("one set of beams,\nothers in the field", "one", "fresh"),
    ("fresh beams for\nevery channel", "fresh", "fresh"),
)
LOOKS = {"LISTA": ("#999999", "//"), "A-DLISTA": ("#0072b2", "")}


class OneSetOfBeams(Problem):
    """A problem whose samples all have the beams of its first one."""

    def __init__(self, problem: chanest.ChannelProblem) -> None:
        self.problem = problem
        self.first = problem.sample(1, seed=SEED, split="train").phi

    @property
    def signal_length(self) -> int:
        return self.problem.signal_length

    @property
    def measurements(self) -> int:
        return self.problem.measurements

    @property
    def dtype(self) -> torch.dtype:
        return self.problem.dtype

    def sample(
        self, count: int, *, seed: int, split: Split = "test", start: int = 0, snr_db: float | None = None
    ) -> Batch:
        batch = self.problem.sample(count, seed=seed, split=split, start=start, snr_db=snr_db)
        noise = batch.y - batch.phi.apply(batch.signal)
        phi = self.first.select(torch.zeros(count, dtype=torch.long))
        return replace(batch, y=phi.apply(batch.signal) + noise, phi=phi)


def drawing(beams: str, problem: chanest.ChannelProblem) -> Problem:
    return OneSetOfBeams(problem) if beams == "one" else problem


def network(name: str, beams: str, problem: chanest.ChannelProblem) -> LISTA | ADLISTA:
    if name == "LISTA":
        n, m = problem.signal_length, problem.measurements if beams == "one" else None
        return LISTA(n, n, layers=LAYERS, measurements=m, dtype=problem.dtype, loss="relative")
    return ADLISTA(LearnedKronecker(problem.dictionary()), layers=LAYERS, loss="relative")


def trained(name: str, beams: str, problem: chanest.ChannelProblem, seconds: float) -> UnfoldedModel:
    """Started from data and trained on the training split for `seconds`, at SNRs of the whole range of the scenario."""
    model, draws = network(name, beams, problem), drawing(beams, problem)
    model.start_from(draws.sample(64, seed=SEED, split="train", start=10**6))
    rate = 1e-3 if name == "LISTA" else 3e-3
    trainer = Trainer(
        seconds=seconds, batch_size=64, learning_rate=rate, schedule="cosine", clip_norm=1.0, validate_every=50
    )
    trainer.fit(model, draws, seed=SEED)
    return model


def draw(scores: dict[str, list[float]], path: Path) -> None:
    """One group of bars per case; shorter is worse."""
    figure = Figure(figsize=(7.6, 4.6), layout="constrained")
    axes = figure.subplots()
    for shift, (name, levels) in zip((-0.2, 0.2), scores.items(), strict=True):
        colour, hatch = LOOKS[name]
        places = [case + shift for case in range(len(CASES))]
        axes.bar(places, levels, 0.38, color=colour, hatch=hatch, edgecolor="white", label=name)
        for place, level in zip(places, levels, strict=True):
            above = level <= 0  # the axis is upside down
            text = f"{level:.1f}".replace("-", "−")
            axes.annotate(
                text, (place, level), (0, 4 if above else -4), textcoords="offset points", ha="center",
                va="bottom" if above else "top", weight="bold",
            )  # fmt: skip
    axes.axhline(0, color="black", lw=0.8)
    axes.margins(y=0.15)
    axes.invert_yaxis()
    axes.set_xticks(range(len(CASES)), [f"trained on {case[0]}" for case in CASES])
    axes.set_ylabel(f"NMSE at {SNR_DB:g} dB SNR (dB), up is better")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    axes.set_title("New beams break LISTA, whose weights hold the old ones, and not A-DLISTA")
    with replacing(path) as partial:  # a whole file or none, even when the program is killed
        figure.savefig(partial, dpi=160)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=25.0, help="training time of each of the four networks")
    parser.add_argument("--output", type=Path, default=Path("out"), help="where the figure goes")
    chosen = parser.parse_args()
    if not chosen.seconds > 0:
        parser.error(f"--seconds must be positive, got {chosen.seconds}")
    check_folder(chosen.output)

    problem = chanest.ChannelProblem(chanest.load_scenario("cdl_c_upa64x4"))
    runs = [(name, beams) for name in LOOKS for beams in ("one", "fresh")]
    models = {run: trained(*run, problem, chosen.seconds) for run in track(runs, "training")}

    tests = {
        beams: drawing(beams, problem).sample(TEST_CHANNELS, seed=SEED, snr_db=SNR_DB) for beams in ("one", "fresh")
    }
    scores: dict[str, list[float]] = {name: [] for name in LOOKS}
    table = Table(title=f"NMSE (dB) of {TEST_CHANNELS:,} channels at {SNR_DB:g} dB SNR")
    for heading in ("trained on", *LOOKS):
        table.add_column(heading, justify="left" if heading == "trained on" else "right")
    for words, learned, seen in CASES:
        for name in LOOKS:
            batch = tests[seen]
            estimate = models[name, learned].estimate(batch.y, batch.phi, batch.noise_var)
            scores[name].append(nmse_db(estimate.signal, batch.signal))
        table.add_row(words.replace("\n", " "), *(f"{scores[name][-1]:.1f}" for name in LOOKS))
    Console().print(table)
    path = chosen.output / "varying_beams.png"
    draw(scores, path)
    print(f"Figure: {path}")


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
