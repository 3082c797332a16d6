"""Two processes under torchrun train the model that one process trains."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

from vlista_core import checkpoint, tensorfile

TOYS = Path(__file__).parents[1] / "unit" / "training_toys.py"
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
TORCHRUN += ["--rdzv-endpoint", "localhost:0", "--local-addr", "localhost"]


def start(folder: Path, *launcher: str) -> subprocess.Popen[str]:
    folder.mkdir()
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launcher, str(TOYS), "distributed", str(folder)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def trained_by_one_and_two(folder: Path) -> tuple[Path, Path]:
    """Both at once: they spend most of their time importing torch."""
    processes = [start(folder / "one"), start(folder / "two", *TORCHRUN)]
    try:
        for process in processes:
            output = process.communicate(timeout=80)
            assert process.returncode == 0, output
    finally:
        for process in processes:
            process.kill()
    return folder / "one", folder / "two"


def test_two_processes_train_what_one_trains(tmp_path: Path) -> None:
    one, two = trained_by_one_and_two(tmp_path)
    for name in ("plain", "noisy"):
        check_same_weights_and_losses(one / f"{name}.safetensors", two / f"{name}.safetensors")
    check_equal(two / "noisy.safetensors", two / "resumed.safetensors")
    steps = [int((two / f"seconds.{rank}").read_text()) for rank in (0, 1)]
    assert steps[0] == steps[1] >= 1, "the processes must agree on when a budget in seconds is spent"


def check_same_weights_and_losses(one: Path, two: Path) -> None:
    """To 1e-5. The noisy model draws from the generator it is given, slice by slice, so its noise is the same too."""
    weights, headers = zip(*(tensorfile.read(path, checkpoint.MODEL) for path in (one, two)), strict=True)
    for key, value in weights[0].items():
        torch.testing.assert_close(weights[1][key], value, atol=1e-5, rtol=0)
    losses = [torch.tensor(header["provenance"]["losses"]) for header in headers]
    assert losses[0].shape == (6, 2)
    torch.testing.assert_close(losses[1], losses[0], atol=1e-5, rtol=0)


def check_equal(whole: Path, resumed: Path) -> None:
    """Two processes that broke off and went on end, bit for bit, as two that did not."""
    weights, headers = zip(*(tensorfile.read(path, checkpoint.MODEL) for path in (whole, resumed)), strict=True)
    assert headers[0]["provenance"] == headers[1]["provenance"]
    assert all(torch.equal(value, weights[1][key]) for key, value in weights[0].items())
