"""Users of a cell by the system-level models of TR 38.901 clause 7: UMi, UMa, RMa and indoor office, as Sionna draws them.

Sionna gives where a user stands, whether it is indoors and in line of sight, its large-scale parameters and its rays. The
rays go into `Rays`, so that any array, orientation and snapshot has the factored form. All angles are turned about the
vertical axis until the base station sees the user at azimuth zero: yaw then means what it means for a CDL.
"""

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from chanest.arrays import Array, Sector
from chanest.channels.coefficients import SPEED_OF_LIGHT, velocities
from chanest.channels.drop import Drop, with_parts
from chanest.channels.rays import Rays, strengths
from chanest.channels.section import ArraySection, ChannelSection, around_carrier
from chanest.channels.sionna_backend import global_state_kept, sionna_array
from chanest.channels.source import Backend, ChannelSource, Direction, Normalisation, drawn_power, uniform_draws
from vlista_core.draws import BLOCK, Split, sample_generators

if TYPE_CHECKING:
    from sionna.phy.channel.tr38901 import SystemLevelChannel

Environment = Literal["umi", "uma", "rma", "inh"]
LineOfSight = Literal["random", "always", "never"]

BS_SECTOR = Sector(yaw=0.0, yaw_spread=math.pi / 3)
UE_SECTOR = Sector(yaw=math.pi, yaw_spread=math.pi)
_EXTRA_DRAWS = 7
_POWER_DRAWS = {"sample": 1024, "ensemble": 8192}
_sionna = threading.Lock()
"""Sionna has one generator for all its blocks."""


