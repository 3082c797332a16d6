"""How the benchmarks time and weigh things."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import torch
from torch.utils.benchmark import Timer


def best_time(run: Callable[[], object], seconds: float = 2.0) -> float:
    """Seconds of the fastest of the runs that fit into `seconds` (at least one), after one that does not count."""
    timer = Timer("run()", globals={"run": run}, num_threads=torch.get_num_threads())
    return min(timer.blocked_autorange(min_run_time=seconds).times)


def forget_peak() -> None:
    """Let the peak of this process's memory start again (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")


def memory(field: str) -> float:
    """MiB of this process (Linux): "VmRSS" is now, "VmHWM" the peak."""
    found = re.search(rf"{field}:\s+(\d+)", Path("/proc/self/status").read_text())
    if found is None:
        raise ValueError(f"field must be one of /proc/self/status such as VmRSS or VmHWM, got {field!r}")
    return int(found[1]) / 1024
