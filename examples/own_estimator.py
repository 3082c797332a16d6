"""Your own estimator against all others: write `estimate`, hand it to a study, read the table.

python examples/own_estimator.py [--scenario cdl_c_upa64x4] [--channels 50] [--against all] [--output out/own_estimator]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from torch import Tensor

import chanest
from chanest.studies import STUDIES
from chanest.studies.accuracy import AccuracyStudy, usable_bounds
from chanest.weights import usable_estimators
from vlista_core.estimate import Estimate, Estimator, Measurement
from vlista_core.gaussian import DenseCovariance, condition
from vlista_core.linops import LinearMap
from vlista_core.study import run_study
from vlista_core.study.commands import show


class PowerWeighted(Estimator):
    """Wiener filters in a row: each takes for its prior the angular power that the one before it found.

    h = Ψx on an angular grid Ψ with x ~ CN(0, P), P = diag(p): first flat, then |x̂|² with a floor.
    """

    def __init__(self, dictionary: Tensor, rounds: int = 3) -> None:
        self.dictionary = dictionary  # Ψ: [n, atoms]
        self.rounds = rounds

    def estimate(self, y: Tensor, phi: LinearMap | Tensor, noise_var: Tensor | float) -> Estimate:
        measured = Measurement.checked(y, phi, noise_var)  # errors that name the argument
        psi = self.dictionary
        power = y.real.new_full((len(y), psi.shape[1]), psi.shape[0] / psi.shape[1])  # E‖h‖² = n
        for _ in range(self.rounds):
            prior = DenseCovariance((psi * power[:, None, :]) @ psi.mH)  # R = ΨPΨᴴ: [batch, n, n]
            found = condition(prior, measured)  # C = ΦRΦᴴ + σ²I is factorised here
            energy = (power * (found.gradient @ psi.conj())).abs().square()  # x̂ = PΨᴴΦᴴC⁻¹y
            power = energy + 0.3 * energy.mean(1, keepdim=True)
        return Estimate(found.mean)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--scenario", default="cdl_c_upa64x4", help="a shipped name or the path of a .toml file")
    parser.add_argument("--channels", type=int, default=50, help="test channels")
    parser.add_argument("--against", default="all", help="all, or names with commas between")
    parser.add_argument("--output", type=Path, default=Path("out/own_estimator"), help="where the report goes")
    chosen = parser.parse_args()

    scenario = chanest.load_scenario(chosen.scenario)
    problem = chanest.ChannelProblem(scenario)
    mine = PowerWeighted(problem.dictionary(oversampling=1.0).materialize()[0])
    others = usable_estimators(problem)[0] if chosen.against == "all" else chosen.against.split(",")
    study = AccuracyStudy(
        scenario=scenario, estimators=tuple(others), bounds=usable_bounds(scenario), channels=chosen.channels
    )
    run_study(study.including({"power-weighted": mine}), chosen.output, restart=True)
    show(chosen.output, STUDIES)


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
