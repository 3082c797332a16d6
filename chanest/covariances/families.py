"""Families of covariances: a codebook made from rays, and the components of a mixture fitted to channels.

Training samples come with their rays, so the covariance of each is known. k-means on these tables gives the codebook; a
convex combination of its members is again a covariance.
"""

import torch
from torch import Tensor, nn

from chanest.arrays import Array
from chanest.covariances.kronecker import KroneckerCovariance
from chanest.covariances.lag_layout import LagLayout
from chanest.covariances.lags import BeamView, LagCovariance
from chanest.fit import Fit
from chanest.problem import ChannelProblem
from vlista_core.estimate import Measurement
from vlista_core.gaussian import condition
from vlista_core.linalg import cholesky
from vlista_core.linops import IdentityMap

FLOOR = 2e-3
"""Added to the diagonal of every member of a codebook, against the rounding of files, and the least eigenvalue that a component
may have: E|h|² is one."""
ASSUMED_NOISE = 0.1
"""Of channels when they are given to components. Without it the faintest directions decide, and a few components take all."""
_BLOCK = 500
_DIRECTIONS, _DIRECTIONS_FROM = 200, 4000
_ROUNDS = 20
_AMPLITUDES = 2000
"""Channels whose amplitudes are worked out at once."""
_POINTS = 4096
"""Points whose distances from all centres are worked out at once: small enough to stay in cache."""
_PROJECTIONS = 3
_FLIPS = 2


