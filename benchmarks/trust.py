"""Every estimator with weights under conditions it was not tuned for: none may be not finite, none much worse than zero.

python benchmarks/trust.py [--scenarios cdl_c_upa64x4 …] [--estimators …] [--channels 2000]

A table per scenario: NMSE in dB at SNRs from -20 to 40 dB, with a third, half and twice the pilots, through a DFT codebook, and
in other units of y. Ends with code 1 where an estimate is not finite, or is more than half a decibel worse than an estimate of
zero. `ls` is shown but not judged: least squares follows the noise by definition.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator

import torch

from chanest.problem import ChannelBatch, ChannelProblem
from chanest.scenario import Scenario, load_scenario
from chanest.weights import get_estimator, usable_estimators

SNRS_DB = (-20.0, -10.0, 0.0, 10.0, 20.0, 30.0, 40.0)
UNITS = (1e-6, 1e-2, 1e2, 1e6)
ALLOWED_DB = 0.5
BATCH = 250
NOT_JUDGED = ("ls",)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scenarios", nargs="+", default=["cdl_c_upa64x4", "cdl_mix_upa64x4", "hybrid_64x16"])
    parser.add_argument("--estimators", nargs="+", default=None, help="all that can run where left out")
    parser.add_argument("--channels", type=int, default=2000, help="at each SNR; the other conditions have a tenth")
    parser.add_argument("--seed", type=int, default=77)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    wrong = 0
    for name in chosen.scenarios:
        home = ChannelProblem(load_scenario(name))
        conditions = dict(_conditions(home))
        print(f"\n{name}: NMSE (dB)\n{'':18}", *(f"{label:>8}" for label in conditions), flush=True)
        for estimator in chosen.estimators or usable_estimators(home)[0]:
            cells = []
            for label, (problem, snr_db, unit) in conditions.items():
                count = chosen.channels if label.endswith("dB") else max(1, chosen.channels // 10)
                level = _nmse_db(estimator, home, problem, snr_db, unit, count, chosen.seed)
                bad = level is not None and not level <= ALLOWED_DB and estimator not in NOT_JUDGED
                wrong += bad
                cells.append("refused" if level is None else f"{level:.2f}" + ("!" if bad else ""))
            print(f"{estimator:18}", *(f"{cell:>8}" for cell in cells), flush=True)
    print(f"\n{wrong} figures are not finite or more than {ALLOWED_DB} dB above zero (marked !)")
    return 1 if wrong else 0


def _conditions(home: ChannelProblem) -> Iterator[tuple[str, tuple[ChannelProblem, float, float]]]:
    """Label -> problem, SNR in dB, unit of y."""
    for snr_db in SNRS_DB:
        yield f"{snr_db:g} dB", (home, snr_db, 1.0)
    pilots = home.scenario.frontend.pilots
    for count in (pilots // 3, pilots // 2, 2 * pilots):
        yield f"T={count}", (home.with_pilots(count), 10.0, 1.0)
    content = home.scenario.model_dump()
    content["frontend"].update(beams="dft", pilots=min(pilots, home.arrays[1].ports))
    yield "DFT", (ChannelProblem(Scenario.model_validate(content)), 10.0, 1.0)
    for unit in UNITS:
        yield f"×{unit:g}", (home, 10.0, unit)


def _nmse_db(
    name: str, home: ChannelProblem, problem: ChannelProblem, snr_db: float, unit: float, count: int, seed: int
) -> float | None:
    """NaN where an estimate is not finite; None where the unit is refused."""
    estimator, error, power = get_estimator(name, home), 0.0, 0.0
    for start in range(0, count, BATCH):
        batch: ChannelBatch = problem.sample(min(BATCH, count - start), seed=seed, start=start, snr_db=snr_db)
        try:
            out = estimator.estimate(unit * batch.y, batch.phi, unit**2 * batch.noise_var).signal / unit
        except ValueError as refusal:
            if "Divide y by" not in str(refusal):
                raise
            return None
        error += float((out - batch.signal).abs().double().square().sum())
        power += float(batch.signal.abs().double().square().sum())
    return 10 * math.log10(error / power) if math.isfinite(error) and error > 0 else math.nan


if __name__ == "__main__":
    raise SystemExit(main())
