"""Vector approximate message passing on an angular grid."""

from typing import ClassVar

from chanest.bases.grid import Choices, Settings, SolverEstimator
from vlista_core.solvers import VAMP


class VAMPEstimator(SolverEstimator):
    """VAMP with a Bernoulli–Gauss prior learned by EM for every sample. ΦΨ is not what it is made for: it is damped well."""

    name = "vamp"
    summary = "vector approximate message passing on an angular grid, prior learned by EM"
    forms_product = True
    longest = 4096
    solver_class = VAMP
    defaults: ClassVar[Settings] = {
        "oversampling": 1.5, "noise_factor": 1.0, "model_error": 0.0, "activity": 0.03, "damping": 0.2, "iterations": 40,
    }  # fmt: skip
    choices: ClassVar[Choices] = {
        "noise_factor": (1.0, 1.5, 2.0, 3.0),
        "damping": (0.2, 0.3, 0.5),
        "iterations": (20, 40, 80),
        "model_error": (0.0, 0.01, 0.05),
        "activity": (0.03, 0.1, 0.3),
        "oversampling": (1.0, 1.5, 2.0),
    }