class CovarianceCodebook(nn.Module):
    """Tables R_1 … R_K as real vectors, weighted so that their distance is Frobenius' distance of the matrices."""

    def __init__(self, layout: LagLayout, size: int) -> None:
        super().__init__()
        self.layout = layout
        self.members: Tensor = nn.Buffer(torch.zeros(size, 2 * layout.shape[0] * layout.shape[1]))
        self.prior: Tensor = nn.Buffer(torch.full((size,), 1.0 / size))

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
        weight = (self.layout.sides / self.layout.multiplicity.sqrt()).to(sums.device)
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
            rays = problem.rays(block, seed=plan.seed, split="train")
            tables.append(self._weighted(self.layout.of_rays(problem.source, rays)).half())
        vectors = torch.cat(tables)
        mean = torch.stack([table.float().mean(0) for table in tables]).mean(0)
        directions = principal(vectors[:_DIRECTIONS_FROM].float() - mean)
        points = torch.cat([(table.float() - mean) @ directions.mT for table in tables])
        labels, count = k_means(points, len(self.prior), plan.seed)
        total = torch.zeros_like(self.members)
        for part, label in zip(tables, torch.split(labels, _BLOCK), strict=True):
            total.index_add_(0, label, part.float())
        total[count == 0] = vectors[: len(count)][count == 0].float()
        self.members = total / count.clamp_min(1)[:, None]
        self.prior = (count + 0.5) / (count + 0.5).sum()
        plan.report(1.0, "codebook")

    def take(self, tables: Tensor, prior: Tensor) -> None:
        """Members from tables of lags, [K, receive kinds, transmit lags], and their probabilities, [K]."""
        self.members, self.prior = self._weighted(tables), prior

    def _weighted(self, table: Tensor) -> Tensor:
        weight = self.layout.multiplicity.sqrt().to(table.device)
        return torch.view_as_real(table * weight).flatten(1)

    def _unweighted(self, vector: Tensor) -> Tensor:
        weight = self.layout.multiplicity.sqrt().to(vector.device)
        table = torch.view_as_complex(vector.reshape(vector.shape[0], *self.layout.shape, 2).contiguous()) / weight
        table[:, self.layout.own, self.layout.shape[1] // 2] += FLOOR
        return table


def principal(centred: Tensor) -> Tensor:
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


def angular_cells(channels: Tensor, rx: Array, tx: Array, size: int, seed: int) -> Tensor:
    """Which of `size` cells of angular amplitudes each channel is in: [channels, n] -> [channels].

    Amplitudes are on a grid twice as fine as the transmit array's own.
    """
    shape = (len(tx.slants) * tx.columns, tx.rows, len(rx.slants) * rx.columns, rx.rows)
    sizes = (2 * shape[0], 2 * shape[1], *shape[2:])
    blocks = [part.reshape(-1, *shape) for part in torch.split(channels, _AMPLITUDES)]
    amplitude = torch.cat([torch.fft.fftn(part, s=sizes, dim=(1, 2, 3, 4)).abs().flatten(1) for part in blocks])
    amplitude = amplitude / amplitude.square().sum(1, keepdim=True).sqrt()
    return k_means(amplitude, size, seed)[0]


class LagComponents(nn.Module):
    """R_1 … R_K as tables of lags."""

    def __init__(self, rx: Array, tx: Array, size: int) -> None:
        super().__init__()
        self.layout = LagLayout(rx, tx)
        self.tables: Tensor = nn.Buffer(torch.zeros(size, *self.layout.shape, dtype=torch.complex64))

    def covariances(self) -> LagCovariance:
        """All of them, as one family."""
        return LagCovariance(self.tables, self.layout)

    def estimate(self, k: int, channels: Tensor) -> None:
        """Set R_k from channels [count, n]: averages along diagonals, then back and forth to positive definite."""
        self.estimate_from(k, channels.mT @ channels.conj() / len(channels))

    def estimate_from(self, k: int, covariance: Tensor) -> None:
        """R_k from any covariance [n, n], in the same way."""
        table = self.layout.of_matrix(covariance[None])
        for _ in range(_PROJECTIONS):
            values, vectors = torch.linalg.eigh(self.layout.matrix(table))
            positive = (vectors * values.clamp_min(FLOOR)[:, None, :]) @ vectors.mH
            table = self.layout.of_matrix(positive)
        least = float(torch.linalg.eigvalsh(self.layout.matrix(table)).min())
        table[:, self.layout.own, self.layout.shape[1] // 2] += max(0.0, 0.5 * FLOOR - least)
        self.tables[k] = table[0]

    def log_density(self, k: int, channels: Tensor) -> Tensor:
        """log CN(h; 0, R_k + noise) up to a constant: [count, n] -> [count]."""
        noise = torch.full((len(channels),), ASSUMED_NOISE)
        direct = Measurement(channels, IdentityMap(channels.shape[1], channels.dtype), noise)
        return condition(self.covariances().select(torch.tensor([k])), direct).log_evidence


class KroneckerComponents(nn.Module):
    """R_k = T_k ⊗ S_k, transmit and receive covariance; the same methods as LagComponents."""

    def __init__(self, rx: Array, tx: Array, size: int) -> None:
        super().__init__()
        self.transmit: Tensor = nn.Buffer(torch.eye(tx.ports, dtype=torch.complex64).repeat(size, 1, 1))
        self.receive: Tensor = nn.Buffer(torch.eye(rx.ports, dtype=torch.complex64).repeat(size, 1, 1))

    def covariances(self) -> KroneckerCovariance:
        return KroneckerCovariance(self.transmit[:, None], self.receive[:, None])

    def estimate(self, k: int, channels: Tensor) -> None:
        """T_k and S_k by turns, each with the other whitened."""
        grid = channels.reshape(len(channels), self.transmit.shape[1], -1)
        transmit = torch.eye(grid.shape[1], dtype=grid.dtype)
        receive = torch.eye(grid.shape[2], dtype=grid.dtype)
        for _ in range(_FLIPS):
            left = _inverse_factor(transmit) @ grid
            receive = _floored((left.mT @ left.conj()).mean(0) / grid.shape[1])
            right = grid @ _inverse_factor(receive).mT
            transmit = _floored((right @ right.mH).mean(0) / grid.shape[2])
        self.transmit[k], self.receive[k] = transmit, receive

    def log_density(self, k: int, channels: Tensor) -> Tensor:
        """The noise is put on both factors, so that nothing of size n × n is factorised."""
        grid = channels.reshape(len(channels), self.transmit.shape[1], -1)
        left, right = (
            _inverse_factor(_floored(matrix, ASSUMED_NOISE)) for matrix in (self.transmit[k], self.receive[k])
        )
        distance = (left @ grid @ right.mT).abs().square().sum(dim=(1, 2))
        volumes = [-2 * factor.diagonal().real.log().sum() for factor in (left, right)]
        return -distance - grid.shape[2] * volumes[0] - grid.shape[1] * volumes[1]


def _inverse_factor(covariance: Tensor) -> Tensor:
    """L⁻¹ with LLᴴ = covariance: [n, n]."""
    identity = torch.eye(len(covariance), dtype=covariance.dtype)
    inverse: Tensor = torch.linalg.solve_triangular(cholesky(covariance), identity, upper=False)
    return inverse


def _floored(covariance: Tensor, share: float = FLOOR) -> Tensor:
    """With a share of its mean diagonal added to the diagonal."""
    level = share * covariance.diagonal().real.mean()
    return covariance + level * torch.eye(len(covariance), dtype=covariance.dtype)
