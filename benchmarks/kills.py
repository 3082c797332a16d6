"""Kill studies at random moments and let them go on: every row must be that of a run nobody disturbed.

python benchmarks/kill_studies.py [--times 20] [--kinds accuracy link …] [--seed 0]
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from chanest.studies import STUDIES
from vlista_core.study import read_study

PILOTS = "[bs]\nrows = 4\ncolumns = 2\nyaw_spread = 60.0\n[ue]\nrows = 2\ncolumns = 1\n[frontend]\npilots = 6\n"
MOVING = PILOTS + "[channel]\nspeed = [3.0, 3.0]\nsnapshots = 4\nsnapshot_interval = 0.001\n"
FEW = ["-e", "vamp,omp", "--snr", "0,10", "--channels", "600"]
COMMANDS = {
    "complexity": ["vlista_core.experiments", "run", "complexity", "--measurements", "10"],
    "accuracy": ["chanest", "evaluate", "TINY", *FEW, "--no-bounds"],
    "coverage": ["chanest", "calibration", "TINY", "-e", "vamp,bcs", *FEW[2:]],
    "link": ["chanest", "link", "TINY", "-e", "ls,omp", "--snr", "0,9", "--blocks", "60", "--data-symbols", "6"],
    "novelty": ["chanest", "novelty", "TINY", "-e", "omp", "--changes", "cdl-a,tilt,spacing", "--lengths", "1,5",
                "--frames", "400", "--home", "400", "--reference", "400"],
    "tracking": ["chanest", "track", "MOVING", "-e", "gmm", "--snr", "0,5,10", "--tracks", "200"],
}  # fmt: skip
"""One paper experiment and the five studies of chanest, small enough for seconds."""
REGISTRY = {**STUDIES, "complexity": "vlista_core.experiments.complexity:Complexity"}
TIMED = ("ms_batch_1", "ms_batch", "latency_ms")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--times", type=int, default=20, help="how often each kind is killed")
    parser.add_argument("--kinds", nargs="+", default=list(COMMANDS), choices=list(COMMANDS))
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    chosen = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tiny.toml").write_text(PILOTS)
        (folder / "moving.toml").write_text(MOVING)
        if "tracking" in chosen.kinds:
            wait(start(["chanest", "train", str(folder / "moving.toml"), "-e", "gmm", "--steps", "2"], folder))
        for kind in chosen.kinds:
            wrong += not check(kind, folder, chosen.times, random.Random(chosen.seed))
    return 1 if wrong else 0


def check(kind: str, folder: Path, times: int, generator: random.Random) -> bool:
    """Run a kind undisturbed, then kill it `times` times in all, starting afresh whenever it reaches its end."""
    whole = folder / f"{kind}_whole"
    begin = time.monotonic()
    wait(start(command(kind, folder, whole), folder))
    seconds, expected = time.monotonic() - begin, rows(whole)
    kills = runs = equal = 0
    while kills < times:
        runs += 1
        place = folder / f"{kind}_{runs}"
        while True:
            process = start(command(kind, folder, place), folder)
            try:
                process.wait(generator.uniform(0.2, 1.0) * seconds)
            except subprocess.TimeoutExpired:
                process.kill()
            if process.wait() != -signal.SIGKILL:
                break
            kills += 1
            if kills >= times:
                wait(start(command(kind, folder, place), folder))
                break
        equal += rows(place) == expected
    told = second_writer(kind, folder)
    print(f"{kind:10} killed {kills} times in {runs} runs, {equal} of {runs} equal; second writer: {told}", flush=True)
    return equal == runs and told == "one sentence"


def second_writer(kind: str, folder: Path) -> str:
    """What a run says that finds another one in its folder."""
    place = folder / f"{kind}_two"
    first = start(command(kind, folder, place), folder)
    while first.poll() is None and not list(place.rglob("study.json")):
        time.sleep(0.005)
    first.send_signal(signal.SIGSTOP)
    second = start(command(kind, folder, place), folder)
    said = second.communicate()[1].strip()
    first.send_signal(signal.SIGCONT)
    first.kill()
    first.wait()
    fine = second.returncode == 2 and said.startswith("error: another run is writing into") and "\n" not in said
    return "one sentence" if fine else repr(said)


def command(kind: str, folder: Path, output: Path) -> list[str]:
    """The arguments of a run of `kind` into `output`."""
    names = {"TINY": str(folder / "tiny.toml"), "MOVING": str(folder / "moving.toml")}
    return [*(names.get(word, word) for word in COMMANDS[kind]), "-o", str(output)]


def start(arguments: list[str], folder: Path) -> subprocess.Popen[str]:
    """A run in a process of its own, with weights of its own."""
    environment = {**os.environ, "CHANEST_WEIGHTS": str(folder / "weights")}
    return subprocess.Popen(
        [sys.executable, "-m", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env=environment,
    )  # fmt: skip


def wait(process: subprocess.Popen[str]) -> None:
    """Until the end, which must be a good one."""
    said = process.communicate()[1]
    if process.returncode != 0:
        raise ValueError(f"{process.args!r} ended with {process.returncode}: {said}")


def rows(folder: Path) -> list[object]:
    """The rows of a folder without provenance and times."""
    place = next(path.parent for path in sorted(folder.rglob("study.json")))
    found = read_study(place, REGISTRY).records
    return [(each.cell, {key: value for key, value in each.row.items() if key not in TIMED}) for each in found]


if __name__ == "__main__":
    sys.exit(main())
