"""What the README names is there; its Python blocks are run by `test_stranger.py`, its commands read by `test_guides.py`."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_files_that_the_readme_names_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for path in re.findall(r"`((?:vlista_core|chanest|examples|benchmarks|docs|scenarios)/[\w./]*)`", text):
        assert (ROOT / path).exists(), path


def test_the_example_prints_a_table_and_saves_a_figure(tmp_path: Path) -> None:
    command = [sys.executable, "examples/sparse_recovery.py", "--samples", "4", "--output", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "vamp" in done.stdout
    assert (tmp_path / "sparse_recovery.png").stat().st_size > 10_000


def test_a_wrong_argument_of_the_example_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    command = [sys.executable, "examples/sparse_recovery.py", "--samples", "0", "--output", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--samples must be at least 1" in done.stderr
    assert "Traceback" not in done.stderr
