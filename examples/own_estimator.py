"""Your own estimator against all others: write `estimate`, hand it to `evaluate`, read the table.

python examples/own_estimator.py [--scenario cdl_c_upa64x4] [--channels 50] [--against all] [--output out/own_estimator]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from chanest.estimators.linear import whitened
from torch import Tensor

import chanest
from chanest.evaluation import Plan, evaluate, usable_bounds, usable_estimators
from chanest.report import write_report
from chanest.tables import headline, main_tables
from vlista_core.estimate import Estimate, Estimator, Measurement
from vlista_core.linops import LinearMap
from vlista_core.tables import print_table


class PowerWeighted(Estimator):
    """Wiener filters in a row: each takes for its prior the angular power that the one before it found.

    h = Ψx on an angular grid Ψ; x̂ = PAᴴ(APAᴴ + σ²I)⁻¹y with A = ΦΨ and P = diag(p), first flat, then |x̂|² with a floor.
    """

    def __init__(self, dictionary: Tensor, rounds: int = 3) -> None:
        self.dictionary = dictionary  # Ψ: [n, atoms]
        self.rounds = rounds

    def estimate(self, y: Tensor, phi: LinearMap | Tensor, noise_var: Tensor | float) -> Estimate:
        measured = Measurement.checked(y, phi, noise_var)  # errors that name the argument
        a = measured.phi.apply_block(self.dictionary[None])  # [batch, m, atoms]
        n, atoms = self.dictionary.shape
        power = y.real.new_full((len(y), atoms), n / atoms)  # E‖h‖² = n
        for _ in range(self.rounds):
            weights = whitened((a * power[:, None, :]) @ a.mH, measured)
            code = power * (weights[:, None, :] @ a.conj())[:, 0]
            energy = code.abs().square()
            power = energy + 0.3 * energy.mean(1, keepdim=True)
        return Estimate(code @ self.dictionary.mT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--scenario", default="cdl_c_upa64x4", help="a shipped name or the path of a .toml file")
    parser.add_argument("--channels", type=int, default=50, help="test channels")
    parser.add_argument("--against", default="all", help="all, or names with commas between")
    parser.add_argument("--output", type=Path, default=Path("out/own_estimator"), help="where the report goes")
    chosen = parser.parse_args()

    scenario = chanest.load_scenario(chosen.scenario)
    mine = PowerWeighted(chanest.ChannelProblem(scenario).dictionary(oversampling=1.0).materialize()[0])
    others = usable_estimators(scenario)[0] if chosen.against == "all" else chosen.against.split(",")
    plan = Plan(
        scenario,
        estimators=("power-weighted", *others),
        bounds=tuple(usable_bounds(scenario)),
        channels=chosen.channels,
    )
    results = evaluate(plan, chosen.output, extra={"power-weighted": mine}, restart=True)
    page = write_report(results, chosen.output)
    for table in main_tables(results):
        print_table(table)
    print(headline(results))
    print(f"Report: {page}")


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
