"""The Cramér–Rao bound of few paths for a helper that knows how strong they are and roughly where they come from."""

import math

import torch
from torch import Tensor

from chanest.arrays import Array
from chanest.bounds.base import Bound, Truth, chunks
from chanest.bounds.genie import ray_columns
from chanest.channels.rays import Rays
from chanest.channels.source import ChannelSource
from chanest.covariances.columns import ColumnCovariance
from chanest.problem import ChannelBatch, ChannelProblem
from vlista_core.estimate import Estimate, Measurement
from vlista_core.linalg import solve_hermitian


class GenieCells(Bound):
    """(a′): tr(J F⁻¹ Jᴴ) with F = I + 2/σ² Re((ΦJ)ᴴΦJ), the Cramér–Rao bound where something is known beforehand.

    Every path has a complex gain of known power and, along each axis on which an array has more than one element, a
    direction that is known to a cell of that axis, 1/N of the circle of phases. Columns of J are derivatives by these
    unknowns in units of what is known of them. Unlike genie (a) an estimator has to find directions; unlike the bound
    without prior knowledge this one stays finite where paths are weak. It is local: nobody mistakes one cell for another.
    """

    name = "genie-cells"
    label = "genie (a′): directions known to a cell"
    summary = "Cramér–Rao bound that knows powers of paths and the cell of each direction; rays with one phase each, as traced"

    @classmethod
    def applies(cls, problem: ChannelProblem) -> bool:
        source = problem.source
        return source.from_rays and source.phases_per_ray == 1 and source.frequencies is None

    def bound(self, batch: ChannelBatch) -> Estimate:
        raise ValueError("a Cramér–Rao bound is a bound on the error and has no estimate; ask for nmse_db or errors")

    def errors(self, batch: ChannelBatch) -> Tensor:
        """The bound on E‖ĥ - h‖² of every sample: [batch], float64."""
        return torch.cat([_least_error(self.problem.source, truth) for truth in chunks(batch, self.problem)])


def cell_derivatives(source: ChannelSource, rays: Rays) -> ColumnCovariance:
    """∂h/∂θ for all paths: real and imaginary part of the gain, then the direction along each axis of both ends.

    One standard deviation of what is known is the unit of each: half the power for a part of a gain, 1/√12 of a cell for
    a direction. Entry t·N_r + r of a column: [batch, n, paths · unknowns of a path].
    """
    columns = ray_columns(source, rays)
    paths = columns.space
    of_gain = [factor / math.sqrt(2) * paths for factor in (1.0, 1j)]
    sent, received = _phases_of_a_cell(source.tx), _phases_of_a_cell(source.rx)
    along = [phase.repeat_interleave(source.rx.ports) for phase in sent]
    along += [phase.repeat(source.tx.ports) for phase in received]
    of_direction = [1j * phase.to(paths.device)[:, None] * paths for phase in along]
    kinds = [*of_gain, *of_direction]
    return ColumnCovariance(columns.delay.repeat(1, 1, len(kinds)), torch.cat(kinds, 2))


def _phases_of_a_cell(array: Array) -> list[Tensor]:
    """How much the phase of each port deviates where a direction does within its cell, for each axis: [ports] radians."""
    place = array.positions()
    axes = ((1, array.columns, array.horizontal_spacing), (2, array.rows, array.vertical_spacing))
    return [
        2 * math.pi / math.sqrt(12) / count * place[:, axis] / spacing for axis, count, spacing in axes if count > 1
    ]


def _least_error(source: ChannelSource, truth: Truth) -> Tensor:
    derivatives = cell_derivatives(source, truth.rays)
    spread = solve_hermitian(_information(derivatives, truth.measured), derivatives.inner_products().real)
    return spread.diagonal(dim1=1, dim2=2).sum(1)


def _information(derivatives: ColumnCovariance, measured: Measurement) -> Tensor:
    """F, what y and the helper say of the unknowns: [batch, unknowns, unknowns]."""
    seen = 2 / measured.noise_var[:, None, None] * derivatives.gram_seen(measured.phi).real
    return seen + torch.eye(seen.shape[1], dtype=seen.dtype, device=seen.device)
