"""Clustered delay lines CDL-A … CDL-E of TR 38.901 clause 7.7.1, drawn sample by sample with Sionna's conventions.

The tables are read from the files that Sionna ships, without importing Sionna.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Self, get_args

import torch
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator
from torch import Tensor

from chanest.arrays import Array, Sector
from chanest.channels.coefficients import Directions, local_and_field, velocities
from chanest.channels.delays import Delays, Range, RangeField
from chanest.channels.rays import Rays, strengths
from chanest.channels.section import ArraySection, ChannelSection, around_carrier
from chanest.channels.source import Backend, ChannelSource, Direction, uniform_draws

CdlModel = Literal["A", "B", "C", "D", "E"]

_RAYS_PER_CLUSTER = 20
_EXTRA_DRAWS = 9
_TABLE_FOLDER = ("phy", "channel", "tr38901", "models", "v19_2")
# Table 7.5-3: offsets of the rays of a cluster for an angular spread of one degree; each with both signs.
_OFFSETS = (0.0447, 0.1413, 0.2492, 0.3715, 0.5129, 0.6797, 0.8844, 1.1481, 1.5195, 2.1551)
_BS_SECTOR = Sector(yaw=0.0, yaw_spread=math.pi / 3)
_UE_SECTOR = Sector(yaw=math.pi, yaw_spread=math.pi)
_SPREADS = {"aoa": "cASA", "aod": "cASD", "zoa": "cZSA", "zod": "cZSD"}


@dataclass(frozen=True)
class CdlTable:
    """One model with its rays spread out and not yet coupled; clusters in order of delay, radians, float64."""

    delays: Tensor
    """In units of the delay spread: [clusters]."""
    powers: Tensor
    """Diffuse clusters, summing to one: [clusters]."""
    angles: Tensor
    """aoa, aod, zoa, zod: [4, clusters, rays]."""
    xpr: float
    k_factor: float
    los_angles: Tensor
    """aoa, aod, zoa, zod: [4]; zeros without a line of sight."""


@dataclass(frozen=True)
class CdlSource(ChannelSource):
    """CDL channels of one model, or of a mixture of several with equal weights.

    The cluster angles of a CDL are constants: with both sectors of width zero only phases and the coupling of rays vary
    and the channel is nearly Gaussian. Random orientation is what makes estimation hard, so it is the default.
    """

    models: tuple[CdlModel, ...] = ("C",)
    delay_spread: float | Range = 100e-9
    """The same for all samples, or drawn from (least, largest) for each; likewise the next two."""
    timing_offset: Range = (0.0, 0.0)
    delay_window: Range | None = None
    bs_sector: Sector = _BS_SECTOR
    ue_sector: Sector = _UE_SECTOR
    random_los_phase: bool = True
    """Draw the phase of the line of sight of D and E. Without it, 89 % of their energy would be a fixed mean."""
    speed: tuple[float, float] = (0.0, 0.0)
    """Least and largest speed of the user; its heading is drawn as Sionna does."""

    def __post_init__(self) -> None:
        if not self.models or any(model not in get_args(CdlModel) for model in self.models):
            raise ValueError(f"models must name some of {', '.join(get_args(CdlModel))}, got {self.models!r}")
        if not 0.0 <= self.speed[0] <= self.speed[1] < math.inf:
            raise ValueError(f"speed must be (least, largest) with 0 <= least <= largest, got {self.speed!r}")
        Delays.of(self.delay_spread, self.timing_offset, self.delay_window)

    @property
    def timing(self) -> Delays:
        """How the delays of samples differ."""
        return Delays.of(self.delay_spread, self.timing_offset, self.delay_window)

    @property
    def has_line_of_sight(self) -> bool:
        return any(cdl_table(model).k_factor > 0 for model in self.models)

    @property
    def phases_are_random(self) -> bool:
        return self.random_los_phase or not self.has_line_of_sight

    @property
    def sectors(self) -> tuple[Sector, Sector]:
        """Of the receiver and of the transmitter."""
        return self.ends(self.bs_sector, self.ue_sector)

    @cached_property
    def mean_power(self) -> float:
        ends = (self.direction, self.rx, self.tx, *self.sectors)
        each = [_mean_power(model, *ends, self.timing if self.delay_window else None) for model in self.models]
        return sum(each) / len(each)

    def draw(self, generators: Sequence[torch.Generator]) -> Rays:
        table = _stacked(self.models, self.direction)
        clusters = table["delays"].shape[1]
        cells = clusters * _RAYS_PER_CLUSTER
        draws = uniform_draws(generators, 8 * cells + _EXTRA_DRAWS)
        phases, keys, extra = torch.split(draws, [4 * cells, 4 * cells, _EXTRA_DRAWS], dim=1)
        model = (extra[:, 0] * len(self.models)).long()
        keys = keys.reshape(-1, 4, clusters, _RAYS_PER_CLUSTER)
        angles = table["angles"][model].gather(3, torch.argsort(keys, dim=-1, stable=True))
        rx, tx = self.ends(self.bs_sector.orient(extra[:, 1:3]), self.ue_sector.orient(extra[:, 3:5]))
        delays, powers = self.timing.drawn(generators, table["delays"][model], table["powers"][model])
        return Rays(
            model=model,
            delays=delays,
            powers=powers,
            **dict(zip(_SPREADS, angles.unbind(1), strict=True)),
            phases=math.pi * (2 * phases.reshape(-1, clusters, _RAYS_PER_CLUSTER, 4) - 1),
            strength=strengths(table["xpr"][model]),
            k_factor=table["k_factor"][model],
            los_angles=table["los_angles"][model],
            los_phase=math.pi * (2 * extra[:, 5] - 1) if self.random_los_phase else torch.zeros(len(model)),
            rx_orientation=rx,
            tx_orientation=tx,
            velocity=velocities(self.speed, extra[:, 6:9]),
            time=torch.zeros(len(model)),
        )


class CdlSection(ChannelSection):
    """CDL models (one, or an equal mixture); seconds, hertz, m/s. One subcarrier means the narrowband sum of taps."""

    kind: Literal["cdl"] = "cdl"
    """Which channels these are."""
    models: tuple[CdlModel, ...] = Field(default=("C",), min_length=1, strict=False)
    """Of A, B, C, D and E; of several, every sample takes one at random."""
    carrier: float = Field(default=28e9, ge=1e6, le=1e13)
    """Carrier frequency in hertz."""
    delay_spread: float | RangeField = 100e-9
    """In seconds, or [least, largest]: drawn for each sample, evenly in its logarithm."""
    timing_offset: RangeField = (0.0, 0.0)
    """[least, largest] seconds by which all delays of a sample are late."""
    delay_window: RangeField | None = None
    """[least, largest] seconds after the first path; clusters that come later are cut off, and the others share the power."""
    direction: Direction = "downlink"
    """Who sends: downlink, the base station; uplink, the user."""
    random_los_phase: bool = True
    """Whether the line of sight of D and E has a random phase; without, most of their energy is a fixed mean."""
    speed: tuple[float, float] = Field(default=(0.0, 0.0), strict=False)
    """[least, largest] speed of users in m/s."""
    snapshots: int = Field(default=1, ge=1, le=2**20)
    """Consecutive snapshots of a user, which share their rays."""
    snapshot_interval: float = Field(default=0.0, ge=0, le=1e3)
    """Seconds from one snapshot to the next."""
    subcarriers: int = Field(default=1, ge=1, le=2**16)
    """How many; one is the narrowband sum of all taps."""
    subcarrier_spacing: float = Field(default=120e3, ge=1, le=1e10)
    """In hertz."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not 0.0 <= self.speed[0] <= self.speed[1] <= 1e5:
            raise ValueError(
                f"speed must be [least, largest] with 0 <= least <= largest <= 100000, got {list(self.speed)}"
            )
        Delays.of(self.delay_spread, self.timing_offset, self.delay_window)
        return self

    @model_serializer(mode="wrap")
    def _without_what_is_not_said(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Keys of random delays only where they are used, so that channels of earlier versions keep their identity."""
        content: dict[str, Any] = written(self)
        for key in ("timing_offset", "delay_window"):
            if getattr(self, key) == type(self).model_fields[key].default:
                del content[key]
        return content

    def source(self, bs: ArraySection, ue: ArraySection, backend: Backend = "factored") -> CdlSource:
        return CdlSource(
            bs.array(), ue.array(), self.carrier, self.direction, around_carrier(self.subcarriers, self.subcarrier_spacing),
            self.snapshots, self.snapshot_interval, backend, models=self.models, delay_spread=self.delay_spread,
            timing_offset=self.timing_offset, delay_window=self.delay_window,
            bs_sector=bs.sector(), ue_sector=ue.sector(), random_los_phase=self.random_los_phase, speed=self.speed,
        )  # fmt: skip


@lru_cache
def cdl_table(model: CdlModel, direction: Direction = "downlink") -> CdlTable:
    """The table of CDL-`model`; departure and arrival are exchanged for the uplink."""
    content = json.loads((_table_folder() / f"CDL-{model}.json").read_text(encoding="utf-8"))
    names = ("aoa", "aod", "zoa", "zod") if direction == "downlink" else ("aod", "aoa", "zod", "zoa")
    rows = [content[name] for name in ("delays", "powers", *names)]
    delays, powers, *rest = torch.tensor(rows, dtype=torch.float64)
    powers, angles = 10 ** (powers / 10), torch.stack(rest)
    first = 1 if content["los"] else 0
    diffuse = powers[first:].sum()
    order = first + torch.argsort(delays[first:], stable=True)
    spreads = torch.tensor([content[_SPREADS[name]] for name in names], dtype=torch.float64)
    offsets = torch.tensor([sign * offset for offset in _OFFSETS for sign in (1, -1)], dtype=torch.float64)
    return CdlTable(
        delays=delays[order],
        powers=powers[order] / diffuse,
        angles=torch.deg2rad(angles[:, order, None] + spreads[:, None, None] * offsets),
        xpr=10 ** (float(content["xpr"]) / 10),
        k_factor=float(powers[0] / diffuse) if first else 0.0,
        los_angles=torch.deg2rad(angles[:, 0]) if first else torch.zeros(4, dtype=torch.float64),
    )


def _table_folder() -> Path:
    found = find_spec("sionna")
    for location in (found.submodule_search_locations or []) if found else []:
        folder = Path(location).joinpath(*_TABLE_FOLDER)
        if folder.is_dir():
            return folder
    raise ValueError(
        "the CDL tables were not found: install sionna-no-rt 2.2 or newer (pip install 'sionna-no-rt>=2.2')"
    )


@lru_cache
def _stacked(models: tuple[CdlModel, ...], direction: Direction) -> dict[str, Tensor]:
    """The tables of several models side by side, padded with clusters of power zero, float32.

    delays, powers: [models, clusters]; angles: [models, 4, clusters, rays]; xpr, k_factor: [models];
    los_angles: [models, 4].
    """
    tables = [cdl_table(model, direction) for model in models]
    clusters = torch.arange(max(len(table.delays) for table in tables))
    last = [len(table.delays) - 1 for table in tables]
    padded = [(table, clusters.clamp_max(end), clusters <= end) for table, end in zip(tables, last, strict=True)]
    return {
        "delays": torch.stack([table.delays[index] for table, index, _ in padded]).float(),
        "powers": torch.stack([table.powers[index] * real for table, index, real in padded]).float(),
        "angles": torch.stack([table.angles[:, index] for table, index, _ in padded]).float(),
        "xpr": torch.tensor([table.xpr for table in tables]),
        "k_factor": torch.tensor([table.k_factor for table in tables]),
        "los_angles": torch.stack([table.los_angles for table in tables]).float(),
    }


@lru_cache
def _mean_power(
    model: CdlModel,
    direction: Direction,
    rx: Array,
    tx: Array,
    rx_sector: Sector,
    tx_sector: Sector,
    timing: Delays | None,
) -> float:
    """E|h_ij|² over phases, couplings, orientations and ports, in closed form.

    Azimuth and zenith of an end are coupled at random, so a ray meets each of the 20 × 20 pairs equally often and the
    two ends are independent: the expectation is a sum of products of moments of the two element fields.
    timing: where it cuts clusters off, which changes their mean powers.
    """
    table = cdl_table(model, direction)
    receive, receive_los = _moments(rx, rx_sector, table.angles[[2, 0]], table.los_angles[[2, 0]])
    transmit, transmit_los = _moments(tx, tx_sector, table.angles[[3, 1]], table.los_angles[[3, 1]])
    mixing = torch.tensor([[1.0, 1.0 / table.xpr], [1.0 / table.xpr, 1.0]], dtype=torch.float64)
    powers = table.powers if timing is None else timing.lag_means(table.delays, table.powers, torch.zeros(1))[:, 0].real
    diffuse = torch.einsum("c,ca,ab,cb->", powers, receive[:, :2], mixing, transmit[:, :2])
    # (F_θF'_θ - F_φF'_φ)², the line of sight: its polarisation matrix is diag(1, -1). The mean over ports of both ends.
    specular = receive_los[:2] @ transmit_los[:2] - 2 * receive_los[2] * transmit_los[2]
    return float((diffuse + table.k_factor * specular) / (1 + table.k_factor))


def _moments(array: Array, sector: Sector, angles: Tensor, los_angles: Tensor) -> tuple[Tensor, Tensor]:
    """E[F_θ²], E[F_φ²], E[F_θF_φ] over orientations and polarisations: clusters [clusters, 3], line of sight [3].

    angles: zenith and azimuth, [2, clusters, rays], of which all pairs within a cluster are taken; los_angles: [2].
    """
    _, clusters, rays = angles.shape
    zenith = torch.cat([angles[0].repeat_interleave(rays, dim=1).flatten(), los_angles[:1]])
    azimuth = torch.cat([angles[1].repeat(1, rays).flatten(), los_angles[1:]])
    turns_with_yaw = array.pattern != "omni" or sector.tilt != 0.0 or sector.tilt_spread != 0.0
    points = sector.quadrature() if turns_with_yaw else sector.quadrature(yaws=1)
    total = torch.zeros(3, len(zenith), dtype=torch.float64)
    for orientation in torch.split(points, 8):
        toward = Directions.of(zenith.expand(len(orientation), -1), azimuth.expand(len(orientation), -1))
        theta, phi = local_and_field(array, orientation, toward)[1].unbind(2)
        total += torch.stack([theta**2, phi**2, theta * phi]).mean(2).sum(1)
    total /= len(points)
    return total[:, :-1].reshape(3, clusters, -1).mean(2).T, total[:, -1]
