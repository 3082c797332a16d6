"""Bayesian compressed sensing on an angular grid."""

from typing import ClassVar

from chanest.bases.grid import Choices, Settings, SolverEstimator
from vlista_core.solvers import BCS


class BCSEstimator(SolverEstimator):
    """Bayesian compressed sensing: the fast relevance vector machine, an atom at a time, with σ² = level."""

    name = "bcs"
    summary = "Bayesian compressed sensing (fast relevance vector machine) on an angular grid"
    solver_class = BCS
    defaults: ClassVar[Settings] = {
        "oversampling": 1.5, "noise_factor": 2.0, "model_error": 0.03, "admission": 1.0, "iterations": 100,
    }  # fmt: skip
    choices: ClassVar[Choices] = {
        "noise_factor": (1.5, 2.0, 3.0),
        "model_error": (0.0, 0.03, 0.06),
        "admission": (1.0, 2.0, 4.0),
        "oversampling": (1.5, 2.0),
        "iterations": (30, 100, 300),
    }
