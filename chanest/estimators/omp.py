"""Orthogonal matching pursuit on an angular grid."""

from typing import ClassVar

from chanest.bases.grid import Choices, Settings, SolverEstimator
from chanest.dictionaries import KroneckerMap
from vlista_core.solvers import OMP, Solver


class OMPEstimator(SolverEstimator):
    """Orthogonal matching pursuit, stopped when ‖y - Ax‖² ≤ m·level or at `density`·m atoms."""

    name = "omp"
    summary = "orthogonal matching pursuit on an angular grid, stopped at the noise level"
    defaults: ClassVar[Settings] = {"oversampling": 2.0, "noise_factor": 1.4, "model_error": 0.04, "density": 0.25}
    choices: ClassVar[Choices] = {
        "noise_factor": (0.7, 1.0, 1.4, 2.0),
        "model_error": (0.0, 0.02, 0.04, 0.08, 0.12),
        "oversampling": (1.5, 2.0, 3.0),
        "density": (0.15, 0.25, 0.4),
    }

    def solver(self, measurements: int, dictionary: KroneckerMap) -> Solver:
        atoms = max(1, int(self.settings["density"] * measurements))
        return OMP(dictionary=dictionary, n_nonzero=min(atoms, dictionary.shape[1]))
