"""The genie ladder: the LMMSE filter of a helper that knows the rays, the angles of the clusters, or the ensemble.

On average (a) ≤ (b) ≤ (c), as each knows more than the next. Every sample is taken by itself: an estimator that looks at
several snapshots of a moving user is not bounded.
"""

from functools import cached_property

import torch
from torch import Tensor

from chanest.arrays import Array, Sector
from chanest.bounds.base import Genie
from chanest.channels.cdl import CdlModel, CdlSource, cdl_table
from chanest.channels.rays import Rays, strengths
from chanest.channels.source import ChannelSource
from chanest.covariances.columns import ColumnCovariance
from chanest.covariances.kronecker import KroneckerCovariance
from chanest.covariances.modes import ModeCovariance
from chanest.covariances.rays import cluster_covariances, field_and_steering
from chanest.problem import ChannelProblem
from vlista_core.gaussian import Covariance

_ORIENTATIONS = 16
_LEAST_MODE = 1e-12
"""Power of the weakest delay mode that is kept, of that of all."""
_LINE_OF_SIGHT = torch.tensor([1.0, -1.0], dtype=torch.float64)
"""The diagonal of the polarisation matrix of the line of sight."""


class _CdlGenie(Genie):
    """One for channels of the CDL models."""

    @classmethod
    def applies(cls, problem: ChannelProblem) -> bool:
        source = problem.source
        return isinstance(source, CdlSource) and source.phases_are_random and problem.sees_all_subcarriers_alike


class GenieRays(Genie):
    """(a): everything of the rays is known but their phases, which are independent: h = Σ c_ray a_ray.

    The four entries of a ray's polarisation matrix have phases of their own, so a dual polarised link has four columns
    a ray; a traced path has one phase in all and one column. A line of sight is one more ray, and needs a random phase.
    """

    name = "genie-rays"
    label = "genie (a): rays known"
    summary = "LMMSE that knows each ray and its power, not the phases; a line of sight must have a random phase"

    @classmethod
    def applies(cls, problem: ChannelProblem) -> bool:
        source = problem.source
        return source.from_rays and source.phases_are_random and problem.sees_all_subcarriers_alike

    def prior(self, rays: Rays) -> ColumnCovariance:
        return ray_columns(self.problem.source, rays)


class GenieAngles(_CdlGenie):
    """(b): orientation and angles of the clusters are known, not which angles meet in a ray.

    R = Σ_c P_c T_c ⊗ S_c, each factor averaged over all pairs of an azimuth and a zenith of the cluster, for each
    component of the fields. Over many subcarriers a cluster has its delay too, d_c d_cᴴ ⊗ P_c T_c ⊗ S_c.
    """

    name = "genie-angles"
    label = "genie (b): angles known"
    summary = "LMMSE that knows model, orientation and cluster angles, not the coupling of rays; CDL"

    def prior(self, rays: Rays) -> Covariance:
        """R of every sample; one for all where all have the same."""
        model = rays.model[:, None].to(rays.rx_orientation)
        place = torch.cat([model, rays.rx_orientation, rays.tx_orientation, rays.delays, rays.powers], 1)
        distinct, which = torch.unique(place, dim=0, return_inverse=True)
        first = torch.full((len(distinct),), len(rays)).scatter_reduce(0, which, torch.arange(len(rays)), "amin")
        found = rays.select(first)
        known, response = _cluster_sum(self.problem.source, found), self.problem.source.delay_response(found)
        whole = _over_subcarriers(known, response * (found.powers > 0)[:, None])
        return whole if len(distinct) == 1 else whole.select(which)


