"""Users of a scene that Sionna RT has traced: streets with a few strong paths, unlike the clusters of TR 38.901.

The paths are traced once, without arrays, and kept (`chanest.channels.traced`); shipped with the package for the shipped
scenarios, else in the cache folder. Every path is a cluster of one ray with a polarisation matrix of its own. The seed and
index of a sample draw orientation, phases and velocity; the index chooses the user. All angles are turned about the vertical
axis until the base station sees the user at azimuth zero: yaw then means what it means for a CDL.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self, get_args

import torch
from pydantic import Field, model_validator
from torch import Tensor

from chanest.arrays import Sector
from chanest.channels.coefficients import velocities
from chanest.channels.rays import Rays
from chanest.channels.section import ArraySection, ChannelSection, around_carrier
from chanest.channels.source import Backend, ChannelSource, Direction, Normalisation, drawn_power, uniform_draws
from chanest.channels.traced import Position, Site, SplitBy, TracedUsers, holds
from chanest.channels.tracing import INSTALL, can_trace, trace
from vlista_core.draws import Split, sample_generators
from vlista_core.files import cache_folder, check_folder, only_writer

_EXTRA_DRAWS = 7
_SECTOR = Sector()


@dataclass(frozen=True)
class RtSource(ChannelSource):
    """Sample k of a split is user k of it, and again from the first user on when all have had their turn.

    What a genie may know of a path is its matrix but for one phase: all four entries turn together.
    """

    phases_per_ray: ClassVar[Literal[1, 4]] = 1

    site: Site = field(kw_only=True)
    train_users: int = 0
    validation_users: int = 0
    test_users: int = 0
    normalisation: Normalisation = "sample"
    bs_sector: Sector = _SECTOR
    ue_sector: Sector = _SECTOR
    speed: tuple[float, float] = (0.0, 0.0)

    @property
    def splits(self) -> tuple[Split, ...]:
        """Those that have users."""
        return tuple(split for split in get_args(Split) if self.count(split))

    def count(self, split: Split) -> int:
        """Users of a split."""
        return {"train": self.train_users, "validation": self.validation_users, "test": self.test_users}[split]

    def available(self, split: Split) -> int | None:
        return None if self.count(split) else 0

    def different(self, split: Split) -> int:
        return self.count(split) * self.snapshots

    def obstacle(self, split: Split) -> str:
        if found := super().obstacle(split):
            return found
        try:
            find_users(self.site, split, self.count(split))
        except ValueError as fault:
            return str(fault)
        return ""

    @cached_property
    def mean_power(self) -> float:
        split = self.splits[0]
        return drawn_power(self, draws=self.count(split), split=split)

    def rays(self, indices: Sequence[int], *, seed: int, split: Split = "test") -> Rays:
        tracks = [index // self.snapshots for index in indices]
        count = self.count(split)
        if not count:
            raise ValueError(
                f"the users of {self.site.scene} are for {' and '.join(self.splits)} only, not for {split}: "
                f"{split}_users is 0"
            )
        users = traced_users(self.site, split, count)
        chosen = torch.tensor(tracks) % count
        most = self.site.most_paths
        places, real = users.places(chosen, most)
        draws = uniform_draws(sample_generators(seed, split, tracks, "rays"), most + _EXTRA_DRAWS)
        turn, extra = math.pi * (2 * draws[:, :most] - 1), draws[:, most:]
        at_user, at_base = users.angles[places].split(2, dim=2)
        arriving, leaving = self.ends(at_base, at_user)
        strength, phases = (self._sent_last(entries[places]) for entries in (users.strength, users.phases))
        rx, tx = self.ends(self.bs_sector.orient(extra[:, :2]), self.ue_sector.orient(extra[:, 2:4]))
        batch = len(tracks)
        moments = [self.snapshot_interval * (index % self.snapshots) for index in indices]
        return Rays(
            model=torch.zeros(batch, dtype=torch.int64),
            delays=users.delays[places],
            powers=self._normalised(users.shares[places] * real, users.gain[chosen]),
            aoa=arriving[..., :1],
            aod=leaving[..., :1],
            zoa=arriving[..., 1:],
            zod=leaving[..., 1:],
            phases=phases + turn[:, :, None, None],
            strength=strength,
            k_factor=torch.zeros(batch),
            los_angles=torch.zeros(batch, 4),
            los_phase=torch.zeros(batch),
            rx_orientation=rx,
            tx_orientation=tx,
            velocity=velocities(self.speed, extra[:, 4:7]),
            time=torch.tensor(moments, dtype=torch.float32),
        )

    def _sent_last(self, entries: Tensor) -> Tensor:
        """From user × base station to receiver × transmitter. entries: [batch, paths, 2, 2] -> [batch, paths, 1, 4]."""
        return (entries if self.direction == "downlink" else entries.mT).flatten(2)[:, :, None]

    def _normalised(self, shares: Tensor, gain: Tensor) -> Tensor:
        """Powers of paths: their shares, or those of the gain of the user in dB. shares: [batch, paths], gain: [batch]."""
        return shares if self.normalisation == "sample" else shares * (10 ** (gain / 10))[:, None]


class RtSection(ChannelSection):
    """Users of a scene of Sionna RT; metres, hertz, m/s. `Site` explains the keys that decide where users stand.

    Without sionna-rt there are the users that the package ships for the scenarios it ships, with any array.
    """

    kind: Literal["rt"]
    """Which channels these are."""
    scene: str = Field(min_length=1, max_length=64, pattern=r"^[a-z0-9_]+$")
    """One that sionna-rt ships, by name."""
    transmitters: tuple[Annotated[Position, Field(strict=False)], ...] = Field(
        min_length=1, max_length=64, strict=False
    )
    """[x, y, z] of each base station in metres; each user is served by one, drawn at random."""
    area: tuple[float, float, float, float] = Field(strict=False)
    """[least x, least y, largest x, largest y] of the rectangle in which users stand, metres."""
    height: float = Field(default=1.5, ge=0, le=1e3)
    """Of users above the ground, metres."""
    carrier: float = Field(default=28e9, ge=1e8, le=1e12)
    """Carrier frequency in hertz."""
    depth: int = Field(default=5, ge=0, le=32)
    """Most interactions of a path."""
    samples: int = Field(default=100_000, ge=1, le=10**8)
    """Rays that every transmitter shoots."""
    line_of_sight: bool = True
    """Whether paths may be direct."""
    reflection: bool = True
    """Whether paths may be reflected."""
    diffraction: bool = False
    """Whether paths may be diffracted at edges."""
    scattering: bool = False
    """Whether paths may be scattered."""
    refraction: bool = False
    """Whether paths may go through walls."""
    fewest_paths: int = Field(default=1, ge=1, le=1000)
    """A position with fewer paths has no user."""
    most_paths: int = Field(default=25, ge=1, le=1000)
    """The strongest so many paths of a user are kept."""
    split_by: SplitBy = "tile"
    """tile: training, validation and test users stand on different tiles; draw: anywhere, drawn independently."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Of the positions."""
    train_users: int = Field(default=2_000, ge=0, le=10**6)
    """How many; 0 refuses training."""
    validation_users: int = Field(default=500, ge=0, le=10**6)
    """How many."""
    test_users: int = Field(default=1_000, ge=0, le=10**6)
    """How many."""
    direction: Direction = "downlink"
    """Who sends: downlink, the base station; uplink, the user."""
    normalisation: Normalisation = "sample"
    """What makes E|h|² = 1. ensemble: one constant, so that weak users stay weak; sample: path loss and shadowing are
    taken out of each."""
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
        west, south, east, north = self.area
        if not (west < east and south < north):
            raise ValueError(f"area must be [least x, least y, largest x, largest y], got {list(self.area)}")
        if not self.train_users + self.validation_users + self.test_users:
            raise ValueError("one of train_users, validation_users and test_users must be positive")
        if self.fewest_paths > self.most_paths:
            raise ValueError(f"fewest_paths must be at most most_paths = {self.most_paths}, got {self.fewest_paths}")
        return self

    def site(self) -> Site:
        """What decides the users and their paths."""
        return Site(
            self.scene, self.transmitters, self.area, self.height, self.carrier, self.depth, self.samples,
            self.line_of_sight, self.reflection, self.diffraction, self.scattering, self.refraction, self.fewest_paths,
            self.most_paths, self.split_by, self.seed,
        )  # fmt: skip

    def source(self, bs: ArraySection, ue: ArraySection, backend: Backend = "factored") -> RtSource:
        return RtSource(
            bs.array(), ue.array(), self.carrier, self.direction, around_carrier(self.subcarriers, self.subcarrier_spacing),
            self.snapshots, self.snapshot_interval, backend, site=self.site(), train_users=self.train_users,
            validation_users=self.validation_users, test_users=self.test_users, normalisation=self.normalisation,
            bs_sector=bs.sector(), ue_sector=ue.sector(), speed=self.speed,
        )  # fmt: skip


