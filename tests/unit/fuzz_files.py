"""Read thousands of damaged files: each must be refused in one sentence that names it, or be read right.

python tests/unit/fuzz_files.py [--seconds 60 | --count 1000] [--kinds scenario weights …] [--seed 1] [--keep tests/regressions]

The reading is done by another process, so that a crash, a hang or a flood of memory is a finding and not the end. What is
found is kept as a file, named after its kind, that the test suite reads on every run.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import multiprocessing
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from fuzz_kinds import KINDS, FileKind, plain, unlike_a_sentence
from fuzz_mutations import mutated

HANG_SECONDS = 20.0
MEGABYTES = 300
"""Of memory that reading one small file may take."""
_ADDRESS_SPACE = 4 << 30


@dataclass(frozen=True)
class Finding:
    """A file that was neither refused in a sentence nor read right."""

    kind: str
    case: str
    """Which change it was, enough to make it again."""
    fault: str
    content: bytes | None
    """None for a folder."""


@dataclass
class Report:
    """What became of the files of one kind."""

    counts: Counter[str] = field(default_factory=Counter)
    """How many were refused, read as the good file, and read as another valid one."""
    findings: list[Finding] = field(default_factory=list)


@cache
def good_files(kind: FileKind) -> dict[str, bytes]:
    """The files that a kind makes, by name; once, because some of them say when they were made."""
    with tempfile.TemporaryDirectory() as folder:
        kind.make(Path(folder))
        return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.is_file()}


class Bench:
    """A kind of file with a good one, ready to read changed ones."""

    def __init__(self, kind: FileKind, folder: Path) -> None:
        self.kind, self.folder, self.read = kind, folder, 0
        folder.mkdir(parents=True, exist_ok=True)
        self.around = dict(good_files(kind))
        with self.holding(self.around.pop(kind.file)) as path:
            self.answer = repr(plain(kind.read(path)))

    @contextlib.contextmanager
    def holding(self, content: bytes | None) -> Iterator[Path]:
        """The path of a file with this content, in a folder of its own with the files around it."""
        self.read += 1
        place = self.folder / str(self.read)
        place.mkdir()
        for name, beside in self.around.items():
            (place / name).write_bytes(beside)
        path = place / self.kind.file
        if content is None:
            path.mkdir()
        else:
            path.write_bytes(content)
        try:
            yield path
        finally:
            shutil.rmtree(place)

    def outcome(self, content: bytes | None) -> tuple[str, str]:
        """("refused", "same", "valid" or "wrong"; what is wrong)."""
        before = _peak_megabytes()
        with self.holding(content) as path:
            try:
                found = self.kind.read(path)
            except ValueError as fault:
                problem = unlike_a_sentence(str(fault), self.kind.named or path.name)
                how = ("wrong", f"{problem}: {fault!s:.300}") if problem else ("refused", "")
            except Exception as fault:  # noqa: BLE001
                how = ("wrong", f"{type(fault).__name__}: {fault!s:.300}")
            else:
                how = self._judged(found, b"" if content is None else content)
        if (taken := _peak_megabytes() - before) > MEGABYTES:
            return "wrong", f"{taken} MB of memory"
        return how

    def _judged(self, found: object, content: bytes) -> tuple[str, str]:
        if repr(plain(found)) == self.answer:
            return "same", ""
        if not self.kind.unprotected(content):
            return "wrong", f"another content was taken: {plain(found)!r:.300}"
        try:
            return ("valid", "") if self.kind.valid(found) else ("wrong", f"it is not valid: {found!r:.300}")
        except Exception as fault:  # noqa: BLE001
            return "wrong", f"it was taken and then gave {type(fault).__name__}: {fault!s:.200}"


def changes(name: str, seed: int) -> Iterator[tuple[str, bytes | None]]:
    """Names and contents of changed files of a kind, without end: what is always tried, then random changes."""
    kind = KINDS[name]
    goods = {other: good_files(KINDS[other])[KINDS[other].file] for other in KINDS}
    good = goods.pop(name)
    yield "folder", None
    always = {"empty": b"", "zeros": bytes(len(good)), "nesting": b"[" * 100_000, "space": b" " * 1000, **goods}
    yield from always.items()
    for number in range(1 << 62):
        chance = random.Random(f"{seed} {name} {number}")
        yield f"seed {seed}, number {number}", mutated(chance, good, kind.own, kind.layers)


def fuzz(
    name: str, cases: Iterable[tuple[str, bytes | None]], folder: Path, *, kind: FileKind | None = None,
    hang_seconds: float = HANG_SECONDS,
) -> Report:  # fmt: skip
    """Read every case in another process, which is started again whenever it dies or hangs."""
    report, reader = Report(), None
    try:
        for number, (case, content) in enumerate(cases):
            if reader is None:
                reader = _Reader(kind or KINDS[name], folder / f"{name}.{number}")
            how, fault = reader.ask(content, hang_seconds)
            report.counts[how] += 1
            if how == "wrong":
                report.findings.append(Finding(name, case, fault, content))
            if not reader.process.is_alive():
                reader = None
    finally:
        if reader is not None:
            reader.end()
    return report


class _Reader:
    """The process that reads."""

    def __init__(self, kind: FileKind, folder: Path) -> None:
        forks = "fork" in multiprocessing.get_all_start_methods()
        context = multiprocessing.get_context("fork" if forks else None)
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(kind, folder, theirs), daemon=True)
        self.process.start()
        theirs.close()
        if self.pipe.recv() != "ready":
            raise RuntimeError("the reading process did not start")

    def ask(self, content: bytes | None, seconds: float) -> tuple[str, str]:
        """The outcome of one file."""
        self.pipe.send(content)
        try:
            if self.pipe.poll(seconds):
                answer: tuple[str, str] = self.pipe.recv()
                return answer
        except EOFError:
            self.process.join()
            return "wrong", f"the process died with code {self.process.exitcode}"
        self.end()
        return "wrong", f"no answer in {seconds:g} seconds"

    def end(self) -> None:
        self.process.kill()
        self.process.join()


def _serve(kind: FileKind, folder: Path, pipe: Connection) -> None:
    """Answer with the outcome of every content that comes."""
    torch.set_num_threads(1)
    bench = Bench(kind, folder)
    with contextlib.suppress(ImportError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_virtual_bytes() + _ADDRESS_SPACE, resource.RLIM_INFINITY))
    pipe.send("ready")
    with contextlib.suppress(EOFError):
        while True:
            pipe.send(bench.outcome(pipe.recv()))


def _virtual_bytes() -> int:
    status = Path("/proc/self/statm")
    return int(status.read_text().split()[0]) * 4096 if status.is_file() else 1 << 44


def _peak_megabytes() -> int:
    try:
        import resource
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1 << 20 if sys.platform == "darwin" else 1 << 10)


def kept_as(finding: Finding, folder: Path) -> Path | None:
    """Keep the file of a finding for the test suite; a folder is tried every time anyway."""
    if finding.content is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{finding.kind}.{hashlib.sha256(finding.content).hexdigest()[:8]}"
    path.write_bytes(finding.content)
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=60.0, help="for all kinds together")
    parser.add_argument("--count", type=int, help="files of each kind, in place of a time")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32), help="of the changes")
    parser.add_argument(
        "--keep", type=Path, default=Path(__file__).parents[1] / "regressions", help="folder of findings"
    )
    chosen = parser.parse_args()
    say = sys.stdout.write
    say(f"seed {chosen.seed}\n{'kind':20} {'files':>6} {'refused':>8} {'same':>6} {'valid':>6} {'wrong':>6} {'s':>5}\n")
    total: Counter[str] = Counter()
    for kind in KINDS.values():
        good_files(kind)  # before the clock runs
    for name in chosen.kinds:
        start = time.monotonic()
        cases = changes(name, chosen.seed)
        if chosen.count is not None:
            cases = (case for _, case in zip(range(chosen.count), cases, strict=False))
        else:
            cases = _until(start + chosen.seconds / len(chosen.kinds), cases)
        with tempfile.TemporaryDirectory() as folder:
            report = fuzz(name, cases, Path(folder))
        total += report.counts
        say(_line(name, report.counts, time.monotonic() - start))
        for finding in report.findings:
            say(f"  {finding.case}: {finding.fault}\n    kept as {kept_as(finding, chosen.keep)}\n")
        sys.stdout.flush()
    say(_line("all", total))
    return 1 if total["wrong"] else 0


def _until(deadline: float, cases: Iterable[tuple[str, bytes | None]]) -> Iterator[tuple[str, bytes | None]]:
    for case in cases:
        if time.monotonic() > deadline:
            return
        yield case


def _line(name: str, counts: Counter[str], seconds: float | None = None) -> str:
    columns = " ".join(
        f"{counts[how]:{width}}" for how, width in (("refused", 8), ("same", 6), ("valid", 6), ("wrong", 6))
    )
    return f"{name:20} {counts.total():6} {columns}" + ("\n" if seconds is None else f" {seconds:5.1f}\n")


if __name__ == "__main__":
    sys.exit(main())