@dataclass(frozen=True)
class SystemLevelSource(ChannelSource):
    """One user of a cell and the base station that serves it, every sample a drop of its own."""

    environment: Environment = "umi"
    loss: Literal["low", "high"] = "low"
    """Of buildings, for users indoors in UMi and UMa."""
    indoor: float | None = None
    """Share of users indoors; None is that of TR 38.901. In the indoor office all are."""
    line_of_sight: LineOfSight = "random"
    """random: by the probabilities of TR 38.901; users inside a building in UMi, UMa and RMa have none in any case."""
    office: Literal["open", "mixed"] = "open"
    normalisation: Normalisation = "sample"
    bs_sector: Sector = BS_SECTOR
    ue_sector: Sector = UE_SECTOR
    speed: tuple[float, float] = (0.0, 0.0)

    @property
    def has_line_of_sight(self) -> bool:
        return self.line_of_sight != "never"

    @cached_property
    def mean_power(self) -> float:
        return _mean_power(replace(self, frequencies=None, snapshots=1, backend="factored"))

    def rays(self, indices: Sequence[int], *, seed: int, split: Split = "test") -> Rays:
        tracks = [index // self.snapshots for index in indices]
        drop = self.drop(tracks, seed=seed, split=split)
        if self.frequencies is not None:
            drop, shares = with_parts(drop)
        else:
            shares = torch.ones_like(drop.xpr)
        clusters, per_cluster = drop.xpr.shape[1:]
        cells = 4 * clusters * per_cluster
        draws = uniform_draws(sample_generators(seed, split, tracks, "rays"), cells + _EXTRA_DRAWS)
        phases, extra = draws[:, :cells], draws[:, cells:]
        aoa, zoa, aod, zod = self._received_and_sent(drop.angles.float())
        los_aoa, los_zoa, los_aod, los_zod = self._received_and_sent(drop.los_angles.float())
        rx, tx = self.ends(self.bs_sector.orient(extra[:, :2]), self.ue_sector.orient(extra[:, 2:4]))
        powers, k_factor = self._normalised(drop)
        wavelengths = drop.distance * self.carrier / SPEED_OF_LIGHT
        moments = [self.snapshot_interval * (index % self.snapshots) for index in indices]
        return Rays(
            model=(drop.k_factor > 0).long(),
            delays=drop.delays.float(),
            powers=powers.float(),
            aoa=aoa,
            aod=aod,
            zoa=zoa,
            zod=zod,
            phases=math.pi * (2 * phases.reshape(-1, clusters, per_cluster, 4) - 1),
            strength=strengths(drop.xpr.float()) * shares.sqrt().float()[..., None],
            k_factor=k_factor.float(),
            los_angles=torch.stack([los_aoa, los_aod, los_zoa, los_zod], 1),
            los_phase=(-2 * math.pi * torch.frac(wavelengths)).float(),
            rx_orientation=rx,
            tx_orientation=tx,
            velocity=velocities(self.speed, extra[:, 4:7]),
            time=torch.tensor(moments, dtype=torch.float32),
        )

    def drop(self, tracks: Sequence[int], *, seed: int, split: Split = "test") -> Drop:
        """What Sionna draws for these users of the stream (seed, split), in aligned blocks of 16 users."""
        wanted = torch.tensor(tracks)
        blocks = torch.unique(wanted // BLOCK)
        words = [each.initial_seed() for each in sample_generators(seed, split, blocks.tolist(), "drops")]
        found = [_drawn(self._environment(), word) for word in words]
        whole = Drop(
            *(
                torch.cat([getattr(each, field.name) for each in found], 1 if "angles" in field.name else 0)
                for field in fields(Drop)
            )
        )
        return whole.select(BLOCK * torch.searchsorted(blocks, wanted // BLOCK) + wanted % BLOCK)

    def _received_and_sent(self, angles: Tensor) -> tuple[Tensor, ...]:
        """Azimuth and zenith at the receiver, then at the transmitter, from those at the user and at the base station."""
        at_user, at_base = angles.split(2)
        rx, tx = self.ends(at_base, at_user)
        return *rx, *tx

    def _environment(self) -> "_Environment":
        return _Environment(self.environment, self.carrier, self.loss, self.indoor, self.line_of_sight, self.office)

    def _normalised(self, drop: Drop) -> tuple[Tensor, Tensor]:
        """Powers of clusters and K-factor. `Rays` has no gain of the whole sample: it is a part of both, where it is kept.

        With a gain g, diffuse clusters have g·P/(1 + K) and the line of sight g·K/(1 + K): what P' and K' of this give.
        """
        if self.normalisation == "sample":
            return drop.powers / drop.powers.sum(1, keepdim=True), drop.k_factor
        line = drop.gain * drop.k_factor / (1 + drop.k_factor)
        k_factor = line / (1 - line)
        return drop.powers * (drop.gain * (1 + k_factor) / (1 + drop.k_factor))[:, None], k_factor


class SystemLevelSection(ChannelSection):
    """A cell of TR 38.901: its kind is the environment; hertz, m/s. One subcarrier means the narrowband sum of taps."""

    kind: Environment
    """Which channels these are."""
    carrier: float = Field(default=28e9, ge=5e8, le=1e11)
    """Carrier frequency in hertz."""
    direction: Direction = "downlink"
    """Who sends: downlink, the base station; uplink, the user."""
    normalisation: Normalisation = "sample"
    """What makes E|h|² = 1. ensemble: one constant, so that weak users stay weak; sample: path loss and shadowing are
    taken out of each."""
    loss: Literal["low", "high"] = "low"
    """Of buildings, for users indoors in umi and uma."""
    indoor: float | None = Field(default=None, ge=0, le=1)
    """Share of users indoors; that of TR 38.901 unless said."""
    line_of_sight: LineOfSight = "random"
    """random: as TR 38.901 draws it; always or never for all users."""
    office: Literal["open", "mixed"] = "open"
    """Of inh: open or mixed."""
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
            allowed = "[least, largest] with 0 <= least <= largest <= 100000"
            raise ValueError(f"speed must be {allowed}, got {list(self.speed)}")
        if self.kind == "rma" and self.carrier > 30e9:
            raise ValueError(f"carrier must be at most 30e9 for rma, by TR 38.901, got {self.carrier}")
        if self.kind == "inh" and self.indoor is not None:
            raise ValueError(f"indoor must be left out for inh, where all users are indoors, got {self.indoor}")
        return self

    def source(self, bs: ArraySection, ue: ArraySection, backend: Backend = "factored") -> SystemLevelSource:
        return SystemLevelSource(
            bs.array(), ue.array(), self.carrier, self.direction, around_carrier(self.subcarriers, self.subcarrier_spacing),
            self.snapshots, self.snapshot_interval, backend, environment=self.kind, loss=self.loss, indoor=self.indoor,
            line_of_sight=self.line_of_sight, office=self.office, normalisation=self.normalisation,
            bs_sector=bs.sector(), ue_sector=ue.sector(), speed=self.speed,
        )  # fmt: skip


@dataclass(frozen=True)
class _Environment:
    """What decides the drops."""

    kind: Environment
    carrier: float
    loss: Literal["low", "high"]
    indoor: float | None
    line_of_sight: LineOfSight
    office: Literal["open", "mixed"]


@lru_cache
def _mean_power(source: SystemLevelSource) -> float:
    return drawn_power(source, draws=_POWER_DRAWS[source.normalisation])


@lru_cache(maxsize=8)
def _drawn(environment: _Environment, word: int) -> Drop:
    """The drop of `BLOCK` users that the seed `word` gives; nothing of Sionna's or torch's state is changed by it."""
    with _sionna, global_state_kept():
        from sionna.phy import config

        generator = config.torch_rng("cpu")
        state = generator.get_state()
        try:
            generator.manual_seed(word)
            model = _model(environment)
            _place(environment, model)
            return _taken(model)
        finally:
            generator.set_state(state)


@lru_cache(maxsize=8)
def _model(environment: _Environment) -> "SystemLevelChannel":
    from sionna.phy.channel import tr38901

    one = sionna_array(Array(1, 1), environment.carrier)
    common = {
        "carrier_frequency": environment.carrier, "ut_array": one, "bs_array": one, "direction": "downlink",
        "precision": "double", "device": "cpu",
    }  # fmt: skip
    match environment.kind:
        case "umi":
            return tr38901.UMi(o2i_model=environment.loss, **common)
        case "uma":
            return tr38901.UMa(o2i_model=environment.loss, **common)
        case "rma":
            return tr38901.RMa(**common)
        case "inh":
            return tr38901.InH(indoor_scenario=environment.office, **common)


def _place(environment: _Environment, model: "SystemLevelChannel") -> None:
    """Drop `BLOCK` users, each with a base station of its own, and draw their large-scale parameters."""
    from sionna.phy.channel import gen_single_sector_topology

    los = {"random": "random", "always": True, "never": False}[environment.line_of_sight]
    model.reset_topology()
    if environment.kind == "inh":
        from sionna.sys import gen_tr38901_indoor_office_topology

        user, base, *rest = gen_tr38901_indoor_office_topology(BLOCK, 1, precision="double", device="cpu")
        nearest = (base[..., :2] - user[:, :1, :2]).norm(dim=2).argmin(1)
        base = base[torch.arange(BLOCK), nearest][:, None]
        turns, still, inside = (rest[k][:, :1] for k in (0, 2, 3))
        model.set_topology(user[:, :1], base, turns, rest[1][:, :1], still, inside, los)
        return
    topology = gen_single_sector_topology(
        BLOCK, 1, environment.kind, indoor_probability=environment.indoor, precision="double", device="cpu"
    )
    model.set_topology(*topology, los)


def _taken(model: "SystemLevelChannel") -> Drop:
    """The links of Sionna's topology and their rays."""
    scenario, lsp = model._scenario, model._lsp
    rays = model._ray_sampler(lsp)
    bearing = torch.deg2rad(scenario.los_aod[:, 0, 0])

    def turned(azimuth: Tensor) -> Tensor:
        return (
            torch.remainder(azimuth - bearing.reshape(-1, *[1] * (azimuth.dim() - 1)) + math.pi, 2 * math.pi) - math.pi
        )

    line = [torch.deg2rad(getattr(scenario, f"los_{name}"))[:, 0, 0] for name in ("aoa", "zoa", "aod", "zod")]
    aoa, zoa, aod, zod = (getattr(rays, name)[:, 0, 0] for name in ("aoa", "zoa", "aod", "zod"))
    return Drop(
        delays=rays.delays[:, 0, 0],
        powers=rays.powers[:, 0, 0],
        angles=torch.stack([turned(aoa), zoa, turned(aod), zod]),
        xpr=rays.xpr[:, 0, 0],
        k_factor=torch.where(scenario.los, lsp.k_factor, torch.zeros_like(lsp.k_factor))[:, 0, 0],
        los_angles=torch.stack([turned(line[0]), line[1], turned(line[2]), line[3]]),
        distance=scenario.distance_3d[:, 0, 0],
        gain=(10 ** (-lsp.pathloss / 10) * lsp.sf)[:, 0, 0],
        strongest=rays.strongest_cluster_indices[:, 0, 0],
        cluster_spread=1e-9 * scenario.get_param("cDS")[:, 0, 0],
    )
