"""How the benchmarks time and weigh things."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path


def best_time(run: Callable[[], object], repeats: int) -> float:
    """Seconds of the fastest of several runs, after one that does not count."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def forget_peak() -> None:
    """Let the peak of this process's memory start again (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")


def memory(field: str) -> float:
    """MiB of this process (Linux): "VmRSS" is now, "VmHWM" the peak."""
    found = re.search(rf"{field}:\s+(\d+)", Path("/proc/self/status").read_text())
    if found is None:
        raise ValueError(f"field must be one of /proc/self/status such as VmRSS or VmHWM, got {field!r}")
    return int(found[1]) / 1024
