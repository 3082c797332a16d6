"""A broad random family: any number of clusters, spreads, K-factors and delays, to train what should work anywhere.

Every sample draws its own statistics before it draws its rays. Ranges are log-uniform unless said otherwise:
- the number of clusters; whether they are specular (one direction each) or spread, and then the spread of every cluster at
  both ends, with Laplacian or Gaussian offsets, narrower in zenith by a factor of the sample;
- directions at each end uniform on the sphere, or around a random mean with a random concentration (von Mises–Fisher); in a
  share of samples, for each end by itself, their elevations are near the horizon, as outdoors, and only azimuths are as said;
- delays exponential, τ = -2·DS·ln u, powers u·10^(-Z/10): exponential with delay (TR 38.901, 7.5-5 with r_τ = 2) times
  log-normal shadowing Z, no weaker than `power_range_db` below the strongest;
- in a share of samples a line of sight, along the mean directions, with its K-factor; one cross-polarisation ratio.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from chanest.arrays import Sector
from chanest.channels.coefficients import End
from chanest.channels.rays import Rays, strengths
from chanest.channels.section import ArraySection, ChannelSection, around_carrier
from chanest.channels.source import Backend, ChannelSource, Direction, drawn_power, uniform_draws

Range = tuple[float, float]
_Pair = tuple[Tensor, Tensor]
_Draws = dict[str, Tensor]
_AHEAD = Sector()


class _Directions(NamedTuple):
    """Of the rays of one end, [batch, clusters, rays], and of the mean of its clusters, [batch]; radians."""

    azimuth: Tensor
    zenith: Tensor
    mean_azimuth: Tensor
    mean_zenith: Tensor


_RAYS_PER_CLUSTER = 20
_OF_SAMPLE = (
    "count", "specular", "shape", "shadowing", "delay_spread", "xpr", "los", "k_factor", "los_phase", "bs_yaw", "bs_tilt",
    "ue_yaw", "ue_tilt", "rx_up", "rx_around", "rx_concentrated", "rx_concentration", "rx_narrower", "tx_up", "tx_around",
    "tx_concentrated", "tx_concentration", "tx_narrower", "rx_level", "rx_elevation", "rx_lifted", "tx_level", "tx_elevation",
    "tx_lifted",
)  # fmt: skip
_OF_CLUSTER = (
    "delay", "shadow", "rx_off", "rx_turn", "rx_spread", "tx_off", "tx_turn", "tx_spread", "rx_height",
    "tx_height",
)  # fmt: skip
_OF_RAY = ("rx_azimuth", "rx_zenith", "tx_azimuth", "tx_zenith", "theta_theta", "theta_phi", "phi_theta", "phi_phi")
"""What is drawn, in this order: a uniform number each."""
_HORIZON = math.pi / 2
_TAIL = 1e-6
"""Of a distribution, at both sides, that is not drawn from."""


@dataclass(frozen=True)
class ClusterSource(ChannelSource):
    """Channels of the family; degrees, decibels and seconds, each range (least, largest)."""

    bs_sector: Sector = _AHEAD
    ue_sector: Sector = _AHEAD
    clusters: tuple[int, int] = (1, 30)
    specular: float = 0.25
    """Share of the samples whose clusters have no spread: 20 rays in one direction are one path that fades."""
    spread: Range = (0.05, 30.0)
    bs_spread: Range | None = None
    """At the base station, where that differs from `spread`."""
    ue_spread: Range | None = None
    """At the user."""
    one_spread: bool = False
    """Whether all clusters of a sample are as wide, at each end."""
    bs_ahead: bool = False
    """Whether the clusters at the base station lie around azimuth zero, where those of TR 38.901 have the user."""
    zenith_ratio: Range = (0.1, 0.6)
    """Spread in zenith over that in azimuth; uniform."""
    concentrated: float = 0.5
    """Share of the samples, for each end by itself, whose clusters lie around a mean direction."""
    concentration: Range = (1.0, 100.0)
    level: float = 0.5
    """Share of the samples, for each end by itself, whose clusters lie near the horizon."""
    elevation: Range = (1.0, 20.0)
    """Standard deviation of their elevations, about a mean that deviates as much."""
    shadowing_db: Range = (0.0, 10.0)
    """Standard deviation over the clusters of a sample; uniform."""
    power_range_db: float = 25.0
    line_of_sight: float = 0.5
    """Share of the samples that have one."""
    k_factor_db: Range = (-5.0, 20.0)
    xpr_db: Range = (0.0, 30.0)
    delay_spread: Range = (5e-9, 500e-9)

    @property
    def has_line_of_sight(self) -> bool:
        return self.line_of_sight > 0

    @cached_property
    def mean_power(self) -> float:
        return drawn_power(self)

    def draw(self, generators: Sequence[torch.Generator]) -> Rays:
        sample, cluster, ray = self._uniform_numbers(generators)
        batch, zeros = len(generators), torch.zeros(len(generators))
        delays, powers = self._profile(sample, cluster)
        rx, tx = (self._directions(end, sample, cluster, ray) for end in ("rx", "tx"))
        bs_yaw, bs_tilt, ue_yaw, ue_tilt = (sample[name] for name in ("bs_yaw", "bs_tilt", "ue_yaw", "ue_tilt"))
        rx_orientation, tx_orientation = self.ends(
            self.bs_sector.orient(torch.stack([bs_yaw, bs_tilt], 1)),
            self.ue_sector.orient(torch.stack([ue_yaw, ue_tilt], 1)),
        )
        k_factor = 10 ** (_within(sample["k_factor"], self.k_factor_db) / 10)
        return Rays(
            model=torch.zeros(batch, dtype=torch.int64),
            delays=delays,
            powers=powers,
            aoa=rx.azimuth,
            aod=tx.azimuth,
            zoa=rx.zenith,
            zod=tx.zenith,
            phases=math.pi * (2 * torch.stack([ray[name] for name in _OF_RAY[4:]], 3) - 1),
            strength=strengths(10 ** (_within(sample["xpr"], self.xpr_db) / 10)),
            k_factor=torch.where(sample["los"] < self.line_of_sight, k_factor, zeros),
            los_angles=torch.stack([rx.mean_azimuth, tx.mean_azimuth, rx.mean_zenith, tx.mean_zenith], 1),
            los_phase=math.pi * (2 * sample["los_phase"] - 1),
            rx_orientation=rx_orientation,
            tx_orientation=tx_orientation,
            velocity=torch.zeros(batch, 3),
            time=zeros,
        )

    def _uniform_numbers(self, generators: Sequence[torch.Generator]) -> tuple[_Draws, _Draws, _Draws]:
        """By name: of the sample [batch], of its clusters [batch, clusters], of their rays [batch, clusters, rays]."""
        kinds = ((_OF_SAMPLE, ()), (_OF_CLUSTER, (self.clusters[1],)), (_OF_RAY, (self.clusters[1], _RAYS_PER_CLUSTER)))
        sizes = [len(names) * math.prod(shape) for names, shape in kinds]
        parts = torch.split(uniform_draws(generators, sum(sizes)), sizes, dim=1)
        sample, cluster, ray = (
            dict(zip(names, part.reshape(len(generators), len(names), *shape).unbind(1), strict=True))
            for (names, shape), part in zip(kinds, parts, strict=True)
        )
        return sample, cluster, ray

    def _profile(self, sample: _Draws, cluster: _Draws) -> tuple[Tensor, Tensor]:
        """Delays, ascending from zero, and powers, one in all: each [batch, clusters]."""
        least, most = self.clusters
        count = (least * ((most + 1) / least) ** sample["count"]).floor().clamp_max(most)
        padding = torch.arange(most) >= count[:, None]
        late = -2 * torch.log1p(-cluster["delay"])
        late = torch.sort(late.masked_fill(padding, math.inf), dim=1).values
        late = late - late[:, :1]
        last = late.masked_fill(padding, 0.0).amax(1, keepdim=True)
        late = torch.where(padding, last, late)
        shadow = _within(sample["shadowing"], self.shadowing_db)[:, None] * _gaussian(cluster["shadow"])
        level = (-10 / math.log(10) * late / 2 - shadow).masked_fill(padding, -math.inf)
        level = (level - level.amax(1, keepdim=True)).clamp_min(-self.power_range_db)
        powers = (10 ** (level / 10)).masked_fill(padding, 0.0)
        delays = late * _log_within(sample["delay_spread"], self.delay_spread)[:, None]
        return delays, powers / powers.sum(1, keepdim=True)

    def _directions(self, end: End, sample: _Draws, cluster: _Draws, ray: _Draws) -> _Directions:
        at_base = (end == "tx") == (self.direction == "downlink")
        mean_azimuth = math.pi * (2 * sample[f"{end}_around"] - 1)
        if at_base and self.bs_ahead:
            mean_azimuth = torch.zeros_like(mean_azimuth)
        mean_zenith = torch.acos(1 - 2 * sample[f"{end}_up"])
        concentration = _log_within(sample[f"{end}_concentration"], self.concentration)
        concentration = concentration * (sample[f"{end}_concentrated"] < self.concentrated)
        zenith, azimuth = around_mean(
            mean_zenith, mean_azimuth, concentration, cluster[f"{end}_off"], cluster[f"{end}_turn"]
        )
        level = sample[f"{end}_level"] < self.level
        elevation = torch.deg2rad(_log_within(sample[f"{end}_elevation"], self.elevation))
        lifted = elevation * _gaussian(sample[f"{end}_lifted"])
        height = lifted[:, None] + elevation[:, None] * _gaussian(cluster[f"{end}_height"])
        mean_zenith = torch.where(level, _HORIZON - lifted, mean_zenith)
        zenith = torch.where(level[:, None], (_HORIZON - height).clamp(0.0, math.pi), zenith)
        widths = cluster[f"{end}_spread"]
        widths = widths[:, :1].expand_as(widths) if self.one_spread else widths
        ends = (self.bs_spread if at_base else self.ue_spread) or self.spread
        spread = torch.deg2rad(_log_within(widths, ends))
        spread = (spread * (sample["specular"] >= self.specular)[:, None])[:, :, None]
        narrower = _within(sample[f"{end}_narrower"], self.zenith_ratio)[:, None, None]

        def offsets(uniform: Tensor) -> Tensor:
            return torch.where(sample["shape"][:, None, None] < 0.5, _laplacian(uniform), _gaussian(uniform))

        return _Directions(
            azimuth[:, :, None] + spread * offsets(ray[f"{end}_azimuth"]),
            zenith[:, :, None] + narrower * spread * offsets(ray[f"{end}_zenith"]),
            mean_azimuth,
            mean_zenith,
        )


class ClusterSection(ChannelSection):
    """The broad family: ranges [least, largest] in degrees, decibels and seconds; shares of the samples from 0 to 1."""

    kind: Literal["clusters"]
    """Which channels these are."""
    carrier: float = Field(default=28e9, ge=1e6, le=1e13)
    """Carrier frequency in hertz."""
    direction: Direction = "downlink"
    """Who sends: downlink, the base station; uplink, the user."""
    clusters: tuple[int, int] = Field(default=(1, 30), strict=False)
    """[fewest, most] of a sample."""
    specular: float = Field(default=0.25, ge=0, le=1)
    """Share of the samples whose clusters have no spread, so that each is one path that fades."""
    spread: Range = Field(default=(0.05, 30.0), strict=False)
    """[least, largest] spread of a cluster in azimuth, degrees."""
    zenith_ratio: Range = Field(default=(0.1, 0.6), strict=False)
    """[least, largest] of the spread in zenith over that in azimuth."""
    concentrated: float = Field(default=0.5, ge=0, le=1)
    """Share of the samples whose clusters lie around a mean direction, for each end by itself."""
    concentration: Range = Field(default=(1.0, 100.0), strict=False)
    """[least, largest] concentration around that direction; large is close."""
    level: float = Field(default=0.5, ge=0, le=1)
    """Share of the samples whose clusters lie near the horizon, for each end by itself."""
    elevation: Range = Field(default=(1.0, 20.0), strict=False)
    """[least, largest] standard deviation of their elevations, degrees."""
    shadowing_db: Range = Field(default=(0.0, 10.0), strict=False)
    """[least, largest] standard deviation of the powers of the clusters of a sample, decibels."""
    power_range_db: float = Field(default=25.0, ge=0, le=100)
    """No cluster is weaker than the strongest by more than so many decibels."""
    line_of_sight: float = Field(default=0.5, ge=0, le=1)
    """Share of the samples that have one."""
    k_factor_db: Range = Field(default=(-5.0, 20.0), strict=False)
    """[least, largest] power of the line of sight over that of all clusters, decibels."""
    xpr_db: Range = Field(default=(0.0, 30.0), strict=False)
    """[least, largest] ratio of a ray's power in its own polarisation to that in the other, decibels."""
    delay_spread: Range = Field(default=(5e-9, 500e-9), strict=False)
    """[least, largest] in seconds."""
    subcarriers: int = Field(default=1, ge=1, le=2**16)
    """How many; one is the narrowband sum of all taps."""
    subcarrier_spacing: float = Field(default=120e3, ge=1, le=1e10)
    """In hertz."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name, (lowest, highest) in _LIMITS.items():
            least, largest = getattr(self, name)
            if not lowest <= least <= largest <= highest:
                allowed = f"[least, largest] with {lowest:g} <= least <= largest <= {highest:g}"
                raise ValueError(f"{name} must be {allowed}, got {[least, largest]}")
        return self

    def source(self, bs: ArraySection, ue: ArraySection, backend: Backend = "factored") -> ClusterSource:
        return ClusterSource(
            bs.array(), ue.array(), self.carrier, self.direction, around_carrier(self.subcarriers, self.subcarrier_spacing),
            backend=backend, bs_sector=bs.sector(), ue_sector=ue.sector(), clusters=self.clusters, specular=self.specular,
            spread=self.spread, zenith_ratio=self.zenith_ratio, concentrated=self.concentrated,
            concentration=self.concentration, level=self.level, elevation=self.elevation,
            shadowing_db=self.shadowing_db, power_range_db=self.power_range_db,
            line_of_sight=self.line_of_sight, k_factor_db=self.k_factor_db, xpr_db=self.xpr_db,
            delay_spread=self.delay_spread,
        )  # fmt: skip


_LIMITS = {
    "clusters": (1, 100), "spread": (1e-6, 90.0), "zenith_ratio": (0.0, 1.0), "concentration": (1e-3, 1e6),
    "elevation": (1e-3, 90.0),
    "shadowing_db": (0.0, 100.0), "k_factor_db": (-100.0, 100.0), "xpr_db": (-100.0, 100.0), "delay_spread": (1e-15, 1.0),
}  # fmt: skip


def around_mean(mean_zenith: Tensor, mean_azimuth: Tensor, concentration: Tensor, off: Tensor, turn: Tensor) -> _Pair:
    """Directions around a mean by a von Mises–Fisher distribution, from uniform numbers; concentration 0 is the sphere.

    mean_zenith, mean_azimuth, concentration: [batch]; off, turn: [batch, clusters] -> zenith, azimuth [batch, clusters].
    """
    kappa = concentration.double().clamp_min(1e-3)[:, None]
    uniform = off.double()
    near = 1 + torch.log(uniform + (1 - uniform) * torch.exp(-2 * kappa)) / kappa
    along = torch.where(concentration[:, None] > 0, near, 2 * uniform - 1).clamp(-1.0, 1.0)
    aside, angle = (1 - along.square()).sqrt(), 2 * math.pi * turn.double()
    down, left = aside * torch.cos(angle), aside * torch.sin(angle)
    cos_z, sin_z = torch.cos(mean_zenith.double())[:, None], torch.sin(mean_zenith.double())[:, None]
    forward, up = along * sin_z + down * cos_z, along * cos_z - down * sin_z
    azimuth = mean_azimuth.double()[:, None] + torch.atan2(left, forward)
    return torch.acos(up.clamp(-1.0, 1.0)).float(), azimuth.float()


def _within(uniform: Tensor, ends: Range) -> Tensor:
    return ends[0] + (ends[1] - ends[0]) * uniform


def _log_within(uniform: Tensor, ends: Range) -> Tensor:
    return ends[0] * (ends[1] / ends[0]) ** uniform


def _gaussian(uniform: Tensor) -> Tensor:
    """Of standard deviation one."""
    return math.sqrt(2) * torch.erfinv(2 * uniform.clamp(_TAIL, 1 - _TAIL) - 1)


def _laplacian(uniform: Tensor) -> Tensor:
    """Of standard deviation one."""
    centred = 2 * uniform.clamp(_TAIL, 1 - _TAIL) - 1
    return -torch.sign(centred) * torch.log1p(-centred.abs()) / math.sqrt(2)
