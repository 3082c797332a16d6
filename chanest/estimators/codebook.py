"""A family of covariances: a few hundred, spread over those that a scenario's channels have given their clusters.

Training samples come with their rays, so the covariance of each is known. k-means on these tables gives the codebook; a
convex combination of its members is again a covariance. Members are kept as coefficients on a few principal directions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from chanest.estimators.base import Report
from chanest.estimators.toeplitz import LagTable
from chanest.problem import ChannelProblem

FLOOR = 3e-4
"""Added to the diagonal of every covariance, against rounding: E|h|² is one."""
_BLOCK = 500
_DIRECTIONS_FROM = 4000
_ROUNDS = 20


class CovarianceCodebook(nn.Module):
    """Tables R_k = mean + Σ_j coefficient_kj·direction_j, k = 1 … K, as real vectors weighted so that ‖·‖ is Frobenius'."""

    def __init__(self, layout: LagTable, size: int, rank: int) -> None:
        super().__init__()
        self.layout = layout
        length = 2 * layout.shape[0] * layout.shape[1]
        self.mean: Tensor
        self.directions: Tensor
        self.coefficients: Tensor
        self.prior: Tensor
        self.register_buffer("mean", torch.zeros(length))
        self.register_buffer("directions", torch.zeros(rank, length))
        self.register_buffer("coefficients", torch.zeros(size, rank))
        self.register_buffer("prior", torch.full((size,), 1.0 / size))

    def table(self, weights: Tensor) -> Tensor:
        """Σ_k weight_k R_k. weights: [batch, K], summing to one -> [batch, receive lags, transmit lags]."""
        vector = self.mean + weights @ self.coefficients @ self.directions
        return self._unweighted(vector)

    def ensemble(self) -> Tensor:
        """The mean covariance of the training samples: [1, receive lags, transmit lags]."""
        return self._unweighted(self.mean[None])

    def place(self, table: Tensor) -> Tensor:
        """Coefficients of any tables: [batch, receive lags, transmit lags] -> [batch, rank]."""
        return (self._weighted(table) - self.mean) @ self.directions.mT

    def scores(self, sums: Tensor) -> Tensor:
        """tr(R_k Q) of every member, up to a constant of the sample, for the lag sums of Q: -> [batch, K]."""
        weight = (2.0 / self.layout.multiplicity.sqrt()).to(sums.device)
        weight[0] /= 2.0
        return torch.view_as_real(sums * weight).flatten(1) @ self.directions.mT @ self.coefficients.mT

    def closeness(self, place: Tensor) -> Tensor:
        """-‖R - R_k‖² up to a constant of the sample, over the mean squared size of the members: [batch, K]."""
        codes = self.coefficients
        near = 2 * place @ codes.mT - codes.square().sum(1)
        return near / codes.square().sum(1).mean().clamp_min(1e-30)

    @torch.no_grad()
    def fit(self, problem: ChannelProblem, samples: int, *, seed: int, report: Report) -> None:
        """From the rays of `samples` training draws."""
        tables = []
        for first in range(0, samples, _BLOCK):
            indices = range(first, min(samples, first + _BLOCK))
            rays = problem.source.rays(indices, seed=seed, split="train")
            tables.append(self._weighted(self.layout.of_rays(problem.source, rays)).half())
            report(0.8 * indices.stop / samples, "covariances")
        vectors = torch.cat(tables)
        self.mean = torch.stack([part.float().mean(0) for part in torch.split(vectors, _BLOCK)]).mean(0)
        self.directions = _principal(vectors[:_DIRECTIONS_FROM].float() - self.mean, self.directions.shape[0])
        points = torch.cat([(part.float() - self.mean) @ self.directions.mT for part in torch.split(vectors, _BLOCK)])
        self.coefficients, count = k_means(points, len(self.coefficients), seed)
        self.prior = (count + 1.0) / (count + 1.0).sum()
        report(1.0, "codebook")

    def _weighted(self, table: Tensor) -> Tensor:
        weight = self.layout.multiplicity.sqrt().to(table.device)
        return torch.view_as_real(table * weight).flatten(1)

    def _unweighted(self, vector: Tensor) -> Tensor:
        weight = self.layout.multiplicity.sqrt().to(vector.device)
        table = torch.view_as_complex(vector.reshape(len(vector), *self.layout.shape, 2).contiguous()) / weight
        table[:, 0, self.layout.shape[1] // 2] += FLOOR
        return table


def _principal(centred: Tensor, rank: int) -> Tensor:
    """The main directions of rows, through their Gram matrix: [rows, length] -> [rank, length], orthonormal."""
    values, vectors = torch.linalg.eigh((centred @ centred.mT).double())
    kept = min(rank, len(values))
    directions = (vectors[:, -kept:].mT.float() @ centred) / values[-kept:].clamp_min(1e-12).sqrt().float()[:, None]
    missing = torch.zeros(rank - kept, centred.shape[1])
    return torch.cat([directions.flip(0), missing])


def k_means(points: Tensor, size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Centres [size, rank] of `points` [samples, rank] and how many each has; an empty cell restarts at random."""
    generator = torch.Generator().manual_seed(seed)
    centres = points[torch.randint(len(points), (size,), generator=generator)]
    for _ in range(_ROUNDS):
        label = (points @ centres.mT - 0.5 * centres.square().sum(1)).argmax(1)
        count = torch.bincount(label, minlength=size)
        centres = torch.zeros_like(centres).index_add_(0, label, points) / count.clamp_min(1)[:, None]
        empty = int((count == 0).sum())
        centres[count == 0] = points[torch.randint(len(points), (empty,), generator=generator)]
    return centres, count
