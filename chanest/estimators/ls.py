"""Least squares: the posterior mean under a white prior and without noise."""

from typing import Self

import torch
from torch import Tensor

from chanest.bases.estimator import ChannelEstimator
from chanest.problem import ChannelProblem
from vlista_core.estimate import Estimate, Measurement
from vlista_core.gaussian import WhiteCovariance, condition
from vlista_core.linalg import cholesky, has_values
from vlista_core.linops import LinearMap
from vlista_core.prox import squared_modulus

_LEAST = 100.0
"""What a pivot of ΦΦᴴ must be, in units of rounding. Where one is less ΦΦᴴ gets as much on its diagonal: directions that no
beam sees are then left out, as a pseudo-inverse leaves them out."""

_CHUNK_ENTRIES = 2**17


class LS(ChannelEstimator):
    """ĥ = Φᴴ(ΦΦᴴ)⁻¹y, of least norm where there are fewer measurements than unknowns."""

    name = "ls"
    summary = "least squares, of least norm where m < n"
    exported_as = ("pt2",)
    forms_product = True
    scale_free = True

    @classmethod
    def build(cls, problem: ChannelProblem) -> Self:
        return cls(problem.signal_length)

    def chunk(self, measured: Measurement) -> int | None:
        """Many subcarriers: few enough samples to stay in cache, several chunks side by side."""
        return None if measured.phi.blocks()[1] == 1 else max(1, _CHUNK_ENTRIES // self.signal_length)

    def infer(self, measured: Measurement) -> Estimate:
        white = WhiteCovariance(measured.y.new_ones(1), self.signal_length)
        without_noise = Measurement(measured.y, measured.phi, torch.zeros_like(measured.noise_var))
        exact = condition(white, without_noise)
        pivots = exact.factor.diagonal(dim1=-2, dim2=-1).real.square().flatten(1)
        least = _LEAST * torch.finfo(pivots.dtype).eps
        poor = pivots.amin(1) < least * pivots.mean(1)
        if not has_values(poor) or not bool(poor.any()):
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
    block, count = phi.blocks()
    matrix = block.materialize()
    factor = cholesky(matrix.mH @ matrix)
    if probes is None:
        identity = torch.eye(block.shape[1], dtype=phi.dtype, device=phi.device)
        return squared_modulus(torch.linalg.solve_triangular(factor, identity, upper=False)).sum(-2).repeat(1, count)
    rows = probes.materialize().mH.unflatten(1, (count, -1))
    return squared_modulus(torch.linalg.solve_triangular(factor[:, None], rows, upper=False)).sum((1, 2))
