"""The study's runner and store: resume after a kill, torn and damaged lines, locks, growth, workers, faults, the page."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from study_kill import kill_often
from study_toys import REGISTRY, Clock, Slow, Toy

from vlista_core.study import Ended, Options, Result, Table, print_table, read_study, run_studies, run_study
from vlista_core.study.measuring import milliseconds_of, ratio_interval, wilson
from vlista_core.study.page import write_page
from vlista_core.study.spread import run_in_processes
from vlista_core.study.tables import decibels, milliseconds, signed
from vlista_core.tensorfile import Json


def _rows(result: Result) -> list[tuple[dict[str, Json], dict[str, Json]]]:
    return [(record.cell, record.row) for record in result.records]


def _lines(folder: Path) -> list[bytes]:
    return (folder / "rows.jsonl").read_bytes().splitlines()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
@pytest.mark.parametrize("seed", [0, 1])
def test_killed_at_random_moments_it_ends_with_the_rows_of_one_run(seed: int, tmp_path: Path) -> None:
    slow, study = (kind(sizes=tuple(range(1, 31))) for kind in (Slow, Toy))
    assert kill_often(slow, tmp_path / "killed", times=6, longest=0.25, seed=seed) == 6
    left = (tmp_path / "killed" / "rows.jsonl").read_bytes()
    assert 0 < left.count(b"\n") < 60
    assert not left.endswith(b"\n")
    resumed, whole = run_study(study, tmp_path / "killed"), run_study(study, tmp_path / "whole")
    assert _rows(resumed) == _rows(whole)
    assert len(_lines(tmp_path / "killed")) == 60


WORKERS = """
import time
from vlista_core.study.spread import run_in_processes

def work(seconds):
    print("at work", flush=True)
    time.sleep(seconds)

