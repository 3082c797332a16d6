"""How long `chanest --help` takes, against `python -c "import torch"`, by turns in one run: under 1.3 times is asked for.

python benchmarks/start.py [--turns 7]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

COMMANDS = {
    "import torch": ["-c", "import torch"],
    "chanest --help": ["-m", "chanest", "--help"],
    "chanest evaluate -h": ["-m", "chanest", "evaluate", "-h"],
    "import chanest": ["-c", "import chanest"],
}
LIMIT = 1.3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, default=7)
    turns = parser.parse_args().turns
    rounds = [{name: _seconds(arguments) for name, arguments in COMMANDS.items()} for _ in range(turns)]
    seconds = {name: min(each[name] for each in rounds) for name in COMMANDS}
    for name, taken in seconds.items():
        print(f"{name:20} {1e3 * taken:6.0f} ms {taken / seconds['import torch']:6.2f}")
    print(f"under {LIMIT} is asked for of chanest --help")


def _seconds(arguments: list[str]) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