class GenieEnsemble(_CdlGenie):
    """(c): one covariance for all channels of the scenario, the mean of (b) over orientations and models.

    The two ends turn independently of each other, so the mean of a cluster's Kronecker product is the product of means,
    taken by quadrature over each sector: no draw is involved.
    """

    name = "genie-ensemble"
    label = "genie (c): ensemble known"
    passable = True
    summary = "LMMSE that knows the exact covariance of the ensemble; CDL"

    @cached_property
    def covariance(self) -> Covariance:
        """R, of batch 1."""
        source = self.problem.source
        assert isinstance(source, CdlSource)
        parts = [_model_sum(source, model) for model in source.models]
        tx, rx = torch.cat([part.tx for part in parts], 1), torch.cat([part.rx for part in parts], 1)
        space = KroneckerCovariance(tx, rx / len(parts))
        if source.frequencies is None:
            return space.without_empty_terms()
        delays = [
            _model_delays(source, model, part.tx.shape[1]) for part, model in zip(parts, source.models, strict=True)
        ]
        modes = _main_modes(torch.cat(delays).sum(0, keepdim=True))
        inside = torch.cat([modes.mH @ each @ modes for each in delays])
        return ModeCovariance(modes, KroneckerCovariance(space.tx, space.rx, inside[None]).without_empty_terms())

    def prior(self, rays: Rays) -> Covariance:
        return self.covariance


def ray_columns(source: ChannelSource, rays: Rays) -> ColumnCovariance:
    """A column for each independent phase, scaled by the root of its power; the line of sight comes last."""
    per_cluster = rays.aoa.shape[2]
    field_rx, steering_rx = _look(source.rx, rays.rx_orientation, rays.zoa, rays.aoa)
    field_tx, steering_tx = _look(source.tx, rays.tx_orientation, rays.zod, rays.aod)
    strength = rays.strength.double().expand(-1, *rays.aoa.shape[1:], -1).reshape(len(rays), -1, 2, 2)
    gains = torch.einsum("brij,bpir,bqjr->bqpijr", strength, field_rx, field_tx).flatten(3, 4)
    if source.phases_per_ray == 1:
        turns = rays.phases.double().flatten(1, 2).mT
        gains = (gains * torch.polar(torch.ones_like(turns), turns)[:, None, None]).sum(3, keepdim=True)
    elif gains.shape[1] == gains.shape[2] == 1:  # The four columns of a ray are parallel: one has their power.
        gains = torch.linalg.vector_norm(gains, dim=3, keepdim=True)
    amplitude = (_cluster_powers(source, rays) / per_cluster).sqrt().repeat_interleave(per_cluster, 1)
    gains = gains * amplitude[:, None, None, None, :]
    delay = source.delay_response(rays).repeat_interleave(per_cluster, 2)
    columns = ColumnCovariance(delay.repeat(1, 1, gains.shape[3]), _outer(gains, steering_tx, steering_rx))
    if not source.has_line_of_sight:
        return columns
    field_rx, steering_rx, field_tx, steering_tx = _look_along_line_of_sight(source, rays)
    gains = torch.einsum("i,bpir,bqir->bqpr", _LINE_OF_SIGHT, field_rx, field_tx)[:, :, :, None]
    gains = gains * _line_of_sight_power(source, rays).sqrt()[:, None, None, None, None]
    line = _outer(gains, steering_tx, steering_rx)
    return ColumnCovariance(torch.cat([columns.delay, delay[:, :, :1]], 2), torch.cat([columns.space, line], 2))


def _outer(gains: Tensor, tx: Tensor, rx: Tensor) -> Tensor:
    """gains: [batch, pol_tx, pol_rx, k, rays]; tx, rx: [batch, elements, rays] -> vec(H) as columns, [batch, n, k·rays]."""
    both = tx[:, None, :, None, None, None, :] * rx[:, None, None, None, :, None, :]
    return (gains[:, :, None, :, None] * both).flatten(5).flatten(1, 4)