if __name__ == "__main__":
    list(run_in_processes(work, [300, 300], 2))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_the_workers_of_a_run_that_is_killed_end_too(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(WORKERS)
    run = subprocess.Popen([sys.executable, str(tmp_path / "run.py")], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    assert [run.stdout.readline() for _ in range(2)] == ["at work\n"] * 2
    run.kill()
    run.communicate(timeout=30)  # The pipe has an end when no worker holds it any more.
    assert run.returncode == -signal.SIGKILL


def test_a_folder_that_vanishes_during_a_run_is_one_sentence(tmp_path: Path) -> None:
    def vanish(each: Ended) -> None:
        shutil.rmtree(tmp_path / "run")

    with pytest.raises(
        ValueError, match=r"cannot write .*rows\.jsonl: no such file or directory; check that it is still"
    ):
        run_study(Toy(), tmp_path / "run", ended=vanish)


FULL = """
import resource, sys
from pathlib import Path
from study_toys import Toy
from vlista_core.study import run_study
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
try:
    run_study(Toy(), Path(sys.argv[1]), restart=True)
except ValueError as fault:
    print(fault)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no limits of file sizes")
def test_a_restart_on_a_full_disk_leaves_the_old_rows(tmp_path: Path) -> None:
    run_study(Toy(), tmp_path)
    before = _lines(tmp_path)
    full = [sys.executable, "-c", FULL, str(tmp_path)]
    done = subprocess.run(full, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"cannot write {tmp_path / 'study.json'}: file too large; free some space")
    assert _lines(tmp_path) == before
    assert len(read_study(tmp_path, REGISTRY).records) == len(before) > 0


def test_a_second_writer_gets_one_sentence_and_a_reader_is_let_in(tmp_path: Path) -> None:
    faults: list[str] = []

    def again(each: Ended) -> None:
        with pytest.raises(
            ValueError, match=r"another run is writing into .*; wait for its end or give another folder"
        ) as fault:
            run_study(Toy(), tmp_path)
        faults.append(str(fault.value))
        assert len(read_study(tmp_path, REGISTRY).records) == len(faults)

    run_study(Toy(sizes=(1,)), tmp_path, ended=again)
    assert len(faults) == 2
    assert len(run_study(Toy(sizes=(1,)), tmp_path).records) == 2


def test_a_line_that_is_torn_is_run_again_and_one_that_is_damaged_is_named(tmp_path: Path) -> None:
    first = run_study(Toy(), tmp_path)
    path, content = tmp_path / "rows.jsonl", (tmp_path / "rows.jsonl").read_bytes()
    path.write_bytes(content[:-20])
    assert len(read_study(tmp_path, REGISTRY).records) == 5
    assert _rows(run_study(Toy(), tmp_path)) == _rows(first)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], lines[2][:30] + b"\n", *lines[3:]]))
    for call in (lambda: run_study(Toy(), tmp_path), lambda: read_study(tmp_path, REGISTRY)):
        with pytest.raises(ValueError, match=r"rows\.jsonl, line 3 is damaged"):
            call()
    other = json.loads(lines[2])
    del other["cell"]["model"], other["digest"]
    path.write_bytes(b"".join([*lines[:2], json.dumps(other).encode() + b"\n"]))
    with pytest.raises(ValueError, match=r"rows\.jsonl, line 3 is of another version: its cell has no 'model'"):
        read_study(tmp_path, REGISTRY)
    assert _rows(run_study(Toy(), tmp_path, restart=True)) == _rows(first)


def test_growing_fields_are_united_and_others_must_agree(tmp_path: Path) -> None:
    run_study(Toy(sizes=(1, 2)), tmp_path)
    kept = _lines(tmp_path)
    grown = run_study(Toy(models=("c", "a"), sizes=(2, 4)), tmp_path)
    assert isinstance(grown.study, Toy)
    assert (grown.study.models, grown.study.sizes) == (("a", "b", "c"), (1, 2, 4))
    assert len(grown.records) == 9
    assert _lines(tmp_path)[:4] == kept
    with pytest.raises(
        ValueError, match="holds another toy study, with other scale; give another folder, or --restart"
    ):
        run_study(Toy(scale=2.0), tmp_path)
    with pytest.raises(ValueError, match=r"holds a study of another kind, toy; .*--restart"):
        run_study(Clock(), tmp_path)
    assert len(run_study(Toy(scale=2.0), tmp_path, restart=True).records) == 6
    assert len(read_study(tmp_path, REGISTRY).records) == 6


def test_workers_and_a_cluster_give_the_rows_of_this_process(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    here, study = run_study(Toy(), tmp_path / "here"), Toy().with_own({"unused": 1.0})
    assert _rows(run_study(study, tmp_path / "workers", workers=2)) == _rows(here)
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None
    ) as cluster:
        address = cluster.scheduler_address
        assert _rows(run_study(study, tmp_path / "cluster", scheduler=address)) == _rows(here)
    for folder in ("here", "workers", "cluster"):
        assert read_study(tmp_path / folder, REGISTRY).frame["level"].tolist() == here.frame["level"].tolist()
    with pytest.raises(ValueError, match="no dask scheduler answers at nonsense://1"):
        run_study(study, tmp_path / "nowhere", scheduler="nonsense://1")
    assert not (tmp_path / "nowhere").exists()


def test_a_cell_that_fails_leaves_the_others_and_is_tried_again(tmp_path: Path) -> None:
    told: list[tuple[float, int, str]] = []
    result = run_study(Toy(failing=("a",)), tmp_path, progress=lambda *words: told.append(words))
    assert result.faults == {f"a.{size}": "a cannot be run" for size in (1, 2, 3)}
    assert [record.cell["model"] for record in result.records] == ["b", "b", "b"]
    assert told[:1] == [(0, 6, "")]
    assert told[-1:] == [(6, 6, "b.3")]
    assert (0.5 + 1, 6, "b.1: half") in told
    told.clear()
    assert not run_study(Toy(), tmp_path, progress=lambda *words: told.append(words)).faults
    assert told[:1] == [(3, 6, "")]


def test_what_cannot_be_kept_is_a_fault(tmp_path: Path) -> None:
    result = run_study(Clock(faults=True), tmp_path)
    assert "not JSON compliant" in result.faults["nan"]
    assert result.faults["key"] == "KeyError: 'gone'"


def test_cells_have_one_thread_and_those_that_measure_time_have_all_and_come_last(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        result = run_study(Clock(), tmp_path)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert {record.cell["what"]: record.row["threads"] for record in result.records} == {"work": 1, "time": 2}
    assert [json.loads(line)["cell"]["what"] for line in _lines(tmp_path)] == ["work", "time"]


def test_an_object_of_the_user_runs_here_every_time(tmp_path: Path) -> None:
    for level in (5.0, 6.0):
        result = run_study(Toy(models=("mine", "b"), sizes=(1, 2)).with_own({"mine": level}), tmp_path, workers=2)
        levels = result.frame.set_index(["model", "size"])["level"]
        assert levels["mine"].tolist() == [level, level]
    assert len(_lines(tmp_path)) == 6
    read = read_study(tmp_path, REGISTRY)
    assert read.frame["level"].tolist() == [6.0, -1.0, 6.0, -2.0]
    assert run_study(Toy(models=("b",), sizes=(1, 2)), tmp_path).frame["level"].tolist() == [6.0, -1.0, 6.0, -2.0]
    failing = Toy(models=("mine",), sizes=(1, 2), failing=("mine",)).with_own({"mine": 7.0})
    assert run_study(failing, tmp_path).frame["level"].tolist() == [-1.0, -2.0]


def test_a_restart_forgets_the_chosen_rows_and_what_they_kept(tmp_path: Path) -> None:
    run_study(Toy(), tmp_path)
    kept = tmp_path / "weights" / "a.1.kept"
    kept.write_text("old")
    assert len(run_study(Toy(), tmp_path).records) == 6
    assert kept.read_text() == "old"
    seen: list[str] = []
    run_study(
        Toy(), tmp_path, restart=True, chosen=lambda cell: cell["size"] == 1, ended=lambda each: seen.append(each.name)
    )
    assert seen == ["a.1", "b.1"]
    assert kept.read_text() == ""
    assert len(_lines(tmp_path)) == 6


def test_no_cell_starts_once_the_hours_have_passed(tmp_path: Path) -> None:
    result = run_study(Toy(), tmp_path, hours=1e-12)
    assert (result.records, result.left) == ((), 6)
    assert result.frame.empty
    with pytest.raises(ValueError, match="hours must be positive, got 0"):
        Options(hours=0.0)
    with pytest.raises(ValueError, match="workers must be an integer of at least 1, got 0"):
        Options(workers=0)


def test_jobs_are_taken_only_as_there_is_room_for_them() -> None:
    """So that a deadline is kept in processes too."""
    taken: list[int] = []

    def jobs() -> Iterator[int]:
        for job in (-1, -2, -3, -4):
            taken.append(job)
            yield job

    found: list[tuple[int, int]] = []
    for job, result in run_in_processes(abs, jobs(), 1):
        assert len(taken) <= len(found) + 1
        found.append((job, result))
    assert found == [(-1, 1), (-2, 2), (-3, 3), (-4, 4)]


def test_a_record_carries_its_provenance_and_a_frame_is_flat(tmp_path: Path) -> None:
    result = run_study(Toy(), tmp_path, notes=("a note",))
    made = result.records[0].provenance
    assert made.commit is not None
    assert made.dirty in (True, False)
    assert made.versions is not None
    assert {"python", "vlista", "torch", "numpy"} <= set(made.versions)
    assert made.machine is not None
    assert made.machine["torch_threads"] == 1
    assert made.seconds is not None
    assert made.peak_gigabytes is None or made.peak_gigabytes > 0
    assert (made.budget, made.seed, made.recipe, made.weights) == ({"steps": 1}, 7, None, None)
    assert str(tmp_path) not in (tmp_path / "rows.jsonl").read_text()
    frame = result.frame
    assert {"model", "nested.twice", "nested.list", "provenance.seconds", "provenance.machine.cores"} <= set(
        frame.columns
    )
    assert read_study(tmp_path, REGISTRY).about.notes == ("a note",)


def test_several_studies_are_interleaved_and_share_a_page(tmp_path: Path) -> None:
    seen: list[str] = []
    folders = {tmp_path / "toy": Toy(), tmp_path / "clock": Clock()}
    run_studies(folders, tmp_path / "weights", Options(ended=lambda each: seen.append(each.name)))
    assert seen == ["a.1", "work", "b.1", "a.2", "b.2", "a.3", "b.3", "time"]
    run_study(Toy(models=("c",)), tmp_path, notes=("c is new",))
    page = write_page(tmp_path, REGISTRY).read_text(encoding="utf-8")
    assert re.findall(r"<h[12]>(.*?)</h[12]>", page) == ["toy", "clock"]
    assert page.index("3 of 3 cells") < page.index("6 of 6 cells") < page.index("2 of 2 cells")
    assert "Levels &lt;b&gt;" in page
    for text in ("The best is -3.", "c is new", "What was run", "Rows by what they were run with", "Sums of nothing."):
        assert text in page, text
    assert re.findall(r'(?:src|href)="([^#].{0,21})', page) == ["data:image/png;base64,"] * 2
    assert re.findall(r'href="(#.*?)"', page) == [f"#{name}" for name in re.findall(r'<section id="(.*?)"', page)]
    assert not re.search(r"https?:|@import|url\((?!#)|<script[^>]* src", page)
    assert str(tmp_path) not in page
    assert (tmp_path / "toy" / "table.md").read_text() == (
        "The best is -3.\n\n**Levels <b>**\n\n| model | 1 | 2 | 3 |\n| --- | ---: | ---: | ---: |\n"
        "| a | −1.0 | −2.0 | −3.0 |\n| b | −1.0 | −2.0 | −3.0 |\n"
    )
    header = (tmp_path / "toy" / "rows.csv").read_text().splitlines()[0].split(",")
    assert "nested.twice" in header
    assert "nested.list" not in header
    assert not list(tmp_path.rglob("*.partial*"))


def test_a_file_cannot_name_code_and_nothing_is_no_page(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no finished cells of a study"):
        write_page(tmp_path, REGISTRY)
    with pytest.raises(ValueError, match=r"holds no study: there is no study\.json"):
        read_study(tmp_path, REGISTRY)
    run_study(Toy(), tmp_path)
    path = tmp_path / "study.json"
    content = json.loads(path.read_text())
    del content["digest"]
    for change, message in (
        ({"study": "os:system"}, r"study\.json: unknown study 'os:system'; known are toy, clock"),
        ({"configuration": {"sizes": "many"}}, r"study\.json is of another version: sizes"),
        ({"extra": 1}, r"study\.json is not the file of a study: extra"),
    ):
        path.write_text(json.dumps({**content, **change}))
        with pytest.raises(ValueError, match=message):
            read_study(tmp_path, REGISTRY)


def test_a_narrow_terminal_leaves_columns_out_and_cuts_no_number() -> None:
    lines = [(f"estimator {name}", *("−12.345" for _ in range(12))) for name in "abc"]
    table = Table.of("A long title " * 9, ("name", *(f"{snr} dB" for snr in range(12))), lines)
    console = Console(width=80, force_terminal=True, color_system=None)
    with console.capture() as capture:
        print_table(table, console)
    said = capture.get()
    assert "…" not in said
    shown = said.count("−12.345") / 3
    assert 5 <= shown < 12
    assert f"not shown for want of width: {int(shown)} dB" in " ".join(said.split())
    assert all(len(line) <= 80 for line in said.splitlines())


def test_figures_are_written_as_people_write_them() -> None:
    assert (decibels(-3.14159), decibels(None), decibels(float("nan"))) == ("−3.1", "–", "–")
    assert (signed(0.5), signed(-0.5, 1)) == ("+0.50", "−0.5")
    assert [milliseconds(value) for value in (123.4, 1.23, 0.1234, None)] == ["123", "1.2", "0.123", "–"]


def test_the_bootstrap_covers_and_groups_are_drawn_whole() -> None:
    random = np.random.default_rng(0)
    held = 0
    for seed in range(100):
        error, power = random.exponential(0.1, 200), random.exponential(1.0, 200)
        low, high = ratio_interval(error, power, seed=seed)
        held += low <= 0.1 <= high
    assert 88 <= held <= 100
    alone = ratio_interval(error, power, seed=3)
    assert ratio_interval(error, power, seed=3) == alone
    low, high = ratio_interval(np.repeat(error, 4), np.repeat(power, 4), group=4, seed=3)
    assert (low, high) == pytest.approx(alone)
    error[:20] = np.inf
    assert ratio_interval(error, power) == (np.inf, np.inf)
    error[:20], error[0] = 0.1, np.inf
    low, high = ratio_interval(error, power)
    assert low < 1.0
    assert high == np.inf


def test_wilson_is_the_published_interval() -> None:
    """Wilson's interval for 10 of 20 at 95 % is 0.299 … 0.701; none of 20 gives 0 … 0.161."""
    assert wilson(10, 20) == pytest.approx((0.2993, 0.7007), abs=1e-4)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)


def test_a_slow_call_is_made_once_and_a_quick_one_often() -> None:
    calls: list[int] = []
    milliseconds_of(lambda: calls.append(1), seconds=0.0)
    assert len(calls) == 1
    assert milliseconds_of(lambda: calls.append(1), seconds=0.05) >= 0
    assert len(calls) > 5
