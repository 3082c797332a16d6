"""Simultaneous weighted OMP: one support of angles for all subcarriers, on whitened measurements."""

from typing import ClassVar

import torch
from torch import Tensor

from chanest.bases.grid import Settings
from chanest.dictionaries import KroneckerMap
from chanest.estimators.somp import SOMPEstimator
from chanest.frontend import whitened_measurement
from vlista_core.estimate import Estimate, Measurement
from vlista_core.linops import LinearMap


class SWOMPEstimator(SOMPEstimator):
    """Simultaneous weighted OMP (Rodríguez-Fernández et al. 2018): SOMP on whitened measurements.

    Three things set it apart from `somp`. It whitens y and Φ by the noise covariance of the combiners where the front end
    has not done so, which makes correlations and residuals those of maximum likelihood. Unless fitted it stops as
    published, when the mean squared residual is down to σ², whatever the grid leaves unexplained. And an unknown σ² of
    several subcarriers is estimated from the residual of a pursuit to the last atom, over the degrees of freedom left.
    """

    name = "sw-omp"
    summary = "simultaneous weighted OMP: as somp on whitened measurements, stopped at the noise"
    alike_subcarriers = True
    defaults: ClassVar[Settings] = {"oversampling": 2.0, "noise_factor": 1.0, "model_error": 0.0, "density": 0.25}

    def solve(self, measured: Measurement, dictionary: KroneckerMap) -> Estimate:
        return super().solve(whitened_measurement(measured), dictionary)

    def unknown_noise(self, y: Tensor, phi: LinearMap) -> Tensor:
        subcarriers = self.link.subcarriers
        if subcarriers == 1:
            return super().unknown_noise(y, phi)
        silent = whitened_measurement(Measurement(y, phi, torch.zeros_like(y[:, 0].real)))
        dictionary = self.dictionary_for(y)
        code, taken = self.pursue(silent, dictionary)
        residual = silent.y - silent.phi.apply(dictionary.apply(code.flatten(0, 1)).reshape(len(y), -1))
        freedom = y.shape[1] - subcarriers * taken
        return residual.abs().square().sum(1) / freedom.clamp_min(1)
