"""The command line: lists, shows, generates, survives a kill, draws, trains, evaluates; mistakes are one line, code 2."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import pytest
from typer.testing import CliRunner, Result

from chanest.cli import app, parse_budget
from chanest.studies import STUDIES
from chanest.studies.accuracy import AccuracyStudy
from chanest.studies.commands import parse_snr, parse_sweep
from chanest.weights import provenance
from vlista_core.study import Cell, Context, Record, Row, read_study

COMMAND = [sys.executable, "-m", "chanest"]


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


def test_help_and_version_need_no_torch() -> None:
    for arguments in (["--help"], ["-h"], ["evaluate", "-h"], ["--version"]):
        code = "import sys; from chanest.cli import app\ntry: app()\nfinally: assert 'torch' not in sys.modules"
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("chanest 0.")


def test_importing_the_package_loads_none_of_the_heavy_ones() -> None:
    heavy = ("sionna", "matplotlib", "lightning_fabric", "pandas", "h5py", "torchmetrics")
    code = f"import sys, chanest; sys.exit(any(name in sys.modules for name in {heavy}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_package_shows_its_public_names_only() -> None:
    import chanest

    assert dir(chanest) == sorted(chanest.__all__)
    assert all(getattr(chanest, name) is not None for name in dir(chanest))
    with pytest.raises(AttributeError, match="no attribute 'luck'"):
        chanest.luck  # noqa: B018


def test_scenarios_and_show() -> None:
    listed = _run("scenarios")
    assert listed.exit_code == 0
    assert "cdl_c_upa64x4" in listed.stdout
    assert "swomp_32x32" in listed.stdout
    shown = _run("show", "hybrid_64x16")
    assert shown.exit_code == 0
    assert "frontend.chains" in shown.stdout
    assert "1024" in shown.stdout


def test_kill_in_the_middle_then_continue_to_the_same_bytes(tmp_path: Path) -> None:
    """SIGKILL once some chunks are written and some are not; a second run completes it to the bytes of a whole one."""
    arguments = ["generate", "hybrid_64x16", "-n", "3000", "--seed", "3"]
    killed, whole = tmp_path / "killed.h5", tmp_path / "whole.h5"
    process = subprocess.Popen([*COMMAND, *arguments, "-o", str(killed)], stderr=subprocess.DEVNULL)
    partial = tmp_path / "killed.h5.partial"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not 2 <= _written(partial) < 12:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    done = _written(partial)
    assert 2 <= done < 12, "the process was not killed in the middle"
    assert not killed.exists()
    assert _run(*arguments, "-o", str(killed)).exit_code == 0
    assert _run(*arguments, "-o", str(whole)).exit_code == 0
    assert killed.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["killed.h5", "whole.h5"]


def _written(partial: Path) -> int:
    """How many chunks of a file under construction are written."""
    if not partial.exists():
        return 0
    with h5py.File(partial, "r", locking=False) as file:
        return int((file["written"][:] != 0).sum())


def test_a_finished_file_is_not_written_again(tmp_path: Path) -> None:
    output = tmp_path / "a.h5"
    assert _run("generate", "cdl_c_upa64x4", "-n", "20", "-o", str(output)).exit_code == 0
    before = output.stat().st_mtime_ns
    again = _run("generate", "cdl_c_upa64x4", "-n", "20", "-o", str(output))
    assert again.exit_code == 0
    assert output.stat().st_mtime_ns == before


def test_plot_channel_writes_a_picture(tmp_path: Path) -> None:
    output = tmp_path / "channel.png"
    assert _run("plot-channel", "cdl_d_upa64x4", "-o", str(output)).exit_code == 0
    assert output.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert output.stat().st_size > 50_000


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (
            "[frontend]\npilots = 4\nchains = 9\n[bs]\nrows=1\ncolumns=4\n[ue]\nrows=1\ncolumns=2",
            ["frontend.chains", "9"],
        ),
        ("[frontend]\npilots = -4\n[bs]\nrows=1\ncolumns=4\n[ue]\nrows=1\ncolumns=2", ["frontend.pilots = -4"]),
        (None, ["no such scenario file"]),
    ],
    ids=["chains", "negative count", "missing"],
)
def test_mistakes_end_in_one_line_and_code_2(content: str | None, parts: list[str], tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    if content is not None:
        path.write_text(content)
    for command in (["show", str(path)], ["generate", str(path), "-o", str(tmp_path / "x.h5")]):
        result = _run(*command)
        assert result.exit_code == 2
        assert result.stderr.strip().count("\n") == 0
        assert "Traceback" not in result.stderr
        for part in ["bad.toml", *parts]:
            assert part in result.stderr


def test_the_process_itself_ends_in_code_2_without_a_traceback() -> None:
    result = subprocess.run([*COMMAND, "show", "nowhere.toml"], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 2
    assert result.stderr == "error: nowhere.toml: no such scenario file\n"


def test_bad_options_end_in_one_line_and_code_2(tmp_path: Path) -> None:
    for arguments in (
        ["generate", "cdl_c_upa64x4", "-n", "0", "-o", str(tmp_path / "x.h5")],
        ["generate", "cdl_c_upa64x4", "-n", "4", "--split", "dev", "-o", str(tmp_path / "x.h5")],
        ["generate", "cdl_c_upa64x4", "-n", "4", "-o", str(tmp_path / "none" / "x.h5")],
        ["plot-channel", "cdl_c_upa64x4", "-o", str(tmp_path / "x.bmp")],
        ["train", "cdl_c_upa64x4", "-e", "lista", "--device", "gpu", "-o", str(tmp_path)],
        ["train", "cdl_c_upa64x4", "-e", "lista", "--device", "cuda:99", "-o", str(tmp_path)],
    ):
        result = _run(*arguments)
        assert result.exit_code == 2
        assert "Traceback" not in result.stderr
        assert result.stderr.strip().splitlines()[-1].startswith("error: ")


@pytest.fixture
def tiny(few_antennas: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A small scenario and its own folder for weights."""
    monkeypatch.setenv("CHANEST_WEIGHTS", str(tmp_path / "weights"))
    path = tmp_path / "tiny.toml"
    path.write_text(f'description = "a few antennas"\n{few_antennas}[data]\ntrain = 100\n')
    return str(path)


