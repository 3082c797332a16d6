"""Channel generation against Sionna's own CDL, each in its own process: throughput and peak memory, in one run.

    python benchmarks/generation.py

Throughput is the median of five calls after a warm-up. Memory is the peak resident set of the process less what it was
just before generating (imports and tables loaded). All processes may use the same cores.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

CHANNELS = 256
LARGE = 1000
REPEATS = 5


def _measured(run: Callable[[], object], repeats: int) -> dict[str, float]:
    before = _resident()
    run()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": statistics.median(seconds), "memory": peak - before, "peak": peak}


def _resident() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def ours() -> dict[str, float]:
    """64×16 CDL-C with random orientation, rays included."""
    from chanest.arrays import upa
    from chanest.channels import CdlSource

    source = CdlSource(upa(8, 8), upa(4, 4))
    source.sample(16, seed=0)
    return _measured(lambda: source.sample(CHANNELS, seed=1), REPEATS)


def sionna(batch: int = CHANNELS) -> dict[str, float]:
    """The same arrays through Sionna's CDL in its default single precision, `batch` random orientations per call."""
    import torch
    from sionna.phy.channel.tr38901 import CDL

    from chanest.arrays import upa
    from chanest.channels.sionna_backend import sionna_array

    carrier = 28e9
    bs, ue = (sionna_array(array, carrier, precision="single") for array in (upa(8, 8), upa(4, 4)))

    def run(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        yaw = torch.rand(count, 3) * torch.tensor([1.0, 0.0, 0.0])
        h: tuple[torch.Tensor, torch.Tensor] = CDL("C", 100e-9, carrier, ue, bs, "downlink", yaw, yaw, device="cpu")(
            count, 1, 1.0
        )
        return h

    run(1)
    return _measured(lambda: [len(run(batch)) for _ in range(CHANNELS // batch)], 3)


def large() -> dict[str, float]:
    """1,000 samples of large_256x16 with beams and measurements."""
    import chanest

    problem = chanest.ChannelProblem(chanest.load_scenario("large_256x16"))
    problem.sample(16, seed=0)
    return _measured(lambda: problem.sample(LARGE, seed=1), 1)


def sionna_by_16() -> dict[str, float]:
    """Sionna in batches of 16, which is kinder to memory and caches."""
    return sionna(16)


CASES: dict[str, Callable[[], dict[str, float]]] = {
    "ours": ours,
    "sionna": sionna,
    "sionna, batches of 16": sionna_by_16,
    "large": large,
}


def _in_its_own_process(case: str) -> dict[str, float]:
    done = subprocess.run([sys.executable, __file__, case], check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    """Run every case and print the ratios."""
    if len(sys.argv) == 2:
        print(json.dumps(CASES[sys.argv[1]]()))
        return
    results = {case: _in_its_own_process(case) for case in CASES}
    for case, result in results.items():
        count = LARGE if case == "large" else CHANNELS
        print(
            f"{case:22s} {count:5d} channels  {1e3 * result['seconds'] / count:8.3f} ms per channel  "
            f"{result['memory'] / 2**20:8.0f} MB over baseline  {result['peak'] / 2**20:8.0f} MB peak"
        )
    for case in ("sionna", "sionna, batches of 16"):
        speed = results[case]["seconds"] / results["ours"]["seconds"]
        memory = results["ours"]["memory"] / results[case]["memory"]
        print(
            f"64x16 CDL-C against {case}: {speed:.1f} times the throughput (goal 15), {memory:.4f} of the memory (goal 0.2)"
        )
    print(f"large_256x16: {results['large']['peak'] / 2**30:.2f} GB peak for {LARGE} samples (goal 2)")


if __name__ == "__main__":
    main()
