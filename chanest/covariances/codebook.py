"""A family of covariances: a few hundred, spread over those that a scenario's channels have given their clusters.

Training samples come with their rays, so the covariance of each is known. k-means on these tables gives the codebook; a
convex combination of its members is again a covariance.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from chanest.covariances.lags import BeamView, LagCovariance, LagLayout
from chanest.fit import Fit
from chanest.problem import ChannelProblem

FLOOR = 2e-3
"""Added to the diagonal of every covariance, against the rounding of files: E|h|² is one."""
_BLOCK = 500
_DIRECTIONS, _DIRECTIONS_FROM = 200, 4000
_ROUNDS = 20
_POINTS = 4096
"""Points whose distances from all centres are worked out at once: small enough to stay in cache."""


class CovarianceCodebook(nn.Module):
    """Tables R_1 … R_K as real vectors, weighted so that their distance is Frobenius' distance of the matrices."""

    def __init__(self, layout: LagLayout, size: int) -> None:
        super().__init__()
        self.layout = layout
        self.members: Tensor
        self.prior: Tensor
        self.register_buffer("members", torch.zeros(size, 2 * layout.shape[0] * layout.shape[1]))
        self.register_buffer("prior", torch.full((size,), 1.0 / size))

    def mixture(self, weights: Tensor, view: BeamView | None = None) -> LagCovariance:
        """Σ_k weight_k R_k. weights: [batch, K], summing to one."""
        return LagCovariance(self._unweighted(weights @ self.members), self.layout, view)

    def member(self, index: Tensor, view: BeamView | None = None) -> LagCovariance:
        """R_k itself. index: k of each sample, [batch]."""
        return LagCovariance(self._unweighted(self.members[index]), self.layout, view)

    def ensemble(self, view: BeamView | None = None) -> LagCovariance:
        """The mean covariance of the training samples."""
        return self.mixture(self.prior[None], view)

    def scores(self, sums: Tensor) -> Tensor:
        """tr(R_k Q) of every member for the lag sums of Q: [batch, receive lags, transmit lags] -> [batch, K]."""
        weight = (2.0 / self.layout.multiplicity.sqrt()).to(sums.device)
        weight[0] /= 2.0
        return torch.view_as_real(sums * weight).flatten(1) @ self.members.mT

    def closeness(self, table: Tensor) -> Tensor:
        """-‖R - R_k‖² up to a constant of the sample, in units of the members' mean distance from their mean: [batch, K]."""
        mean = self.prior @ self.members
        members = self.members - mean
        near = 2 * (self._weighted(table) - mean) @ members.mT - members.square().sum(1)
        return near / members.square().sum(1).mean().clamp_min(1e-30)

    @torch.no_grad()
    def fit(self, problem: ChannelProblem, samples: int, plan: Fit) -> None:
        """From the rays of `samples` training draws."""
        tables = []
        for block in plan.telling(0.0, 0.8).blocks(samples, _BLOCK, "covariances"):
            rays = problem.source.rays(block, seed=plan.seed, split="train")
            tables.append(self._weighted(self.layout.of_rays(problem.source, rays)).half())
        vectors = torch.cat(tables)
        mean = torch.stack([table.float().mean(0) for table in tables]).mean(0)
        directions = _principal(vectors[:_DIRECTIONS_FROM].float() - mean)
        points = torch.cat([(table.float() - mean) @ directions.mT for table in tables])
        labels, count = k_means(points, len(self.prior), plan.seed)
        total = torch.zeros_like(self.members)
        for part, label in zip(tables, torch.split(labels, _BLOCK), strict=True):
            total.index_add_(0, label, part.float())
        total[count == 0] = vectors[: len(count)][count == 0].float()
        self.members = total / count.clamp_min(1)[:, None]
        self.prior = (count + 0.5) / (count + 0.5).sum()
        plan.report(1.0, "codebook")

    def _weighted(self, table: Tensor) -> Tensor:
        weight = self.layout.multiplicity.sqrt().to(table.device)
        return torch.view_as_real(table * weight).flatten(1)

    def _unweighted(self, vector: Tensor) -> Tensor:
        weight = self.layout.multiplicity.sqrt().to(vector.device)
        table = torch.view_as_complex(vector.reshape(len(vector), *self.layout.shape, 2).contiguous()) / weight
        table[:, 0, self.layout.shape[1] // 2] += FLOOR
        return table


def _principal(centred: Tensor) -> Tensor:
    """Orthonormal main directions of rows, through their Gram matrix: [rows, length] -> [at most 200, length]."""
    values, vectors = torch.linalg.eigh((centred @ centred.mT).double())
    kept = int((values > 1e-6 * values[-1]).sum().clamp_max(_DIRECTIONS))
    directions: Tensor = (vectors[:, -kept:].mT.float() @ centred) / values[-kept:].sqrt().float()[:, None]
    return directions


def k_means(points: Tensor, size: int, seed: int) -> tuple[Tensor, Tensor]:
    """The cell of each of `points` [samples, length] and how many each of the `size` cells has.

    A cell that falls empty starts again at a random point.
    """
    generator = torch.Generator().manual_seed(seed)
    centres = points[torch.randint(len(points), (size,), generator=generator)]
    for _ in range(_ROUNDS):
        offset = 0.5 * centres.square().sum(1)
        labels = torch.cat([(some @ centres.mT - offset).argmax(1) for some in torch.split(points, _POINTS)])
        count = torch.bincount(labels, minlength=size)
        centres = torch.zeros_like(centres).index_add_(0, labels, points) / count.clamp_min(1)[:, None]
        empty = int((count == 0).sum())
        centres[count == 0] = points[torch.randint(len(points), (empty,), generator=generator)]
    return labels, count