def test_train_list_evaluate_and_report(tiny: str, tmp_path: Path) -> None:
    assert "missing" in _run("estimators", tiny).stdout
    options = ["--snr", "-5:15:10", "--channels", "8", "--no-bounds"]
    left_out = _run("evaluate", tiny, *options, "-o", str(tmp_path / "a"))
    assert left_out.exit_code == 0
    notes = left_out.stderr.strip().splitlines()
    assert len(notes) == 1
    made_by = re.search(r"\(made by: chanest (train \S+ -e [\w,-]+)\)", notes[0])
    assert notes[0].startswith("note: left out: lmmse, gmm, ray-sbl, ")
    assert made_by is not None
    assert made_by[1].split()[1] == tiny
    assert read_study(tmp_path / "a", STUDIES).about.notes == (notes[0].removeprefix("note: "),)
    assert left_out.stdout.rstrip().splitlines()[-1].startswith("next: open the report in a browser")
    trained = _run("train", tiny, "-e", "lmmse", "--steps", "2")
    assert trained.exit_code == 0
    weights = tmp_path / "weights" / "tiny.lmmse.safetensors"
    first = weights.read_bytes()
    assert _run("train", tiny, "-e", "lmmse", "--steps", "2").exit_code == 0
    assert weights.read_bytes() == first
    assert "your own" in _run("estimators", tiny).stdout
    assert "tiny" in _run("estimators").stdout
    output = tmp_path / "b"
    done = _run("evaluate", tiny, "-e", "ls,lmmse", *options, "-o", str(output))
    assert done.exit_code == 0
    assert "| estimator | −5 dB | 10 dB |" in done.stdout
    assert done.stdout.index("| lmmse |") < done.stdout.index("| ls |")
    assert done.stderr == ""
    page = output / "report.html"
    page.unlink()
    again = _run("report", str(output))
    assert again.exit_code == 0
    *shown, following = done.stdout.splitlines()
    assert again.stdout.splitlines() == [*shown, "next: open the report in a browser"]
    assert following.endswith("; the same command with others in --estimators or --snr adds them")
    assert page.is_file()


