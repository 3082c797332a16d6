"""From rays to covariances: the response of an array along rays, and its mean over the rays of a cluster."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from chanest.arrays import Array
from chanest.channels.coefficients import Directions, fields, rotation


def field_and_steering(array: Array, orientation: Tensor, zenith: Tensor, azimuth: Tensor) -> tuple[Tensor, Tensor]:
    """Of one end, zenith and azimuth [batch, rays]: field [batch, pol, 2, rays], steering [batch, elements, rays]."""
    toward = Directions.of(zenith, azimuth)
    local = toward.vectors() @ rotation(orientation)
    steering = array.steering_of_cosines(local[..., 1], local[..., 2])
    return fields(array, orientation, toward, local), steering.mT


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
    local = toward.vectors() @ rotation(orientation)
    field = fields(array, orientation, toward, local).reshape(batch, -1, 2, clusters, rays * rays) / rays
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
    step = torch.polar(torch.ones_like(phase), phase)
    powers = [torch.ones_like(step)]
    for _ in range(count - 1):
        powers.append(powers[-1] * step)
    return torch.stack([power.conj() for power in powers[:0:-1]] + powers, dim=-2)
