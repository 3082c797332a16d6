"""Two processes under torchrun train the model that one process trains."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from vlista_core import tensorfile

TOYS = Path(__file__).parents[1] / "unit" / "training_toys.py"
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
TORCHRUN += ["--rdzv-endpoint", "localhost:0", "--local-addr", "localhost"]


def start(folder: Path, *launcher: str) -> subprocess.Popen[str]:
    folder.mkdir()
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launcher, str(TOYS), "distributed", str(folder)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("distributed")
    processes = [start(folder / "one"), start(folder / "two", *TORCHRUN)]
    try:
        for process in processes:
            output = process.communicate(timeout=80)
            assert process.returncode == 0, output
    finally:
        for process in processes:
            process.kill()
    return folder / "one", folder / "two"


@pytest.mark.parametrize("name", ["plain", "noisy"])
def test_two_processes_give_the_weights_and_losses_of_one_to_1e_5(runs: tuple[Path, Path], name: str) -> None:
    """`noisy` draws from the generator it is given, slice by slice, so its noise is the same too."""
    one, two = (tensorfile.read(folder / f"{name}.safetensors", purpose="test") for folder in runs)
    for key, value in one[0].items():
        torch.testing.assert_close(two[0][key], value, atol=1e-5, rtol=0, msg=key)
    losses = [torch.tensor(header["provenance"]["losses"]) for _, header in (one, two)]
    assert losses[0].shape == (6, 2)
    torch.testing.assert_close(losses[1], losses[0], atol=1e-5, rtol=0)


def test_the_processes_agree_on_when_a_budget_in_seconds_is_spent(runs: tuple[Path, Path]) -> None:
    """Both end, with as many steps each: a process that took one more would wait for the other for ever."""
    steps = [(runs[1] / f"seconds.{rank}").read_text() for rank in (0, 1)]
    assert steps[0] == steps[1]
    assert int(steps[0]) > 5