def test_training_from_pilots_writes_weights_that_say_so_and_are_found(tiny: str, tmp_path: Path) -> None:
    trained = _run("train", tiny, "-e", "lmmse,universal", "--steps", "2", "--from-pilots")
    assert trained.exit_code == 0
    files = sorted(path.name for path in (tmp_path / "weights").iterdir() if not path.name.startswith("."))
    assert files == ["tiny.lmmse.safetensors", "tiny.universal.safetensors"]
    assert all(provenance(tmp_path / "weights" / file)["trained_from"] == "pilots" for file in files)
    assert _run("evaluate", tiny, "-e", "lmmse,universal", "--channels", "4", "--no-bounds", "--snr", "10",
                "-o", str(tmp_path / "run")).exit_code == 0  # fmt: skip


def _evaluation(tiny: str, folder: Path) -> list[str]:
    return ["evaluate", tiny, "-e", "ls,omp", "--snr", "0,10", "--channels", "10", "-o", str(folder), "--no-bounds"]


def test_an_interrupted_evaluation_says_so_and_goes_on(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, real = _evaluation(tiny, tmp_path / "run"), AccuracyStudy.run

    def stopped(self: AccuracyStudy, cell: Cell, context: Context) -> Row:
        if cell["snr_db"] == 10:
            raise KeyboardInterrupt
        return real(self, cell, context)

    with monkeypatch.context() as patch:
        patch.setattr(AccuracyStudy, "run", stopped)
        result = _run(*arguments)
    assert result.exit_code == 130
    assert "the same command goes on" in result.stderr
    assert [record.cell["snr_db"] for record in read_study(tmp_path / "run", STUDIES).records] == [0, 0]
    assert _run(*arguments).exit_code == 0
    assert len(read_study(tmp_path / "run", STUDIES).records) == 6


def _figures(records: list[Record]) -> list[object]:
    """What must not depend on when a run was killed: all but times and the threads that the machine gave."""
    timed = ("ms_batch_1", "ms_batch", "ms_in_passing", "threads")
    return [(each.cell, {key: value for key, value in each.row.items() if key not in timed}) for each in records]


def test_an_evaluation_that_is_killed_at_any_moment_goes_on_to_the_same_rows(tiny: str, tmp_path: Path) -> None:
    """SIGKILL once a random number of rows is written, until a run reaches its end."""
    killed, whole, generator = tmp_path / "killed", tmp_path / "whole", random.Random(5)
    assert _run(*_evaluation(tiny, whole)).exit_code == 0
    kills = 0
    for _ in range(3):
        process = subprocess.Popen(
            [*COMMAND, *_evaluation(tiny, killed)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until = _lines(killed) + generator.randint(0, 2)
        while process.poll() is None and _lines(killed) <= until:
            time.sleep(0.005)
        process.kill()
        kills += process.wait() == -signal.SIGKILL
    assert kills >= 1, "no process was killed in the middle"
    assert _run(*_evaluation(tiny, killed)).exit_code == 0
    ours, theirs = (read_study(folder, STUDIES).records for folder in (killed, whole))
    assert _figures(ours) == _figures(theirs)


def _lines(folder: Path) -> int:
    path = folder / "rows.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_a_second_writer_gets_one_sentence(tiny: str, tmp_path: Path) -> None:
    arguments = _evaluation(tiny, tmp_path / "run")
    first = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while first.poll() is None and not (tmp_path / "run" / "study.json").exists():
            time.sleep(0.005)
        first.send_signal(signal.SIGSTOP)
        second = _run(*arguments)
        first.send_signal(signal.SIGCONT)
    finally:
        first.wait(60)
    assert second.exit_code == 2
    assert second.stderr.startswith("error: another run is writing into ")
    assert second.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate", "TINY", "-e", "lsd"], "unknown estimator 'lsd'; known are ls, lmmse"),
        (["evaluate", "TINY", "-e", "ls,lmmse"], "lmmse has no weights for tiny"),
        (["evaluate", "TINY", "-e", "ls", "--snr", "5:0:9"], "snr must be start:step:stop"),
        (["evaluate", "TINY", "-e", "ls", "--sweep", "speed=3"], "sweep must be one of pilots=8,16"),
        (["evaluate", "TINY", "-e", "ls", "--sweep", "chains=1,4"], "frontend.chains must be at most 2"),
        (["evaluate", "TINY", "-e", "ls", "--channels", "0"], "channels must be an integer of at least 1"),
        (["evaluate", "TINY", "-e", "ls", "--workers", "0"], "workers must be an integer of at least 1"),
        (["evaluate", "TINY", "-e", "ls", "--trained-on", "nowhere"], "nowhere: no such scenario"),
        (["evaluate", "TINY", "-e", "ls", "--no-bounds", "-o", "TINY"], "the output folder cannot be made"),
        (["evaluate", "TINY", "-e", "ls", "--scheduler", "nonsense://1"], "no dask scheduler answers at nonsense://1"),
        (["train", "TINY", "-e", "lsd"], "unknown estimator 'lsd'"),
        (["train", "TINY", "-e", "ls"], "ls has nothing to learn"),
        (["train", "TINY", "-e", "lmmse", "--steps", "0"], "a budget must be positive"),
        (["train", "TINY", "-e", "lmmse", "--budget", "soon"], "budget must be a time such as 90s"),
        (["train", "TINY", "-e", "lmmse", "-o", "TINY"], "the output folder cannot be made"),
        (
            ["train", "TINY", "-e", "omp", "--from-pilots"],
            "omp cannot learn from pilots alone; those that can are lmmse, gmm, gated-lmmse, product-lmmse, universal",
        ),
        (["report", "nowhere"], "holds no finished cells of a study"),
        (["estimators", "nowhere"], "no such scenario"),
    ],
)
def test_mistakes_with_estimators_are_one_line(
    arguments: list[str], message: str, tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = _run(*(tiny if argument == "TINY" else argument for argument in arguments))
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr
    assert not list(tmp_path.rglob("*.json"))
    assert not list(tmp_path.rglob("*.safetensors"))


def test_ranges_budgets_and_sweeps_are_read_as_people_write_them() -> None:
    assert parse_snr("-5:5:25") == (-5.0, 0.0, 5.0, 10.0, 15.0, 20.0, 25.0)
    assert parse_snr("0:0.1:0.3") == (0.0, 0.1, 0.2, 0.3)
    assert parse_snr("-3,7.5") == (-3.0, 7.5)
    assert [parse_budget(text) for text in ("90s", "20min", "1.5h", "2 min")] == [90.0, 1200.0, 5400.0, 120.0]
    assert parse_sweep("pilots=8,16") == ("pilots", (8, 16))
    assert parse_sweep(None) == ("snr", ())
    for wrong in ("", "a", "1:2", "5:-1:0", "0:1:1e9", "0:nan:3"):
        with pytest.raises(ValueError, match="snr"):
            parse_snr(wrong)
    for wrong in ("0s", "5", "-5min", "5 days"):
        with pytest.raises(ValueError, match="budget"):
            parse_budget(wrong)
