"""Disturb every command that writes and let it go on: killed at any moment, beside a second writer, on a full disk.

Whatever happens, the same command run again must end with the files of a run that nobody disturbed, to the bit apart from times
and dates, and with no other file.

python benchmarks/kills.py [--times 6] [--kinds train evaluate …] [--seed 0]
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import random
import re
import resource
import runpy
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import ClassVar, NamedTuple

import pandas as pd
import torch

import chanest.cli
import vlista_core.experiments.cli
from vlista_core import checkpoint, tensorfile
from vlista_core.experiments import EXPERIMENTS
from vlista_core.experiments.synthetic import Synthetic
from vlista_core.tensorfile import Json
from vlista_core.training.state import RESUME

EXAMPLES = Path(__file__).parents[1] / "examples"
DATA = "[data]\ntrain = 300\n"
PILOTS = DATA + "[bs]\nrows = 4\ncolumns = 2\nyaw_spread = 60.0\n[ue]\nrows = 2\ncolumns = 1\n[frontend]\npilots = 6\n"
MOVING = PILOTS + "[channel]\nspeed = [3.0, 3.0]\nsnapshots = 4\nsnapshot_interval = 0.001\n"
MODULES = (
    "chanest.studies.accuracy", "chanest.studies.bench", "chanest.studies.coverage", "chanest.studies.link",
    "chanest.studies.novelty", "chanest.studies.tracking", "chanest.plotting.bench", "chanest.plotting.channel",
    "chanest.plotting.studies", "lightning_fabric", "h5py", "matplotlib.pyplot", "matplotlib.backends.backend_agg",
    "sionna.phy.ofdm", "sionna.phy.channel", "sionna.phy.fec.ldpc",
)  # fmt: skip
"""What takes time to import, and would in every run."""
CHANGES = {"open", "os.rename", "os.remove", "os.truncate"}
TIMED = {
    "digest", "seconds", "started", "finished", "peak_gigabytes", "ms_batch_1", "ms_batch", "ms_in_passing", "latency_ms",
    "seconds_to_printed", "latency_error_ms", "latency_batches", "norm_ms", "norm_error_ms", "norm_batches",
}  # fmt: skip
"""Keys of files that hold times and dates, and the memory of a process, which depends on what else it has done."""
SENTENCE = r"(note: .*\n)*error: cannot write .*: file too large; free some space or choose a folder on another disk\n"
""""File too large" is what the limit says that stands for a full disk here."""


@dataclass(frozen=True)
class Kind:
    """A command that writes into a folder OUT."""

    command: str
    """The program, `chanest`, `experiments` or an example, and its arguments."""
    timed: tuple[str, ...] = ()
    """Files that show times, whose content may differ."""
    begins_with: str | None = None
    """The kind whose files are there before."""
    exclusive: bool = True
    """Whether a second writer is refused; else both must end well."""


FEW = "--snr 0,10 --channels 200 --no-bounds"
PAGE = ("table.md", "report.html", "accuracy_vs_latency.png")
KINDS = {
    "generate": Kind("chanest generate TINY -n 2000 -o OUT/channels.h5"),
    "train": Kind("chanest train TINY -e lmmse,gmm --steps 2 -o OUT"),
    "calibrate": Kind("chanest calibrate TINY -e vamp,omp --channels 64 -o OUT"),
    "evaluate": Kind(f"chanest evaluate TINY -e vamp,omp {FEW} -o OUT", timed=PAGE),
    "bench": Kind("chanest bench --scenarios TINY -e vamp,omp --snr 0,10 --channels 200 -o OUT", timed=PAGE),
    "calibration": Kind("chanest calibration TINY -e vamp,bcs --snr 0,10 --channels 200 -o OUT"),
    "link": Kind("chanest link TINY -e ls,omp --snr 0,9 --blocks 30 --data-symbols 6 -o OUT"),
    "novelty": Kind(
        "chanest novelty TINY -e omp --changes cdl-a,tilt --lengths 1,5 --frames 200 --home 200 --reference 200 -o OUT"
    ),
    "track": Kind("chanest track MOVING -e gmm --snr 0,10 --tracks 50 -o OUT"),
    "gmm": Kind("chanest train MOVING -e gmm --steps 2"),
    "report": Kind("chanest report OUT", begins_with="evaluate", exclusive=False),
    "export": Kind("chanest export ls TINY -o OUT/ls.pt2", ("ls.pt2",), exclusive=False),
    "plot-channel": Kind("chanest plot-channel TINY -o OUT/channel.png", exclusive=False),
    "complexity": Kind("experiments run complexity --models lista,ista --measurements 10 -o OUT"),
    "synthetic": Kind("experiments run synthetic -o OUT"),
    "experiments report": Kind("experiments report OUT", begins_with="synthetic", exclusive=False),
    "sparse_recovery": Kind("sparse_recovery.py --samples 8 --output OUT", exclusive=False),
    "varying_beams": Kind("varying_beams.py --seconds 0.2 --output OUT", ("varying_beams.png",), exclusive=False),
    "novelty_detection": Kind(
        "novelty_detection.py --scenario TINY --estimator omp --frames 5 --streams 2 --reference 200 --output OUT",
        exclusive=False,
    ),
    "own_estimator": Kind("own_estimator.py --scenario TINY --channels 8 --against ls,omp --output OUT", timed=PAGE),
    "link_level": Kind("link_level.py --scenario TINY --estimators ls,omp --snr 9,17 --blocks 20 --output OUT"),
    "cdl_channel_estimation": Kind(
        "cdl_channel_estimation.py --scenario TINY --snr 5 --channels 4 --output OUT", timed=PAGE
    ),
}
"""Every command that writes, small enough for seconds."""


class SmallSynthetic(Synthetic):
    """The paper's synthetic experiment on short vectors, with one network, trained by its own recipe, and one solver."""

    name: ClassVar[str] = "synthetic"
    models: tuple[str, ...] = ("vlista-anchored", "bcs")
    measurements: tuple[int, ...] = (8,)
    length: int = 24
    test_samples: int = 20


