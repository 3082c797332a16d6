"""Simultaneous OMP: one support of angles for all subcarriers, coefficients of its own for each."""

from typing import ClassVar

from torch import Tensor

from chanest.bases.grid import Choices, GridEstimator, Settings
from chanest.dictionaries import KroneckerMap, angular_dictionary
from chanest.frontend import BeamformingMap
from vlista_core.estimate import Estimate, Measurement
from vlista_core.linops import LinearMap
from vlista_core.solvers.omp import pursue


class SOMPEstimator(GridEstimator):
    """Simultaneous OMP (Tropp, Gilbert & Strauss 2006) on the angles; no grid of delays.

    Each round adds the atom with the largest Σ_k |a_jᴴr_k|/‖a_j‖ over the residuals r_k of the subcarriers and projects
    every y_k on the atoms so far, until the residuals together are within S·m·level or at `density`·m atoms. Measurements
    are taken as they come: behind combiners that are not orthogonal the noise is coloured, and SOMP does not look. With
    one subcarrier it is OMP.
    """

    name = "somp"
    mode_by_mode = False
    summary = "simultaneous OMP: one set of angles for all subcarriers"
    alike_subcarriers = True
    defaults: ClassVar[Settings] = {"oversampling": 1.5, "noise_factor": 1.0, "model_error": 0.02, "density": 0.25}
    choices: ClassVar[Choices] = {
        "noise_factor": (0.7, 1.0, 1.4, 2.0),
        "model_error": (0.0, 0.02, 0.04, 0.08, 0.12),
        "oversampling": (1.5, 2.0, 3.0),
        "density": (0.15, 0.25, 0.4),
    }

    def grid(self) -> KroneckerMap:
        return angular_dictionary(self.link.rx, self.link.tx, None, oversampling=self.settings["oversampling"])

    def solve(self, measured: Measurement, dictionary: KroneckerMap) -> Estimate:
        leveled = Measurement(measured.y, measured.phi, self.level(measured))
        code, taken = self.pursue(leveled, dictionary)
        return Estimate(dictionary.apply(code.flatten(0, 1)).reshape(len(code), -1), code.flatten(1), iterations=taken)

    def pursue(self, system: Measurement, dictionary: KroneckerMap) -> tuple[Tensor, Tensor]:
        """The code [batch, S, atoms] that brings the mean |y - Ax|² to system.noise_var, and its rounds [batch]."""
        subcarriers = self.link.subcarriers

        def correlate(phi: LinearMap, residual: Tensor) -> Tensor:
            back = phi.adjoint(residual.flatten(1)).reshape(len(residual) * subcarriers, -1)
            return dictionary.adjoint(back).abs().reshape(len(residual), subcarriers, -1).sum(1)

        density = max(1, int(self.settings["density"] * (system.y.shape[1] // subcarriers)))
        return pursue(
            system,
            min(density, dictionary.shape[1]),
            atoms=lambda phi: one_subcarrier(phi, subcarriers) @ dictionary,
            correlate=correlate,
            vectors=subcarriers,
        )


def one_subcarrier(phi: LinearMap, subcarriers: int) -> LinearMap:
    """Φ₁ of Φ = I_S ⊗ Φ₁: what the beams measure of each subcarrier."""
    if subcarriers == 1:
        return phi
    if not isinstance(phi, BeamformingMap) or phi.subcarriers != subcarriers:
        came = f"one of {phi.subcarriers}" if isinstance(phi, BeamformingMap) else type(phi).__name__
        raise ValueError(
            f"phi must be a BeamformingMap of {subcarriers} subcarriers, which tells what the beams measure of each, "
            f"got {came}"
        )
    return phi.one_subcarrier()