def _over_subcarriers(space: KroneckerCovariance, response: Tensor) -> Covariance:
    """Σ_k d_k d_kᴴ ⊗ T_k ⊗ S_k in the delay modes of each sample, from the sum of one subcarrier.

    response: d_k on the subcarriers, of clusters, [batch, S, clusters].
    """
    if response.shape[1] == 1:
        return space.without_empty_terms()
    if bool((response == response[:1]).all()):
        response = response[:1]
    modes = _main_modes(response @ response.mH)
    columns = _of_terms(modes.mH @ response, space.tx.shape[1]).mT
    delay = columns[..., None] * columns.conj()[..., None, :]
    return ModeCovariance(modes, KroneckerCovariance(space.tx, space.rx, delay).without_empty_terms())


def _main_modes(total: Tensor) -> Tensor:
    """The eigenvectors that hold all but rounding, as many for each: [batch, S, S] -> [batch, S, D]."""
    values, vectors = torch.linalg.eigh(total)
    count = int((values > _LEAST_MODE * values.sum(1, keepdim=True)).sum(1).max())
    main: Tensor = vectors[:, :, -count:]
    return main


def _of_terms(of_clusters: Tensor, terms: int) -> Tensor:
    """What each term has, from what each cluster has: two terms per cluster, then the line of sight's, with the first's delay.

    of_clusters: [..., clusters] -> [..., terms].
    """
    line = of_clusters[..., :1].expand(*of_clusters.shape[:-1], terms - 2 * of_clusters.shape[-1])
    return torch.cat([of_clusters.repeat_interleave(2, -1), line], -1)


def _model_delays(source: CdlSource, model: CdlModel, terms: int) -> Tensor:
    """E P ddᴴ/P of the terms of a model, P what the table says of the power of the cluster: [terms, S, S]."""
    table, frequencies = cdl_table(model, source.direction), torch.tensor(source.frequencies, dtype=torch.float64)
    lags, place = torch.unique(frequencies[:, None] - frequencies, return_inverse=True)
    means = source.timing.lag_means(table.delays, table.powers, lags) / table.powers[:, None]
    line = source.timing.lag_means(table.delays[:1], torch.ones(1), lags)
    of_clusters = means.repeat_interleave(2, 0)
    return torch.cat([of_clusters, line.expand(terms - len(of_clusters), -1)])[:, place]


def _cluster_sum(source: ChannelSource, rays: Rays) -> KroneckerCovariance:
    """Σ_c P_c T_c ⊗ S_c of every sample, and the line of sight."""
    wide = torch.float64
    rx = cluster_covariances(source.rx, rays.rx_orientation.to(wide), rays.zoa.to(wide), rays.aoa.to(wide))
    tx = cluster_covariances(source.tx, rays.tx_orientation.to(wide), rays.zod.to(wide), rays.aod.to(wide))
    mixing, powers = _mixing(rays.strength), _cluster_powers(source, rays)
    if not source.has_line_of_sight:
        return _mixed(tx, rx, mixing, powers)
    field_rx, steering_rx, field_tx, steering_tx = _look_along_line_of_sight(source, rays)
    line = _moments(field_tx, steering_tx), _moments(field_rx, steering_rx), _line_of_sight_power(source, rays)
    return _mixed(tx, rx, mixing, powers, line)


def _model_sum(source: CdlSource, model: CdlModel) -> KroneckerCovariance:
    """The mean of `_cluster_sum` over the sectors of both ends for one model, of batch 1."""
    table = cdl_table(model, source.direction)
    rx_sector, tx_sector = source.sectors
    tx, tx_line = _sector_mean(source.tx, tx_sector, table.angles[[3, 1]], table.los_angles[[3, 1]])
    rx, rx_line = _sector_mean(source.rx, rx_sector, table.angles[[2, 0]], table.los_angles[[2, 0]])
    share = source.scale**2 / (1 + table.k_factor)
    power = torch.tensor([share * table.k_factor], dtype=torch.float64)
    line = (tx_line, rx_line, power) if table.k_factor else None
    return _mixed(tx, rx, _mixing(strengths(torch.tensor([table.xpr]))), share * table.powers[None], line)


