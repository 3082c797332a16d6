"""What estimation over many subcarriers costs: processor milliseconds per channel on one thread, and peak memory, in one run.

The bandwidth is that of wideband_64x4 (7.7 MHz) throughout, so that more subcarriers lie closer and delays span as many
dimensions of them. Estimators that couple subcarriers are fitted for a moment: what they cost does not depend on how well they
learned. Others take delay modes with their weights of one subcarrier. Each runs in a process of its own, whose peak memory in
estimation is told beside what it had before.

python benchmarks/wideband.py [--names ls,lmmse,…] [--subcarriers 1,4,16,64,256,1024] [--batch 16]
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time

import torch

import chanest
from chanest.bases.estimator import ChannelEstimator
from chanest.estimators import estimator_class
from chanest.fit import Fit
from chanest.problem import ChannelProblem
from chanest.weights import get_estimator

NAMES = ("ls", "lmmse", "cluster-lmmse", "universal")
BANDWIDTH = 64 * 120e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--names", default=",".join(NAMES), help="estimators, with commas between")
    parser.add_argument("--subcarriers", default="1,4,16,64,256,1024")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--only", default="", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    counts = [int(count) for count in chosen.subcarriers.split(",")]
    if chosen.only:
        measure(chosen.only, counts[0], chosen.batch)
        return
    for name in chosen.names.split(","):
        first = 0.0
        for count in counts:
            command = [
                sys.executable,
                __file__,
                "--only",
                name,
                "--subcarriers",
                str(count),
                "--batch",
                str(chosen.batch),
            ]
            words = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
            milliseconds, before, most = (float(word) for word in words)
            first = first or milliseconds
            ratio = f"{milliseconds / first:6.1f} times the first, {count / counts[0]:g} times the subcarriers"
            print(
                f"{name:14} {count:5d} subcarriers {milliseconds:8.2f} ms {before:6.0f} -> {most:.0f} MB {ratio}",
                flush=True,
            )


def measure(name: str, subcarriers: int, batch: int) -> None:
    """Print milliseconds per channel, and peak megabytes before and after."""
    torch.set_num_threads(1)
    scenario = chanest.load_scenario("wideband_64x4")
    spacing = BANDWIDTH / subcarriers
    channel = scenario.channel.model_copy(update={"subcarriers": subcarriers, "subcarrier_spacing": spacing})
    data = scenario.data.model_copy(update={"train": 500})
    problem = chanest.ChannelProblem(scenario.model_copy(update={"channel": channel, "data": data}))
    estimator = _made(name, problem)
    draws = problem.sample(batch, seed=1, snr_db=10.0)
    before, best = _peak(), float("inf")
    for _ in range(4):
        start = time.process_time()
        estimator.estimate(draws.y, draws.phi, draws.noise_var)
        best = min(best, time.process_time() - start)
    print(1e3 * best / batch, before, _peak())


def _made(name: str, problem: ChannelProblem) -> ChannelEstimator:
    """With shipped weights, where those of one subcarrier serve; fitted for a moment where a bandwidth is learned."""
    kind = estimator_class(name)
    if kind.any_scenario or kind.mode_by_mode or not kind.needs_fit:
        return get_estimator(name, problem, substitute=False)
    estimator = kind.build(problem)
    estimator.fit(problem, Fit(steps=6))
    return estimator.eval()


def _peak() -> float:
    """Megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
