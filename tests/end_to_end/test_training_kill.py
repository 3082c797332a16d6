"""A run killed again and again ends with the weights of a run never killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from vlista_core import checkpoint, tensorfile

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has neither fork nor SIGKILL")
TOYS = Path(__file__).parents[1] / "unit" / "training_toys.py"


def test_weights_after_real_sigkills_are_bit_for_bit_those_of_an_undisturbed_run(tmp_path: Path) -> None:
    """Six kills at random moments, two inside the writing of the file; the model draws noise and meets NaN losses."""
    done = subprocess.run(
        [sys.executable, str(TOYS), "kill", str(tmp_path)], capture_output=True, text=True, timeout=80, check=True
    )
    assert json.loads(done.stdout) == [-signal.SIGKILL] * 8 + [0]
    whole, header = tensorfile.read(tmp_path / "whole.safetensors", checkpoint.MODEL)
    killed, other = tensorfile.read(tmp_path / "killed.safetensors", checkpoint.MODEL)
    assert {name: value.numpy().tobytes() for name, value in whole.items()} == {
        name: value.numpy().tobytes() for name, value in killed.items()
    }
    assert header["provenance"] == other["provenance"]
    assert isinstance(header["provenance"], dict)
    assert header["provenance"]["messages"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "killed.safetensors",
        "run.safetensors",
        "whole.safetensors",
    ]
