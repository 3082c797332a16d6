"""The Cramér–Rao bound for channels of a few paths."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from chanest.arrays import Array
from chanest.bounds.base import Bound, Truth, chunks
from chanest.channels.paths import PathSource
from chanest.channels.rays import Rays
from chanest.channels.source import ChannelSource
from chanest.covariances.columns import ColumnCovariance
from chanest.problem import ChannelBatch, ChannelProblem
from vlista_core.estimate import Estimate
from vlista_core.linalg import solve_hermitian
from vlista_core.linops import LinearMap


class CramerRao(Bound):
    """E‖ĥ - h‖² of an estimator without bias that knows the number of paths: tr(J F⁻¹ Jᴴ), F = 2/σ² Re((ΦJ)ᴴΦJ).

    The unknowns of a path are its complex gain, its direction at both ends and, with several subcarriers, its delay. A
    direction is described by its cosine along each axis on which the array has more than one element: the bound on h is
    the same for every choice of coordinates, and this one has no singular point.
    """

    name = "crb"
    label = "Cramér–Rao bound"
    passable = True  # by what has a bias
    summary = (
        "least variance without bias where only gains, directions and delays of few paths are unknown; plain paths"
    )

    @classmethod
    def applies(cls, problem: ChannelProblem) -> bool:
        return isinstance(problem.source, PathSource) and problem.sees_all_subcarriers_alike

    def bound(self, batch: ChannelBatch) -> Estimate:
        raise ValueError("the Cramér–Rao bound is a bound on the error and has no estimate; ask for nmse_db or errors")

    def errors(self, batch: ChannelBatch) -> Tensor:
        """The bound on E‖ĥ - h‖² of every sample: [batch], float64."""
        return torch.cat([_least_error(self.problem.source, truth) for truth in chunks(batch, self.problem)])


def path_derivatives(source: ChannelSource, rays: Rays) -> ColumnCovariance:
    """∂h/∂θ; for all paths: gain (real part, imaginary part), cosines of arrival, of departure, delay.

    The parts of a gain are relative to its present value, so that columns are of one size.
    """
    amplitude = source.scale * rays.powers.double().sqrt()
    gain = torch.polar(amplitude, rays.phases[:, :, 0, 0].double())
    rx, rx_slopes = _steering(source.rx, rays.zoa, rays.aoa)
    tx, tx_slopes = _steering(source.tx, rays.zod, rays.aod)
    delay, delay_slope = _delay(source, rays)
    ends = [(tx, rx), *((tx, slope) for slope in rx_slopes), *((slope, rx) for slope in tx_slopes)]
    seen_of_gain, *others = [(left[:, :, None] * right[:, None]).flatten(1, 2) * gain[:, None] for left, right in ends]
    pairs = [(delay, seen_of_gain), (delay, 1j * seen_of_gain), *((delay, column) for column in others)]
    if delay.shape[1] > 1:
        pairs.append((delay_slope, seen_of_gain))
    return ColumnCovariance(torch.cat([time for time, _ in pairs], 2), torch.cat([space for _, space in pairs], 2))


def _least_error(source: ChannelSource, truth: Truth) -> Tensor:
    spread = _spread(path_derivatives(source, truth.rays), truth.measured.phi)
    return truth.measured.noise_var / 2 * spread.diagonal(dim1=1, dim2=2).sum(1)


def _spread(derivatives: ColumnCovariance, phi: LinearMap) -> Tensor:
    """(Re (ΦJ)ᴴΦJ)⁻¹ Re JᴴJ, whose trace the bound has: [batch, unknowns, unknowns]."""
    information = derivatives.gram_seen(phi).real
    size = information.diagonal(dim1=1, dim2=2).rsqrt()
    scaled = size[:, :, None] * size[:, None, :]
    return solve_hermitian(information * scaled, derivatives.inner_products().real * scaled)


def _steering(array: Array, zenith: Tensor, azimuth: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Steering vectors of an upright end and their derivatives by the direction cosines: [batch, elements, paths]."""
    zenith, azimuth = zenith.flatten(1).double(), azimuth.flatten(1).double()
    steering = array.steering(zenith, azimuth).mT
    place = 2j * math.pi * array.positions()[: array.elements, :, None]
    axes = [axis for axis, count in ((1, array.columns), (2, array.rows)) if count > 1]
    return steering, [place[:, axis] * steering for axis in axes]


def _delay(source: ChannelSource, rays: Rays) -> tuple[Tensor, Tensor]:
    """The response on the subcarriers and its derivative by the delay in symbol times: [batch, S, paths]."""
    assert isinstance(source, PathSource)
    delays = rays.delays.double()

    def response(value: Tensor) -> Tensor:
        return source.delay_response(replace(rays, delays=value))

    derivatives: tuple[Tensor, Tensor] = torch.func.jvp(
        response, (delays,), (torch.full_like(delays, source.symbol_time),)
    )[:2]
    return derivatives
