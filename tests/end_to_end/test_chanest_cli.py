"""The command line: lists, shows, generates, survives a kill, draws, trains, evaluates; mistakes are one line, code 2."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import pytest
from typer.testing import CliRunner, Result

from chanest import estimators
from chanest.cli import app
from chanest.cli.estimators import parse_budget, parse_snr, parse_sweep
from chanest.evaluation import cells

COMMAND = [sys.executable, "-m", "chanest"]


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


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
    """How many chunks of a file under construction are flagged as done."""
    if not partial.exists():
        return 0
    with h5py.File(partial, "r", locking=False) as file:
        return int(file["written"][:].sum())


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
            "[frontend]\nframes = 4\nchains = 9\n[bs]\nrows=1\ncolumns=4\n[ue]\nrows=1\ncolumns=2",
            ["frontend.chains", "9"],
        ),
        ("[frontend]\nframes = -4\n[bs]\nrows=1\ncolumns=4\n[ue]\nrows=1\ncolumns=2", ["frontend.frames = -4"]),
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
    ):
        result = _run(*arguments)
        assert result.exit_code == 2
        assert "Traceback" not in result.stderr
        assert result.stderr.strip().splitlines()[-1].startswith("error: ")


TINY = """
description = "a few antennas"
[bs]
rows = 4
columns = 2
yaw_spread = 60.0
[ue]
rows = 2
columns = 1
[frontend]
frames = 6
[data]
train = 100
"""


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A small scenario, its own folder for weights, and two estimators to choose from."""
    monkeypatch.setenv("CHANEST_WEIGHTS", str(tmp_path / "weights"))
    monkeypatch.setattr(estimators, "_PLACES", {name: estimators._PLACES[name] for name in ("ls", "lmmse")})
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return str(path)


def test_train_list_evaluate_and_report(tiny: str, tmp_path: Path) -> None:
    assert "missing" in _run("estimators", tiny).stdout
    left_out = _run("evaluate", tiny, "--snr", "-5:15:10", "--channels", "20", "-o", str(tmp_path / "a"), "--no-bounds")
    assert left_out.exit_code == 0
    assert left_out.stderr.strip() == (
        "note: lmmse is left out: lmmse has no weights for tiny; train them with: chanest train tiny -e lmmse"
    )
    trained = _run("train", tiny, "-e", "lmmse", "--budget", "5s")
    assert trained.exit_code == 0
    assert (tmp_path / "weights" / "tiny.lmmse.safetensors").is_file()
    assert "your own" in _run("estimators", tiny).stdout
    assert "tiny" in _run("estimators").stdout
    output = tmp_path / "b"
    done = _run(
        "evaluate", tiny, "-e", "all", "--snr", "-5:15:10", "--channels", "20", "-o", str(output), "--no-bounds"
    )
    assert done.exit_code == 0
    assert "| estimator | −5 dB | 10 dB |" in done.stdout
    assert done.stdout.index("| lmmse |") < done.stdout.index("| ls |")
    assert done.stderr == ""
    page = output / "report.html"
    page.unlink()
    again = _run("report", str(output))
    assert again.exit_code == 0
    assert again.stdout == done.stdout
    assert page.is_file()


def test_an_interrupted_evaluation_says_so_and_goes_on(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [
        "evaluate",
        tiny,
        "-e",
        "ls",
        "--snr",
        "0,10",
        "--channels",
        "10",
        "-o",
        str(tmp_path / "run"),
        "--no-bounds",
    ]
    real = cells.run_cell

    def stopped(cell: cells.Cell) -> dict[str, cells.Json]:
        if cell["snr_db"] == 10:
            raise KeyboardInterrupt
        return real(cell)

    monkeypatch.setattr(cells, "run_cell", stopped)
    result = _run(*arguments)
    assert result.exit_code == 130
    assert "the same command goes on" in result.stderr
    assert not (tmp_path / "run" / "results.json").exists()
    monkeypatch.setattr(cells, "run_cell", real)
    assert _run(*arguments).exit_code == 0
    rows = json.loads((tmp_path / "run" / "results.json").read_text())["rows"]
    assert [row["snr_db"] for row in rows] == [0, 10]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate", "TINY", "-e", "lsd"], "unknown estimator 'lsd'; known are ls, lmmse"),
        (["evaluate", "TINY", "-e", "ls,lmmse"], "lmmse has no weights for tiny"),
        (["evaluate", "TINY", "-e", "ls", "--snr", "5:0:9"], "snr must be start:step:stop"),
        (["evaluate", "TINY", "-e", "ls", "--sweep", "speed=3"], "sweep must be one of frames=8,16"),
        (["evaluate", "TINY", "-e", "ls", "--sweep", "chains=1,4"], "frontend.chains must be at most 2"),
        (["evaluate", "TINY", "-e", "ls", "--channels", "0"], "channels must be an integer of at least 1"),
        (["evaluate", "TINY", "-e", "ls", "--workers", "0"], "workers must be an integer of at least 1"),
        (["evaluate", "TINY", "-e", "ls", "--trained-on", "nowhere"], "nowhere: no such scenario"),
        (["evaluate", "TINY", "-e", "ls", "--no-bounds", "-o", "TINY"], "the output folder cannot be made"),
        (["evaluate", "TINY", "-e", "ls", "--scheduler", "nonsense://1"], "no dask scheduler answers at nonsense://1"),
        (["train", "TINY", "-e", "lsd"], "unknown estimator 'lsd'"),
        (["train", "TINY", "-e", "ls"], "ls has nothing to learn"),
        (["train", "TINY", "-e", "lmmse", "--budget", "soon"], "budget must be a time such as 90s"),
        (["train", "TINY", "-e", "lmmse", "-o", "TINY"], "the folder for weights cannot be made"),
        (["report", "nowhere"], "holds no finished evaluation"),
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
    assert parse_sweep("frames=8,16") == ("frames", (8, 16))
    assert parse_sweep(None) == ("snr", ())
    for wrong in ("", "a", "1:2", "5:-1:0", "0:1:1e9", "0:nan:3"):
        with pytest.raises(ValueError, match="snr"):
            parse_snr(wrong)
    for wrong in ("0s", "5", "-5min", "5 days"):
        with pytest.raises(ValueError, match="budget"):
            parse_budget(wrong)
