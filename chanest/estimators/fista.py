"""FISTA on an angular grid."""

from typing import ClassVar

from chanest.bases.grid import Choices, Settings, SolverEstimator
from vlista_core.solvers import FISTA


class FISTAEstimator(SolverEstimator):
    """FISTA for ½‖y - Ax‖² + λ‖x‖₁ with λ² = level·mean‖a_j‖²·2 log(atoms): a multiple of the universal threshold."""

    name = "fista"
    summary = "l1-regularised least squares on an angular grid by FISTA"
    solver_class = FISTA
    defaults: ClassVar[Settings] = {"oversampling": 2.0, "noise_factor": 0.15, "model_error": 0.0, "iterations": 100}
    choices: ClassVar[Choices] = {
        "noise_factor": (0.04, 0.08, 0.15, 0.25, 0.5),
        "model_error": (0.0, 1e-4, 1e-3, 4e-3),
        "iterations": (30, 100, 300),
        "oversampling": (1.0, 1.5, 2.0),
    }
