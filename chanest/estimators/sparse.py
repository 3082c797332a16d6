"""The solvers of vlista_core on a grid of angles (and delays): OMP, FISTA, AMP, VAMP and Bayesian compressed sensing."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from torch import Tensor

from chanest.dictionaries import KroneckerMap
from chanest.estimators.grid import Choices, GridEstimator, Settings
from chanest.estimators.pursuit import SOMPEstimator, SWOMPEstimator
from vlista_core.checkpoint import register_model
from vlista_core.estimate import Estimate, Measurement
from vlista_core.solvers import AMP, BCS, FISTA, OMP, VAMP, Solver

__all__ = [
    "AMPEstimator",
    "BCSEstimator",
    "FISTAEstimator",
    "OMPEstimator",
    "SOMPEstimator",
    "SWOMPEstimator",
    "VAMPEstimator",
]


class SolverEstimator(GridEstimator):
    """A solver of vlista_core that is told `level` in place of σ²."""

    @abstractmethod
    def solver(self, measurements: int, dictionary: KroneckerMap) -> Solver:
        """The solver that the present settings mean for m measurements."""

    def solve(self, measured: Measurement, dictionary: KroneckerMap) -> Estimate:
        solver = self.solver(measured.y.shape[1], dictionary)
        return solver.estimate(measured.y, measured.phi, self.level(measured))


@register_model
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


@register_model
class FISTAEstimator(SolverEstimator):
    """FISTA for ½‖y - Ax‖² + λ‖x‖₁ with λ² = level·mean‖a_j‖²·2 log(atoms): a multiple of the universal threshold."""

    name = "fista"
    summary = "l1-regularised least squares on an angular grid by FISTA"
    defaults: ClassVar[Settings] = {"oversampling": 2.0, "noise_factor": 0.15, "model_error": 0.0, "iterations": 100}
    choices: ClassVar[Choices] = {
        "noise_factor": (0.04, 0.08, 0.15, 0.25, 0.5),
        "model_error": (0.0, 1e-4, 1e-3, 4e-3),
        "iterations": (30, 100, 300),
        "oversampling": (1.0, 1.5, 2.0),
    }

    def solver(self, measurements: int, dictionary: KroneckerMap) -> Solver:
        return FISTA(dictionary=dictionary, iterations=int(self.settings["iterations"]))


@register_model
class AMPEstimator(SolverEstimator):
    """AMP with a threshold of `alpha` standard deviations of its effective noise, which it finds itself: σ² is not used.

    ΦΨ has correlated columns, more so on a finer grid, and AMP diverges sooner or later: few iterations are part of it.
    """

    name = "amp"
    summary = "approximate message passing on an angular grid"
    defaults: ClassVar[Settings] = {"oversampling": 1.0, "alpha": 1.6, "iterations": 3}
    choices: ClassVar[Choices] = {
        "alpha": (1.14, 1.3, 1.45, 1.6, 1.8, 2.2),
        "iterations": (2, 3, 4, 5, 10),
        "oversampling": (1.0, 1.5),
    }

    def solver(self, measurements: int, dictionary: KroneckerMap) -> Solver:
        return AMP(dictionary=dictionary, alpha=self.settings["alpha"], iterations=int(self.settings["iterations"]))

    def level(self, measured: Measurement) -> Tensor:
        return measured.noise_var


@register_model
class VAMPEstimator(SolverEstimator):
    """VAMP with a Bernoulli–Gauss prior learned by EM for every sample. ΦΨ is not what it is made for: it is damped well."""

    name = "vamp"
    summary = "vector approximate message passing on an angular grid, prior learned by EM"
    forms_product = True
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

    def solver(self, measurements: int, dictionary: KroneckerMap) -> Solver:
        return VAMP(
            dictionary=dictionary,
            activity=self.settings["activity"],
            damping=self.settings["damping"],
            iterations=int(self.settings["iterations"]),
        )


@register_model
class BCSEstimator(SolverEstimator):
    """Bayesian compressed sensing: the fast relevance vector machine, an atom at a time, with σ² = level."""

    name = "bcs"
    summary = "Bayesian compressed sensing (fast relevance vector machine) on an angular grid"
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

    def solver(self, measurements: int, dictionary: KroneckerMap) -> Solver:
        return BCS(
            dictionary=dictionary,
            admission=self.settings["admission"],
            iterations=int(self.settings["iterations"]),
        )