class Ended(NamedTuple):
    code: int
    said: str
    """On stderr."""


class Whole(NamedTuple):
    """A run that nobody disturbed."""

    folder: Path
    files: dict[str, object]
    changes: int
    """How often it changed its files."""
    seconds: float


OnChange = Callable[[int], object]
"""Called in a run before it changes its files for the 1st, 2nd, … time."""


@dataclass(frozen=True)
class Runs:
    """Runs of all kinds in the subfolders of a folder."""

    folder: Path
    wholes: dict[str, Whole] = field(default_factory=dict)

    def begun(self, name: str, words: str) -> Path:
        """A folder as it is before the command."""
        out = self.folder / f"{name} {words}"
        if (before := KINDS[name].begins_with) is None:
            out.mkdir()
        else:
            shutil.copytree(self.whole(before).folder, out)
        return out

    def whole(self, name: str) -> Whole:
        """A run that nobody disturbs, which takes place the first time."""
        if name not in self.wholes:
            out, begin = self.begun(name, "whole"), time.monotonic()
            changes = self.count_changes(name, out)
            self.wholes[name] = Whole(out, files(out, name), changes, time.monotonic() - begin)
        return self.wholes[name]

    def count_changes(self, name: str, out: Path) -> int:
        """How often a run changes its files, which must end well."""
        counted, count = os.pipe()
        process, heard = self.start(name, out, lambda number: os.write(count, b"."))
        os.close(count)
        with os.fdopen(counted, "rb") as pipe:
            found = len(pipe.read())
        if (ended := wait(process, heard)).code != 0:
            raise ValueError(f"{name} ended with {ended.code}: {ended.said}")
        return found

    def start(self, name: str, out: Path, on_change: OnChange = lambda number: None) -> tuple[int, int]:
        """Start a run in a forked process; returns its number and a pipe of what it says on stderr.

        A fork has all modules, so that no kill is spent on the time of imports.
        """
        places = {"TINY": str(self.folder / "tiny.toml"), "MOVING": str(self.folder / "moving.toml")}
        program, *words = (places.get(word, word.replace("OUT", str(out))) for word in KINDS[name].command.split(" "))
        heard, told = os.pipe()
        if process := os.fork():
            os.close(told)
            return process, heard
        code = 1
        try:
            os.dup2(told, 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.environ.update(CHANEST_WEIGHTS=str(self.folder / "weights"), OMP_NUM_THREADS="1")
            watch(out, on_change)
            run(program, words)
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def finish(self, name: str, out: Path, on_change: OnChange = lambda number: None) -> Ended:
        """A run to its end."""
        return wait(*self.start(name, out, on_change))


def run(program: str, words: list[str]) -> None:
    """What a command does, in this process."""
    if program == "chanest":
        chanest.cli.app(words)
    elif program == "experiments":
        EXPERIMENTS["synthetic"] = f"{__name__}:SmallSynthetic"
        vlista_core.experiments.cli.app(words)
    else:
        sys.argv = [program, *words]
        runpy.run_path(str(EXAMPLES / program), run_name="__main__")


def watch(out: Path, on_change: OnChange) -> None:
    """Have `on_change` called before every change of the files of `out`; locks do not count."""
    numbers = itertools.count(1)

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        path = str(arguments[0]) if event in CHANGES else ""
        if not path.startswith(str(out)) or path.endswith(".lock"):
            return
        if event != "open" or (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            on_change(next(numbers))

    sys.addaudithook(hook)


def wait(process: int, heard: int) -> Ended:
    """The end of a run."""
    with os.fdopen(heard, errors="replace") as pipe:
        said = pipe.read()
    return Ended(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), said)


def kill_often(runs: Runs, name: str, times: int, chance: random.Random) -> str:
    """Kill a kind `times` times in all, starting afresh whenever it reaches its end; what came of it.

    Every second kill is at a random moment, the others are before a random change of a file.
    """
    whole = runs.whole(name)
    kills = rounds = equal = 0
    while kills < times:
        rounds += 1
        out, killed = runs.begun(name, f"killed {rounds}"), True
        while killed and kills < times:
            killed = kill_once(runs, name, out, whole.seconds, whole.changes if kills % 2 else 0, chance)
            kills += killed
        equal += (not killed or runs.finish(name, out).code == 0) and files(out, name) == whole.files
    verdict = "all equal" if equal == rounds else f"WRONG: {equal} equal"
    return f"{kills} kills in {rounds} runs, {verdict}"


def kill_once(runs: Runs, name: str, out: Path, seconds: float, steps: int, chance: random.Random) -> bool:
    """Kill a run within `seconds` or, where there are `steps`, before one of them; False where it was faster."""
    step = chance.randint(1, steps) if steps else 0
    process, heard = runs.start(name, out, functools.partial(_send_self, signal.SIGKILL, step))
    if not steps:
        time.sleep(chance.uniform(0.0, seconds))
        os.kill(process, signal.SIGKILL)
    ended = wait(process, heard)
    if ended.code not in (0, -signal.SIGKILL):
        raise ValueError(f"{name} ended with {ended.code} when it went on: {ended.said}")
    return ended.code != 0


def write_twice(runs: Runs, name: str) -> str:
    """Start a run while another is in the middle of its first change; what came of it."""
    whole, out = runs.whole(name), runs.begun(name, "twice")
    first, heard = runs.start(name, out, functools.partial(_send_self, signal.SIGSTOP, 1))
    os.waitpid(first, os.WUNTRACED)
    second = runs.finish(name, out)
    os.kill(first, signal.SIGCONT)
    ended = wait(first, heard)
    if ended.code != 0 or files(out, name) != whole.files:
        return f"WRONG: the first ended with {ended.code} {ended.said!r}"
    if not KINDS[name].exclusive:
        return "both whole" if second.code == 0 else f"WRONG: the second ended with {second.code} {second.said!r}"
    fine = second.code == 2 and re.fullmatch(r"(note: .*\n)*error: another run is writing .*\n", second.said)
    return "one sentence" if fine else f"WRONG: the second ended with {second.code} {second.said!r}"


def fill_disk(runs: Runs, name: str, times: int, chance: random.Random) -> str:
    """Let no file grow from the first or a random change on, in a new folder and over old files; then run again with room.

    Every file must be as it was before or as it should be (rows may be missing), no temporary one may stay, and the second
    run must end well.
    """
    whole = runs.whole(name)
    said = 0
    for words in ("new", "old"):
        old = words == "old"
        steps = runs.count_changes(name, _before_full(runs, name, "counted", old)) if old else whole.changes
        for place in [1, *chance.sample(range(2, steps + 1), min(times, steps) - 1)] if steps else []:
            out = _before_full(runs, name, f"{words} full {place}", old)
            before = files(out, name)
            ended = runs.finish(name, out, functools.partial(_fill_from, place))
            what = f"WRONG: {words} and full from change {place} on, it ended with {ended.code} {ended.said!r}"
            # A last change that removes a file needs no room.
            if not (ended.code == 0 or (ended.code == 2 and re.fullmatch(SENTENCE, ended.said))):
                return what
            after = files(out, name)
            changed = [key for key, value in before.items() if after[key] != value]
            if list(out.rglob(".*")) or not all(is_part(after[key], whole.files[key]) for key in changed):
                return f"{what} and left {sorted(after)}"
            said += ended.code == 2
            if (again := runs.finish(name, out)).code != 0 or files(out, name) != whole.files:
                return f"{what} and then, with room, with {again.code} {again.said!r}"
            shutil.rmtree(out)
    return f"{said} sentences"


def is_part(found: object, whole: object) -> bool:
    """Whether a file is as it should be; of rows, which are added one by one, some may be missing."""
    return found == whole or (isinstance(found, list) and isinstance(whole, list) and set(found) <= set(whole))


def _before_full(runs: Runs, name: str, words: str, old: bool) -> Path:
    """A folder as it is before the command or, if `old`, after it."""
    return shutil.copytree(runs.whole(name).folder, runs.folder / f"{name} {words}") if old else runs.begun(name, words)


def _send_self(what: signal.Signals, place: int, number: int) -> None:
    if number == place:
        os.kill(os.getpid(), what)


def _fill_from(place: int, number: int) -> None:
    if number == place:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def files(folder: Path, name: str) -> dict[str, object]:
    """The content of all files of a run of a kind, without times and dates."""
    found = {path.relative_to(folder): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {str(key): None if key.name in KINDS[name].timed else content(path) for key, path in found.items()}


def content(path: Path) -> object:
    """What a file holds besides times and dates."""
    match path.suffix:
        case ".safetensors":
            kind = RESUME if path.name.endswith(".resume.safetensors") else checkpoint.MODEL
            tensors, header = tensorfile.read(path, kind)
            return {key: value.numpy().tobytes() for key, value in tensors.items()}, untimed(header)
        case ".json" | ".jsonl":
            lines = path.read_text().split("\n")[:-1] if path.suffix == ".jsonl" else [path.read_text()]
            found = [json.loads(line) for line in lines]
            if path.name.endswith(".calibration.json"):
                found[0].pop("weights")  # the digest of a file that says how long a training took
            # Workers end in any order, and so do rows; tables have the order of the cells.
            return sorted(json.dumps(untimed(each)) for each in found)
        case ".csv":
            frame = pd.read_csv(path)
            return frame.drop(columns=[key for key in frame if str(key).split(".")[-1] in TIMED]).to_csv()
        case _:
            return path.read_bytes()


def untimed(value: Json) -> Json:
    """JSON without its times. The history of a training has [step, seconds, figure]."""
    if isinstance(value, list):
        return [untimed(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    kept = {key: untimed(inner) for key, inner in value.items() if key not in TIMED}
    if isinstance(history := kept.get("history"), list):
        kept["history"] = [[*step[:1], *step[2:]] for step in history if isinstance(step, list)]
    return kept


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--times", type=int, default=6, help="how often each kind is killed")
    parser.add_argument("--disks", type=int, default=2, help="how often each finds a full disk, and over old files")
    parser.add_argument("--kinds", nargs="+", default=[kind for kind in KINDS if kind != "gmm"])
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    for module in MODULES:
        import_module(module)
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        runs = Runs(Path(name))
        (runs.folder / "tiny.toml").write_text(PILOTS)
        (runs.folder / "moving.toml").write_text(MOVING)
        if "track" in chosen.kinds:
            runs.whole("gmm")
        for kind in chosen.kinds:
            chance = random.Random(chosen.seed)
            kills, twice = kill_often(runs, kind, chosen.times, chance), write_twice(runs, kind)
            full = fill_disk(runs, kind, chosen.disks, chance)
            print(f"{kind:22} {kills}; second writer: {twice}; full disk: {full}", flush=True)
            wrong += "WRONG" in kills + twice + full
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
