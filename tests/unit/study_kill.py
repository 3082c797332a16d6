"""Kill a study again and again: at random moments, and in the middle of writing a row."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from vlista_core.study import Study

ROOT = Path(__file__).parents[2]
_SCRIPT = """
import importlib, os, random, signal, sys, time
from pathlib import Path
from vlista_core.study import run_study
from vlista_core.study.store import Store

module, kind, configuration, folder, times, longest, seed = sys.argv[1:]
study = getattr(importlib.import_module(module), kind).model_validate_json(configuration)
random.seed(int(seed))
whole = Store.append

def append(store, record):
    global left
    left -= 1
    if left >= 0:
        return whole(store, record)
    line = record.model_dump_json().encode()
    with store.rows.open("ab") as file:
        file.write(line[: random.randint(1, len(line))])
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)

killed = 0
for attempt in range(int(times)):
    left = random.randint(0, 3) if attempt % 2 else 10**9
    moment = random.uniform(0.0, float(longest))
    child = os.fork()
    if child == 0:
        Store.append = append
        run_study(study, Path(folder))
        os._exit(0)
    if attempt % 2 == 0:
        time.sleep(moment)
        os.kill(child, signal.SIGKILL)
    killed += os.WIFSIGNALED(os.waitpid(child, 0)[1])
print(killed)
"""


def kill_often(study: Study, folder: Path, *, times: int, longest: float, seed: int) -> int:
    """Run `study` into `folder` so many times and kill it each time with SIGKILL; returns how often it was still running.

    Every first time at a random moment within `longest` seconds, every second time while a row is being written. Fields
    that are no part of the configuration keep their defaults.
    """
    kind = type(study)
    command = [sys.executable, "-c", _SCRIPT, kind.__module__, kind.__name__, study.model_dump_json(), str(folder)]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "unit")])
    done = subprocess.run(
        [*command, str(times), str(longest), str(seed)], check=True, cwd=ROOT, timeout=600, stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    return int(done.stdout.split()[-1])
