"""What the posterior of `vlista` on channels has learned: what its variances cover, how its deviations differ, and a control.

python benchmarks/vlista_posterior.py [--weights FILE] [--channels 1000] [--draws 8]
python benchmarks/vlista_posterior.py --control 500     # trains both kinds of deviations for as many steps and compares them
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

import chanest
from chanest.bases.unfolded import starting_dictionary
from chanest.estimators.a_dlista_adaptive import LAYERS
from chanest.estimators.vlista import VLISTAEstimator
from chanest.fit import Fit
from chanest.networks.kronecker_posterior import Deviations
from chanest.networks.kronecker_vlista import KroneckerVLISTA
from chanest.uncertainty.calibrating import negative_log_likelihood
from chanest.uncertainty.estimate import of_samples
from chanest.weights import find_weights, uncalibrated
from vlista_core.metrics import coverage, nmse_db
from vlista_core.models.distributions import Gaussian
from vlista_core.problems import Batch

SNRS_DB = (0.0, 10.0, 20.0)
STARTS = (0.05, 0.01)
"""Where the deviations of both kinds start in a comparison: one number moves slowly."""
VALIDATED, SEED = 1024, 11
"""Validation draws of all SNRs on which bounds are compared, and their seed, which no training looks at."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--scenario", default="cdl_c_upa64x4")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--channels", type=int, default=1000)
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--control", type=int, metavar="STEPS")
    chosen = parser.parse_args()
    problem = chanest.ChannelProblem(chanest.load_scenario(chosen.scenario))
    if chosen.control is not None:
        _compare(problem, chosen.control)
        return
    path = chosen.weights or find_weights("vlista", chosen.scenario)
    estimator = cast(VLISTAEstimator, uncalibrated("vlista", problem, path))
    for snr in SNRS_DB:
        batch = problem.sample(chosen.channels, seed=1, snr_db=snr)
        _report(estimator, batch, f"{snr:g} dB", chosen.draws)
    print(
        "\nbound of validation draws, nats an entry:",
        *(f"{float(part.mean()):.3f}" for part in _bound(estimator, problem)),
    )


def _report(estimator: VLISTAEstimator, batch: Batch, words: str, draws: int) -> None:
    """Coverage and likelihood of the variance of the dictionaries, of δ² and of both; variation of the deviations."""
    plain = estimator.estimate(batch.y, batch.phi, batch.noise_var)
    drawn = estimator.estimate(batch.y, batch.phi, batch.noise_var, n_samples=draws)
    dictionaries = of_samples(cast(Tensor, drawn.samples), None)
    print(f"\n{words}: NMSE {nmse_db(plain.signal, batch.signal):.2f} dB, of the mean of {draws} draws ", end="")
    print(f"{nmse_db(drawn.signal, batch.signal):.2f} dB")
    for name, found, variance in (
        ("dictionaries alone", drawn, dictionaries),
        ("δ² alone", plain, cast(Tensor, plain.own_variance)),
        ("both", drawn, cast(Tensor, drawn.variance)),
    ):
        errors = (found.signal - batch.signal).abs().square()
        share, surprise = coverage(found.signal, variance, batch.signal, 0.9), negative_log_likelihood(errors, variance)
        print(f"  {name:18} 90 % intervals cover {100 * share:5.1f} %, NLL {surprise:8.3f}, {_db(variance):6.1f} dB")
    network = cast(KroneckerVLISTA, estimator.network)
    with torch.no_grad():
        run = network.run(batch.y, batch.phi, batch.noise_var, None)
    for i, factor in enumerate(("transmit", "receive")):
        deviations = [cast(Gaussian, posteriors[i]).deviation[:, 0] for posteriors in run.posteriors]
        over = [_mean([each.std(axis) / each.mean(axis) for each in deviations]) for axis in (0, 1)]
        moved = _mean([(each / network.deviation).log().abs() for each in deviations])
        means = ", ".join(f"{float(each.mean()):.3f}" for each in deviations)
        print(
            f"  deviations, {factor} factor: variation over samples {over[0]:.0%}, over atoms {over[1]:.0%}; ", end=""
        )
        print(f"mean of |ln σ/σ₀| {moved:.2f}; mean by layer {means}")


def _compare(problem: chanest.ChannelProblem, steps: int) -> None:
    """Train with deviations of a network and with one constant, from the same starts on the same draws."""
    bounds: dict[tuple[Deviations, float], list[Tensor]] = {}
    kinds: tuple[Deviations, ...] = ("network", "constant")
    for kind, deviation in product(kinds, STARTS):
        network = KroneckerVLISTA(starting_dictionary(problem), layers=LAYERS, deviation=deviation, deviations=kind)
        estimator = VLISTAEstimator(problem.signal_length, network)
        path = find_weights("a-dlista-adaptive", problem.scenario.name)
        if path is not None:
            estimator.begin_with(uncalibrated("a-dlista-adaptive", problem, path))
        facts = estimator.fit(problem, Fit(steps=steps))
        estimator.eval()
        found = bounds[kind, deviation] = _bound(estimator, problem)
        parts = ", ".join(f"{float(part.mean()):.4f}" for part in found)
        scores = []
        for snr in SNRS_DB:
            batch = problem.sample(300, seed=1, snr_db=snr)
            drawn = estimator.estimate(batch.y, batch.phi, batch.noise_var, n_samples=8)
            errors = (drawn.signal - batch.signal).abs().square()
            scores.append(f"{snr:g} dB: NMSE {estimator.nmse_db(batch):.2f}, ")
            scores.append(f"NLL {negative_log_likelihood(errors, cast(Tensor, drawn.variance)):.3f}; ")
        print(
            f"{kind} from {deviation:g}: {facts['steps']} steps; log likelihood of all layers, weighted KL, ELBO: {parts}"
        )
        print("  ", *scores, flush=True)
    names = ("log likelihood of all layers", "weighted KL", "ELBO")
    for start in STARTS:
        for name, own, other in zip(names, bounds["network", start], bounds["constant", start], strict=True):
            gain = own - other
            print(f"network less constant, both from {start:g}, {name}: {float(gain.mean()):+.4f} ", end="")
            print(f"± {float(gain.std()) / len(gain) ** 0.5:.4f} nats an entry")


@torch.no_grad()
def _bound(estimator: VLISTAEstimator, problem: chanest.ChannelProblem) -> list[Tensor]:
    """Of each validation draw, nats an entry: log likelihood of all layers, weighted divergence, ELBO; [draws] each."""
    network, parts = cast(KroneckerVLISTA, estimator.network), []
    for start in range(0, VALIDATED, 64):
        batch = problem.sample(64, seed=SEED, split="validation", start=start)
        found = network.elbo(batch, torch.Generator().manual_seed(start))
        weight = network.divergence_weight
        parts.append((found.log_likelihood, weight * found.divergence, found.value(weight)))
    return [torch.cat(column) / problem.signal_length for column in zip(*parts, strict=True)]


def _mean(values: list[Tensor]) -> float:
    return float(torch.stack([each.mean() for each in values]).mean())


def _db(variance: Tensor) -> float:
    return 10 * float(variance.mean().log10())


if __name__ == "__main__":
    main()
