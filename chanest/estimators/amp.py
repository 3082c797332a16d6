"""Approximate message passing on an angular grid."""

from typing import ClassVar

from chanest.bases.grid import Choices, Settings, SolverEstimator
from vlista_core.solvers import AMP


class AMPEstimator(SolverEstimator):
    """AMP with a threshold of `alpha` standard deviations of its effective noise, which it finds itself: σ² is not used.

    ΦΨ has correlated columns, more so on a finer grid, and AMP diverges sooner or later: few iterations are part of it.
    """

    name = "amp"
    summary = "approximate message passing on an angular grid"
    solver_class = AMP
    defaults: ClassVar[Settings] = {"oversampling": 1.0, "alpha": 1.6, "iterations": 3}
    choices: ClassVar[Choices] = {
        "alpha": (1.14, 1.3, 1.45, 1.6, 1.8, 2.2),
        "iterations": (2, 3, 4, 5, 10),
        "oversampling": (1.0, 1.5),
    }
