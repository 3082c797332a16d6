"""What is lost without ground truth: estimators trained from y and Φ alone beside the same ones trained on channels.

python benchmarks/from_pilots.py [--scenario cdl_c_upa64x4] [--estimators lmmse,gmm,gated-lmmse,universal] [--seconds 300]

Both trainings of an estimator have the same budget of processor time; gated-lmmse is taken without its guard. `universal` is
the shipped one, tuned to the site. Prints NMSE in dB on test draws that all share, and the processor seconds of each training.
"""

from __future__ import annotations

import argparse
import time

import torch

import chanest
from chanest.bases.draws import PooledDraws
from chanest.bases.estimator import ChannelEstimator
from chanest.estimators import estimator_class
from chanest.estimators.universal import Universal
from chanest.fit import Fit
from chanest.networks.universal_training import TUNED_BATCH, Drawn, tune_universal
from chanest.problem import ChannelProblem
from chanest.recordings import ScenarioRecordings
from chanest.weights import find_weights
from vlista_core.estimate import Measurement

SNRS_DB = (0.0, 10.0, 20.0)


def trained(name: str, problem: ChannelProblem, plan: Fit, *, pilots: bool) -> ChannelEstimator:
    """The estimator after its training on channels or on pilots alone."""
    if name == "universal" and not pilots:
        return tuned_on_channels(problem, plan)
    estimator = shipped(problem) if name == "universal" else estimator_class(name).build(problem)
    facts = estimator.fit_from_pilots(ScenarioRecordings(problem), plan) if pilots else estimator.fit(problem, plan)
    print(facts, flush=True)
    return estimator.eval()


def shipped(problem: ChannelProblem) -> Universal:
    """`universal` before it is tuned."""
    estimator = chanest.get_estimator("universal", problem, weights=find_weights("universal", "any"))
    assert isinstance(estimator, Universal)
    return estimator


def tuned_on_channels(problem: ChannelProblem, plan: Fit) -> Universal:
    """`universal` tuned as from pilots, with channels of the scenario in place of those of a mixture."""
    estimator = shipped(problem)
    pool, (rx, tx) = PooledDraws.within(problem, plan), problem.arrays

    def drawn(number: int) -> Drawn:
        batch = pool.sample(TUNED_BATCH, seed=plan.seed, split="train", start=TUNED_BATCH * number)
        return Drawn(batch.signal, Measurement(batch.y, batch.phi, batch.noise_var), rx, tx)

    tune_universal(estimator, drawn, plan)
    return estimator


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scenario", default="cdl_c_upa64x4")
    parser.add_argument("--estimators", default="lmmse,gmm,gated-lmmse,universal")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--channels", type=int, default=300)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    problem = ChannelProblem(chanest.load_scenario(chosen.scenario))
    tests = [problem.sample(chosen.channels, seed=1, snr_db=snr) for snr in SNRS_DB]
    print(
        f"{chosen.scenario}, {chosen.seconds:g} s each, {chosen.channels} test channels, dB at 0 / 10 / 20 dB",
        flush=True,
    )
    for name in chosen.estimators.split(","):
        if name == "universal":
            told(name, "shipped", shipped(problem), tests, 0.0)
        for pilots in (False, True):
            begin = time.process_time()
            estimator = trained(name, problem, Fit(seconds=chosen.seconds, timer=time.process_time), pilots=pilots)
            told(name, "pilots" if pilots else "channels", estimator, tests, time.process_time() - begin)


def told(
    name: str, source: str, estimator: ChannelEstimator, tests: list[chanest.ChannelBatch], seconds: float
) -> None:
    """A line of the table."""
    levels = " / ".join(f"{estimator.nmse_db(batch):.2f}" for batch in tests)
    print(f"{name:12} {source:9} {levels}  {seconds:.0f} processor seconds", flush=True)


if __name__ == "__main__":
    main()
