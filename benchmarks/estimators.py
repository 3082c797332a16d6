"""How long the estimators take per channel, side by side in one run: gated-lmmse against the mixture, atom-lmmse against SBL.

`universal` is timed for one channel at a time too; `gated-lmmse` and `atom-lmmse` without their guard, which is `universal`.

python benchmarks/estimators.py [--scenario cdl_c_upa64x4] [--batch 256] [--snr 10]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from timing import best_time

import chanest
from chanest.bases.estimator import ChannelEstimator
from chanest.problem import ChannelBatch

NAMES = ("lmmse", "atom-lmmse", "gated-lmmse", "gmm", "universal", "nomp", "sbl")
GUARDED = ("atom-lmmse", "gated-lmmse")
LIMITS = (("gmm", "gated-lmmse", 10.0), ("sbl", "atom-lmmse", 50.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--scenario", default="cdl_c_upa64x4")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--snr", type=float, default=10.0, metavar="DB")
    chosen = parser.parse_args()
    problem = chanest.ChannelProblem(chanest.load_scenario(chosen.scenario))
    batch = problem.sample(chosen.batch, seed=1, snr_db=chosen.snr)
    print(f"{chosen.scenario}, batch {chosen.batch}, {torch.get_num_threads()} threads")
    milliseconds = {}
    for name in NAMES:
        run = _run(chanest.get_estimator(name, problem, guarded=name not in GUARDED), batch)
        rounds = 1 if name in ("sbl", "gmm", "nomp") else 5
        milliseconds[name] = 1e3 * best_time(run, rounds) / chosen.batch
        print(f"{name:10} {milliseconds[name]:8.3f} ms per channel")
    one = problem.sample(1, seed=1, snr_db=chosen.snr)
    alone = best_time(_run(chanest.get_estimator("universal", problem), one), 20)
    print(f"universal  {1e3 * alone:8.3f} ms for one channel alone")
    for slow, fast, least in LIMITS:
        ratio = milliseconds[slow] / milliseconds[fast]
        print(f"{slow} / {fast}: {ratio:.1f} (at least {least:g} is asked for)")


def _run(estimator: ChannelEstimator, batch: ChannelBatch) -> Callable[[], object]:
    return lambda: estimator.estimate(batch.y, batch.phi, batch.noise_var)


if __name__ == "__main__":
    main()