def _sector_mean(array: Array, sector: Sector, angles: Tensor, los_angles: Tensor) -> tuple[Tensor, Tensor]:
    """Means over the orientations of a sector: of `cluster_covariances` and, for the line of sight, of `_moments`.

    angles: zenith and azimuth, [2, clusters, rays]; los_angles: [2].
    """
    points = sector.quadrature(yaws=max(96, 8 * array.columns), tilts=max(12, 4 * array.rows))
    clusters, line = torch.zeros(()), torch.zeros(())
    for some in torch.split(points, _ORIENTATIONS):
        rays = (angle.expand(len(some), -1, -1) for angle in angles)
        clusters = clusters + cluster_covariances(array, some, *rays).sum(0)
        line_of_sight = (angle.expand(len(some), 1) for angle in los_angles)
        line = line + _moments(*field_and_steering(array, some, *line_of_sight)).sum(0)
    return clusters[None] / len(points), line[None] / len(points)


def _mixed(
    tx: Tensor, rx: Tensor, mixing: Tensor, powers: Tensor, line: tuple[Tensor, Tensor, Tensor] | None = None
) -> KroneckerCovariance:
    """Σ_c P_c Σ_ij M_ij T_cj ⊗ S_ci, and the line of sight from its moments at both ends and its power, where there is one.

    tx, rx: [batch, clusters, 2, ports, ports], M_ij = mixing[:, c, i, j] -> 2·clusters terms. The line of sight adds
    E vvᴴ of v = v_tx,θ ⊗ v_rx,θ - v_tx,φ ⊗ v_rx,φ: four terms.
    """
    weights = (powers[:, :, None, None] * mixing).to(rx.dtype)
    receive = torch.einsum("bcij,bcirs->bcjrs", weights, rx)
    diffuse = KroneckerCovariance(tx.flatten(1, 2), receive.flatten(1, 2))
    if line is None:
        return diffuse
    line_tx, line_rx, power = line
    signs = torch.outer(_LINE_OF_SIGHT, _LINE_OF_SIGHT).flatten()
    return diffuse.joined(KroneckerCovariance(line_tx, power[:, None, None, None] * signs[:, None, None] * line_rx))


def _moments(field: Tensor, steering: Tensor) -> Tensor:
    """E v_i v_jᴴ of the θ and φ responses of one ray, (i, j) in the order θθ, θφ, φθ, φφ: [batch, 4, ports, ports]."""
    responses = (field[..., None, 0].transpose(1, 2) * steering[:, None, None, :, 0]).flatten(2)
    return (responses[:, :, None, :, None] * responses.conj()[:, None, :, None, :]).flatten(1, 2)


def _look(array: Array, orientation: Tensor, zenith: Tensor, azimuth: Tensor) -> tuple[Tensor, Tensor]:
    wide = torch.float64
    return field_and_steering(array, orientation.to(wide), zenith.flatten(1).to(wide), azimuth.flatten(1).to(wide))


def _look_along_line_of_sight(source: ChannelSource, rays: Rays) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Field and steering of the receiver, then of the transmitter."""
    aoa, aod, zoa, zod = torch.split(rays.los_angles, 1, dim=1)
    return *_look(source.rx, rays.rx_orientation, zoa, aoa), *_look(source.tx, rays.tx_orientation, zod, aod)


def _mixing(strength: Tensor) -> Tensor:
    """Power of the entries of the polarisation matrix, mean over the rays of a cluster, from `Rays.strength`.

    -> [batch, 1 or clusters, 2 (receive), 2 (transmit)], float64.
    """
    power = strength.double().square().mean(2)
    return power.reshape(*power.shape[:2], 2, 2)


def _cluster_powers(source: ChannelSource, rays: Rays) -> Tensor:
    """Of each cluster after normalisation: [batch, clusters]."""
    return source.scale**2 * rays.powers.double() / (1 + rays.k_factor.double()[:, None])


def _line_of_sight_power(source: ChannelSource, rays: Rays) -> Tensor:
    k_factor = rays.k_factor.double()
    return source.scale**2 * k_factor / (1 + k_factor)
