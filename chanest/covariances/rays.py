"""From rays to covariances: the response of an array along rays, and its mean over the rays of a cluster."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from chanest.arrays import Array
from chanest.channels.coefficients import Directions, RayFactors, local_and_field
from chanest.channels.rays import Rays
from chanest.channels.source import ChannelSource

Means = Callable[[Tensor], Tensor]
"""Means over the rays of each cluster, from steering vectors [batch, clusters, rays, N] -> [batch, clusters, k]."""


def field_and_steering(array: Array, orientation: Tensor, zenith: Tensor, azimuth: Tensor) -> tuple[Tensor, Tensor]:
    """Of one end, zenith and azimuth [batch, rays]: field [batch, pol, 2, rays], steering [batch, elements, rays]."""
    local, field = local_and_field(array, orientation, Directions.of(zenith, azimuth))
    return field, array.steering_of_cosines(local[..., 1], local[..., 2]).mT


def cluster_products(source: ChannelSource, rays: Rays, receive: Means, transmit: Means) -> Tensor:
    """Σ_c P_c r_c t_cᵀ over the clusters of each sample, with r_c and t_c as `receive` and `transmit` give them.

    -> [batch, k of r, k of t]. Which ray of one end goes with which of the other is not known.
    """
    factors = source.factors(rays)
    power = factors.gains.abs().square().sum(dim=(1, 2)) * source.scale**2
    return _products(rays, factors, power[:, None], receive, transmit)[:, 0]


def polarised_products(source: ChannelSource, rays: Rays, receive: Means, transmit: Means) -> Tensor:
    """Σ_c G_c r_c t_cᵀ with G_c = Σ_ray g gᴴ of the gains g of its rays for every pair of polarisations, in place of P_c.

    -> [batch, P, P, k of r, k of t], P pairs of a transmit and a receive polarisation, the receive one running faster.
    """
    factors = source.factors(rays)
    gains = factors.gains.transpose(1, 2).flatten(1, 2) * source.scale
    count = gains.shape[1]
    if count == 1:
        return _products(rays, factors, gains.abs().square(), receive, transmit)[:, None]
    outer = (gains[:, :, None] * gains[:, None].conj()).flatten(1, 2)
    products: Tensor = _products(rays, factors, outer, receive, transmit).unflatten(1, (count, count))
    return products


def _products(rays: Rays, factors: RayFactors, weights: Tensor, receive: Means, transmit: Means) -> Tensor:
    """Σ_c w_c r_c t_cᵀ, w_c the sum over the rays of a cluster. weights: [batch, w, rays] -> [batch, w, k of r, k of t]."""
    clusters, per_cluster = rays.aoa.shape[1:]
    diffuse = clusters * per_cluster

    def some(part: slice, count: int) -> Tensor:
        received, sent = (
            means(steering[:, part].reshape(len(rays), count, -1, steering.shape[2]))
            for means, steering in ((receive, factors.rx), (transmit, factors.tx))
        )
        total = weights[..., part].reshape(*weights.shape[:2], count, -1).sum(3)
        weighted = received.mT[:, None] * total[:, :, None]
        return (weighted.flatten(1, 2) @ sent).reshape(*weighted.shape[:3], -1)

    product = some(slice(0, diffuse), clusters)
    if weights.shape[2] > diffuse:  # The last ray is the line of sight: a cluster of its own.
        product = product + some(slice(diffuse, None), 1)
    return product


def cluster_covariances(array: Array, orientation: Tensor, zenith: Tensor, azimuth: Tensor) -> Tensor:
    """E vvᴴ of the θ and of the φ response v, over all pairs of an azimuth and a zenith of a cluster.

    zenith, azimuth: [batch, clusters, rays] -> [batch, clusters, 2, ports, ports]. Two elements of a uniform array
    see a phase that depends on their distance alone, so only the lags of each axis are averaged.
    """
    batch, clusters, rays = zenith.shape
    toward = Directions.of(
        zenith[..., :, None].expand(-1, -1, -1, rays).flatten(1),
        azimuth[..., None, :].expand(-1, -1, rays, -1).flatten(1),
    )
    local, field = local_and_field(array, orientation, toward)
    field = field.reshape(batch, -1, 2, clusters, rays * rays) / rays
    across, down = (
        _ramps((step * cosine).reshape(batch, clusters, -1), count)
        for step, cosine, count in (
            (2 * math.pi * array.horizontal_spacing, local[..., 1], array.columns),
            (-2 * math.pi * array.vertical_spacing, local[..., 2], array.rows),
        )
    )
    place = torch.arange(array.elements)
    column, row = place // array.rows, place % array.rows
    columns_apart, rows_apart = (
        index[:, None] - index + count - 1 for index, count in ((column, array.columns), (row, array.rows))
    )
    polarisations = len(array.slants)
    shape = (batch, clusters, 2, polarisations, array.elements, polarisations, array.elements)
    result = torch.zeros(shape, dtype=torch.complex128)
    for component in range(2):
        for p in range(polarisations):
            for q in range(polarisations):
                power = field[:, p, component] * field[:, q, component]
                if bool(power.any()):
                    lags = (across * power[:, :, None, :]) @ down.mT
                    result[:, :, component, p, :, q, :] = lags[:, :, columns_apart, rows_apart]
    return result.reshape(batch, clusters, 2, array.ports, array.ports)


def _ramps(phase: Tensor, count: int) -> Tensor:
    """exp(j·lag·phase) for lags 1 - count … count - 1. phase: [..., pairs] -> [..., 2·count - 1, pairs]."""
    angle = torch.arange(1 - count, count)[:, None] * phase[..., None, :]
    return torch.polar(torch.ones_like(angle), angle)
