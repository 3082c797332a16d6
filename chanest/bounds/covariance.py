"""Covariances of channels whose rays are known: sums of Kronecker products, or one column a ray; n × n is never formed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from chanest.arrays import Array
from chanest.bounds.base import Truth
from chanest.channels.geometry import Directions, fields, rotation
from chanest.frontend import BeamformingMap
from vlista_core.linalg import solve_hermitian


@dataclass(frozen=True)
class KroneckerSum:
    """R = Σ_k T_k ⊗ S_k for channels of one subcarrier, of each sample or (batch 1) of all."""

    tx: Tensor
    """T_k: [batch or 1, terms, N_t, N_t]."""
    rx: Tensor
    """S_k: [batch or 1, terms, N_r, N_r]."""

    def without_empty_terms(self) -> KroneckerSum:
        """The same sum without the terms that are zero in every sample."""
        tx, rx = (torch.view_as_real(factor).flatten(2).any(2) for factor in (self.tx, self.rx))
        kept = (tx & rx).any(0)
        return KroneckerSum(self.tx[:, kept], self.rx[:, kept])

    def dense(self) -> Tensor:
        """R itself: [batch or 1, n, n]."""
        size = self.tx.shape[2] * self.rx.shape[2]
        return torch.einsum("bkij,bkrs->birjs", self.tx, self.rx).reshape(-1, size, size)

    def seen(self, phi: BeamformingMap) -> Tensor:
        """ΦRΦᴴ: the entry of chains c of frame t and c' of t' is Σ_k (f_tᵀT_k f_t'*)·(w_tcᴴ S_k w_t'c'). [batch, m, m]."""
        frames, chains, m = phi.frames, phi.chains, phi.shape[0]
        beams = phi.transmit[:, None].mT @ self.tx @ phi.transmit[:, None].conj()
        if phi.weights is None:
            total = beams.flatten(2).mT @ self.rx.flatten(2)
            total = total.reshape(-1, frames, frames, chains, chains).transpose(2, 3)
            return total.reshape(-1, m, m)
        combiners = phi.weights.movedim(2, 1).flatten(2)
        total = torch.zeros(phi.batch, frames, chains, frames, chains, dtype=beams.dtype)
        for term in range(beams.shape[1]):
            combined = combiners.mH @ self.rx[:, term] @ combiners
            total.addcmul_(beams[:, term, :, None, :, None], combined.reshape(total.shape))
        return total.reshape(-1, m, m)

    def apply(self, z: Tensor) -> Tensor:
        """R z. z: [batch, n] -> [batch, n]."""
        matrices = z.reshape(len(z), 1, self.tx.shape[-1], -1)
        return (self.tx @ matrices @ self.rx.mT).sum(1).flatten(1)

    def lmmse(self, truth: Truth) -> Tensor:
        """RΦᴴ(ΦRΦᴴ + σ²I)⁻¹y: [batch, n]."""
        covariance = self.seen(truth.phi)
        covariance.diagonal(dim1=1, dim2=2).add_(truth.noise_var[:, None])
        weights = solve_hermitian(covariance, truth.y[..., None])[..., 0]
        return self.apply(truth.phi.adjoint(weights))


@dataclass(frozen=True)
class Columns:
    """Channels h = Σ_k c_k (d_k ⊗ a_k): one column for each unknown coefficient."""

    delay: Tensor
    """d_k: [batch, S, columns]."""
    space: Tensor
    """a_k, columns of vec(H) of one subcarrier: [batch, n/S, columns]."""

    def combine(self, coefficients: Tensor) -> Tensor:
        """h. coefficients: [batch, columns] -> [batch, n]."""
        return ((self.delay * coefficients[:, None, :]) @ self.space.mT).flatten(1)

    def gram(self) -> Tensor:
        """The matrix of the inner products of all columns: [batch, columns, columns]."""
        return (self.delay.mH @ self.delay) * (self.space.mH @ self.space)

    def seen(self, phi: BeamformingMap) -> Columns:
        """The columns as they appear in y. phi: the map of one subcarrier."""
        batch, _, columns = self.space.shape
        arriving = phi.transmit.mT @ self.space.reshape(batch, phi.transmit.shape[1], -1)
        arriving = arriving.reshape(batch, phi.frames, -1, columns)
        received = arriving if phi.weights is None else phi.weights.mH @ arriving
        return Columns(self.delay, received.flatten(1, 2))

    def lmmse(self, truth: Truth) -> Tensor:
        """ĥ for coefficients of mean zero and variance one: [batch, n]. The smaller of the two systems is solved."""
        seen = self.seen(truth.one_subcarrier)
        if self.delay.shape[1] == 1 and seen.space.shape[1] < seen.space.shape[2]:
            matrix = seen.delay * seen.space
            covariance = matrix @ matrix.mH
            covariance.diagonal(dim1=1, dim2=2).add_(truth.noise_var[:, None])
            coefficients = (matrix.mH @ solve_hermitian(covariance, truth.y[..., None]))[..., 0]
        else:
            gram = seen.gram()
            gram.diagonal(dim1=1, dim2=2).add_(truth.noise_var[:, None])
            matched = (seen.delay.conj() * (truth.per_subcarrier() @ seen.space.conj())).sum(1)
            coefficients = solve_hermitian(gram, matched[..., None])[..., 0]
        return self.combine(coefficients)


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
