"""Least squares: the posterior mean under a white prior and without noise."""

from typing import Self

import torch
from torch import Tensor

from chanest.bases.estimator import ChannelEstimator
from chanest.problem import ChannelProblem
from vlista_core.estimate import Estimate, Measurement
from vlista_core.gaussian import WhiteCovariance, condition
from vlista_core.linalg import cholesky
from vlista_core.linops import LinearMap

_LEAST = 100.0
"""What a pivot of ΦΦᴴ must be, in units of rounding. Where one is less ΦΦᴴ gets as much on its diagonal: directions that no
beam sees are then left out, as a pseudo-inverse leaves them out."""


class LS(ChannelEstimator):
    """ĥ = Φᴴ(ΦΦᴴ)⁻¹y, of least norm where there are fewer measurements than unknowns."""

    name = "ls"
    summary = "least squares, of least norm where m < n"
    forms_product = True
    scale_free = True

    @classmethod
    def build(cls, problem: ChannelProblem) -> Self:
        return cls(problem.signal_length)

    def infer(self, measured: Measurement) -> Estimate:
        white = WhiteCovariance(measured.y.new_ones(1), self.signal_length)
        without_noise = Measurement(measured.y, measured.phi, torch.zeros_like(measured.noise_var))
        exact = condition(white, without_noise)
        pivots = exact.factor.diagonal(dim1=1, dim2=2).real.square()
        least = _LEAST * torch.finfo(pivots.dtype).eps
        poor = pivots.amin(1) < least * pivots.mean(1)
        if poor.is_meta or not bool(poor.any()):
            return Estimate(exact.mean)
        return Estimate(torch.where(poor[:, None], condition(white, without_noise, floor=least).mean, exact.mean))

    def spread(self, measured: Measurement, found: Estimate, probes: LinearMap | None) -> Tensor | None:
        """σ²·diag(P(ΦᴴΦ)⁻¹Pᴴ); with fewer measurements than unknowns nothing bounds the errors, and it is None."""
        m, n = measured.phi.shape
        if m < n:
            return None
        return measured.noise_var[:, None] * _unbiased_spread(measured.phi, probes)


def _unbiased_spread(phi: LinearMap, probes: LinearMap | None) -> Tensor:
    """diag(P(ΦᴴΦ)⁻¹Pᴴ): [batch, n or p]."""
    matrix = phi.materialize()
    identity = torch.eye(phi.shape[1], dtype=phi.dtype, device=phi.device)
    rows = identity if probes is None else probes.materialize()
    white = torch.linalg.solve_triangular(cholesky(matrix.mH @ matrix), rows.mH, upper=False)
    return torch.view_as_real(white).square().sum((-3, -1))
