"""Bounds on what an estimator can reach. They are told the truth, take a whole batch, and are never estimators."""

from chanest.bounds.base import Bound
from chanest.bounds.cells import GenieCells
from chanest.bounds.covariance import GenieCovariance
from chanest.bounds.cramer_rao import CramerRao
from chanest.bounds.genie import GenieAngles, GenieEnsemble, GenieRays
from chanest.bounds.support import OracleSupport
from chanest.problem import AnyProblem, as_problem

BOUNDS: dict[str, type[Bound]] = {
    bound.name: bound
    for bound in (GenieRays, GenieCells, GenieAngles, GenieEnsemble, GenieCovariance, OracleSupport, CramerRao)
}
"""Name -> class, in the order of tables."""


def get_bound(name: str, problem: AnyProblem) -> Bound:
    """The bound `name` for `problem`, or for a scenario; a ValueError lists the known ones, or says to what it applies.

    problem: what samples are drawn from, or its scenario, as an object, by name or by path.
    """
    if name not in BOUNDS:
        raise ValueError(f"unknown bound {name!r}; known are {', '.join(BOUNDS)}")
    return BOUNDS[name](as_problem(problem))


__all__ = ["BOUNDS", "Bound", "get_bound"]
