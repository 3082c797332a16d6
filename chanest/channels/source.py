"""Where channels come from: a source draws rays and turns them into matrices, or brings matrices of its own."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from chanest.arrays import Array
from chanest.channels.coefficients import End, RayFactors, expected_power, ray_factors
from chanest.channels.rays import Rays
from vlista_core.draws import Split, in_blocks, sample_generators

Direction = Literal["downlink", "uplink"]
Backend = Literal["factored", "sionna"]
Normalisation = Literal["ensemble", "sample"]
"""What makes E|h_ij|² = 1. ensemble: one stored constant, so that weak users stay weak; sample: the powers of every sample
add up to one first, which takes path loss and shadowing out."""
OfAnEnd = TypeVar("OfAnEnd")

DRAWS = 1
"""Goes up with every change to what a (seed, split, index) draws, so that stored channels of older code are not taken."""


@dataclass(frozen=True)
class ChannelSource(ABC):
    """A distribution of channels between a base station (BS) and a user (UE). Metres, seconds, radians.

    A source of rays has `draw` and `mean_power`. One whose channels are no function of rays has `channels` and
    `mean_power`, says `from_rays = False`, and either gives the rays that a helper would know or says `has_rays = False`.
    """

    has_rays: ClassVar[bool] = True
    """Whether the rays behind a channel are known."""
    from_rays: ClassVar[bool] = True
    """Whether `matrices(rays)` is the channel; otherwise rays say no more than its covariance."""

    phases_per_ray: ClassVar[Literal[1, 4]] = 4
    """Independent random phases of a ray: one of each entry of its polarisation matrix, or one of the whole matrix."""

    bs: Array
    ue: Array
    carrier: float = 28e9
    direction: Direction = "downlink"
    frequencies: tuple[float, ...] | None = None
    """Baseband frequencies of the subcarriers in Hz; None gives the narrowband sum of taps."""
    snapshots: int = 1
    """How many consecutive samples share their rays, `snapshot_interval` apart."""
    snapshot_interval: float = 0.0
    backend: Backend = "factored"

    def draw(self, generators: Sequence[torch.Generator]) -> Rays:
        """Rays at time zero, one sample for each generator."""
        raise ValueError(f"{type(self).__name__} has channels without rays")

    @property
    @abstractmethod
    def mean_power(self) -> float:
        """E|h_ij|² before normalisation, over the ensemble, the antennas and the subcarriers."""

    @property
    def has_line_of_sight(self) -> bool:
        """Whether some model of the source has a line of sight."""
        return False

    @property
    def phases_are_random(self) -> bool:
        """Whether every ray, the line of sight too, has a random phase."""
        return True

    def available(self, split: Split) -> int | None:
        """How many different channels a split has; None where there are as many as are asked for, 0 where it is refused."""
        return None

    def different(self, split: Split) -> int | None:
        """How many channels of a split differ in more than turns and phases; None where all do."""
        return self.available(split)

    def obstacle(self, split: Split) -> str:
        """Why the channels of a split cannot be had; empty where they can. What has to be fetched or traced first, is."""
        return f"it has no {split} channels" if self.different(split) == 0 else ""

    def ends(self, of_bs: OfAnEnd, of_ue: OfAnEnd) -> tuple[OfAnEnd, OfAnEnd]:
        """What the receiver and what the transmitter has, from what the base station and the user have."""
        return (of_ue, of_bs) if self.direction == "downlink" else (of_bs, of_ue)

    @property
    def rx(self) -> Array:
        return self.ends(self.bs, self.ue)[0]

    @property
    def tx(self) -> Array:
        return self.ends(self.bs, self.ue)[1]

    @property
    def moving(self) -> End:
        """The end of the user."""
        return "rx" if self.direction == "downlink" else "tx"

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample of h: (N_r, N_t), or (subcarriers, N_r, N_t)."""
        matrix = (self.rx.ports, self.tx.ports)
        return matrix if self.frequencies is None else (len(self.frequencies), *matrix)

    @cached_property
    def scale(self) -> float:
        """The constant of the ensemble that makes E|h_ij|² = 1."""
        return 1.0 / math.sqrt(self.mean_power)

    def rays(self, indices: Sequence[int], *, seed: int, split: Split = "test") -> Rays:
        """The rays of the samples `indices` of the stream (seed, split)."""
        tracks = [index // self.snapshots for index in indices]
        drawn = self.draw(sample_generators(seed, split, tracks, "rays"))
        if self.snapshots == 1:
            return drawn
        moments = [self.snapshot_interval * (index % self.snapshots) for index in indices]
        return replace(drawn, time=torch.tensor(moments, dtype=drawn.time.dtype))

    def channels(self, indices: Sequence[int], *, seed: int, split: Split = "test") -> tuple[Tensor, Rays | None]:
        """h of these samples of the stream (seed, split), and their rays where they are known: [k, N_r, N_t] or
        [k, subcarriers, N_r, N_t]."""
        rays = self.rays(indices, seed=seed, split=split)
        return self.matrices(rays), rays

    def factors(self, rays: Rays) -> RayFactors:
        """The factored form of the channels, not normalised."""
        return ray_factors(rays, self.rx, self.tx, self.carrier, self.moving, line_of_sight=self.has_line_of_sight)

    def taps(self, rays: Rays) -> Tensor:
        """The matrix of every cluster, normalised: [batch, clusters, N_r, N_t]."""
        if self.backend == "sionna":
            from chanest.channels.sionna_backend import sionna_taps

            return self.scale * sionna_taps(self, rays)
        return self.scale * self.factors(rays).taps()

    def matrices(self, rays: Rays) -> Tensor:
        """h: [batch, N_r, N_t], or [batch, subcarriers, N_r, N_t] where the source has frequencies.

        Clusters that no sample has power in are left out.
        """
        rays = rays.without_padding()
        if self.frequencies is None and self.backend == "factored":
            return self.scale * self.factors(rays).narrowband()
        taps = self.taps(rays)
        if self.frequencies is None:
            return taps.sum(1)
        return (self.delay_response(rays).to(taps.dtype) @ taps.flatten(2)).reshape(len(rays), *self.shape)

    def delay_response(self, rays: Rays) -> Tensor:
        """What each cluster contributes to each subcarrier, exp(-j2πfτ): [batch, subcarriers, clusters], complex128."""
        frequencies = torch.tensor(self.frequencies or (0.0,), dtype=torch.float64, device=rays.delays.device)
        phase = -2 * math.pi * frequencies[:, None] * rays.delays.double()[:, None, :]
        return torch.polar(torch.ones_like(phase), phase)

    def beams(self, rays: Rays, transmit: Tensor, combiner: Tensor | None = None) -> Tensor:
        """W_tᴴ H f_t without forming H, for a narrowband source of any size: [batch, T, N_RF or N_r].

        transmit: [batch, N_t, T]; combiner: [batch, T, N_r, N_RF], None for a fully digital receiver.
        """
        if self.frequencies is not None:
            raise ValueError("frequencies must be None for generation in the beam domain, which is narrowband")
        return self.scale * self.factors(rays).beams(transmit, combiner)

    def sample(self, count: int, *, seed: int, split: Split = "test", start: int = 0) -> tuple[Tensor, Rays | None]:
        """h of samples start … start + count - 1 of the stream (seed, split), and their rays where they are known."""

        def block(indices: range) -> tuple[Tensor, ...]:
            h, rays = self.channels(indices, seed=seed, split=split)
            return h, *(rays.tensors() if rays is not None else ())

        h, *tensors = in_blocks(start, count, block)
        return h, Rays(*tensors) if tensors else None


def drawn_power(source: ChannelSource, *, draws: int = 4096, split: Split = "train") -> float:
    """The mean power over phases of `draws` samples of seed 0: `mean_power` of a source that has no closed form."""

    def power(rays: Rays) -> Tensor:
        if source.phases_per_ray == 1:
            return source.factors(rays).gains.abs().double().square().sum(3).mean((1, 2))
        return expected_power(rays, source.rx, source.tx)

    blocks = torch.split(torch.arange(draws), 256)
    return float(torch.cat([power(source.rays(some.tolist(), seed=0, split=split)) for some in blocks]).mean())


def uniform_draws(generators: Sequence[torch.Generator], count: int) -> Tensor:
    """Uniform numbers in [0, 1) from each sample's own generator: [batch, count]."""
    values = torch.empty(len(generators), count)
    for row, generator in zip(values, generators, strict=True):
        torch.rand(count, generator=generator, out=row)
    return values