@lru_cache(maxsize=16)
def traced_users(site: Site, split: Split, count: int) -> TracedUsers:
    """The first `count` users of a split, straight ahead of their base station, from the file that has them.

    Where there is no file, it is traced.
    """
    return TracedUsers.read(find_users(site, split, count)).first(count).turned(site)


def find_users(site: Site, split: Split, count: int, *, on_progress: Callable[[int], None] = lambda done: None) -> Path:
    """The file of the first `count` users of a split: shipped, or in the cache folder, traced there the first time.

    The folder is $CHANEST_CACHE, else `chanest` in the user's cache.
    """
    name = f"{site.name()}-{split}.safetensors"
    shipped = Path(__file__).resolve().parent / "scenes" / name
    folder = cache_folder("chanest", "CHANEST_CACHE")
    kept = folder / name
    for path in (shipped, kept):
        if holds(path, site, split, count):
            return path
    if not can_trace():
        raise ValueError(
            f"{count} {split} users of the scene {site.scene} with these settings are not among those shipped and have to "
            f"be traced; {INSTALL}"
        )
    check_folder(folder)
    with only_writer(kept.with_name(kept.name + ".lock"), str(kept)):
        if not holds(kept, site, split, count):
            trace(site, split, count, kept, on_progress=on_progress)
    return kept
