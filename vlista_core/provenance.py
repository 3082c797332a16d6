"""What figures depend on besides their settings: versions, machine, commit, date; no paths and no names of machines."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from vlista_core.tensorfile import Json


def environment(*packages: str) -> dict[str, Json]:
    """Versions (of `packages` too), the kind of machine and the commit, as they are now."""
    return {
        "versions": versions(*packages),
        "machine": {
            "system": platform.system(),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "torch_threads": torch.get_num_threads(),
        },
        "commit": _commit(),
    }


def now() -> str:
    """The date and time, UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def versions(*packages: str) -> dict[str, Json]:
    """Of Python, of the packages that all figures depend on and of `packages`; None for what is not installed."""
    found: dict[str, Json] = {"python": platform.python_version()}
    for name in ("vlista", "torch", "numpy", *packages):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def _commit() -> str | None:
    """The commit of a checkout, with a mark where files were changed since."""
    root = Path(__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return None
    try:
        command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def peak_gigabytes() -> float | None:
    """The most memory that this process has held since it began, None where the system does not tell."""
    try:
        import resource
    except ImportError:
        return None
    unit = 1.0 if sys.platform == "darwin" else 1024.0
    return round(unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e9, 2)
