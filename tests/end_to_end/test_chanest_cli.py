"""The command line: lists, shows, generates, survives a kill, draws, and ends mistakes in one line and code 2."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from chanest.channels import store
from chanest.cli import app

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
    *_, flags = store._layout(partial)
    return int(store._memory_maps(partial, (flags,), mode="r")["written"].sum())


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
