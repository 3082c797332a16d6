"""A few plane waves through a pulse-shaping filter: the frequency-selective channel of the hybrid-MIMO literature.

H[k] = Σ_l g_l P_k(τ_l) a_rx a_txᵀ with P_k(τ) = Σ_d p(dT_s - τ) exp(-j2πf_k dT_s), d = 0 … taps - 1, p a raised cosine,
gains CN(0, 1/L), azimuths uniform over the half-plane in front of each array and delays uniform over the taps (the
set-up of Rodríguez-Fernández et al., "Frequency-domain compressive channel estimation", 2018).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from chanest.channels.rays import Rays, strengths
from chanest.channels.section import ArraySection, ChannelSection
from chanest.channels.source import Backend, ChannelSource, Direction, uniform_draws


@dataclass(frozen=True)
class PathSource(ChannelSource):
    """`paths` single rays at random angles, seen through a raised cosine of `pulse_taps` symbol times."""

    paths: int = 4
    pulse_taps: int = 4
    symbol_time: float = 1e-9
    rolloff: float = 0.8

    def __post_init__(self) -> None:
        if self.frequencies is None:
            raise ValueError("frequencies must be given for a source with a pulse shape, got None")
        for name, array in (("bs", self.bs), ("ue", self.ue)):
            if array.pattern != "omni" or array.polarization != "V":
                raise ValueError(f"{name} must have pattern omni and polarization V for plain paths, got {array}")

    @cached_property
    def mean_power(self) -> float:
        points = (torch.arange(4096, dtype=torch.float64) + 0.5) / 4096
        response = self._pulse_response(points[None] * self._longest_delay)
        return float(response.abs().square().mean())

    @property
    def _longest_delay(self) -> float:
        return (self.pulse_taps - 1) * self.symbol_time

    def draw(self, generators: Sequence[torch.Generator]) -> Rays:
        batch, paths = len(generators), self.paths
        draws = uniform_draws(generators, 5 * paths).reshape(batch, 5, paths)
        azimuth_rx, azimuth_tx, phase, power, delay = draws.unbind(1)
        zeros, level = torch.zeros(batch), torch.full((batch, paths, 1), math.pi / 2)
        delays, order = torch.sort(delay * self._longest_delay, dim=1)
        phases = torch.zeros(batch, paths, 1, 4)
        phases[..., 0] = math.pi * (2 * phase[..., None] - 1)
        return Rays(
            model=torch.zeros(batch, dtype=torch.int64),
            delays=delays,
            powers=-torch.log1p(-power).gather(1, order) / paths,
            aoa=math.pi * (azimuth_rx[..., None] - 0.5),
            aod=math.pi * (azimuth_tx[..., None] - 0.5),
            zoa=level,
            zod=level.clone(),
            phases=phases,
            strength=strengths(torch.full((batch,), math.inf)),
            k_factor=zeros,
            los_angles=torch.zeros(batch, 4),
            los_phase=zeros.clone(),
            rx_orientation=torch.zeros(batch, 3),
            tx_orientation=torch.zeros(batch, 3),
            velocity=torch.zeros(batch, 3),
            time=zeros.clone(),
        )

    def delay_response(self, rays: Rays) -> Tensor:
        return self._pulse_response(rays.delays.double())

    def _pulse_response(self, delays: Tensor) -> Tensor:
        """P_k(τ): delays [batch, paths] -> [batch, subcarriers, paths], complex128."""
        frequencies = torch.tensor(self.frequencies, dtype=torch.float64, device=delays.device)
        instants = torch.arange(self.pulse_taps, dtype=torch.float64, device=delays.device)
        phase = -2 * math.pi * self.symbol_time * frequencies[:, None] * instants
        pulse = raised_cosine(instants[:, None] - delays[:, None, :] / self.symbol_time, self.rolloff)
        return torch.polar(torch.ones_like(phase), phase) @ pulse.to(torch.complex128)


class PathSection(ChannelSection):
    """Plain paths through a pulse of `taps` samples, on all subcarriers of the band."""

    kind: Literal["paths"]
    """Which channels these are."""
    paths: int = Field(default=4, ge=1, le=2**16)
    """Of a sample."""
    taps: int = Field(default=4, ge=1)
    """Length of the channel in samples."""
    rolloff: float = Field(default=0.8, ge=0, le=1)
    """Of the raised-cosine pulse."""
    carrier: float = Field(default=60e9, ge=1e6, le=1e13)
    """Carrier frequency in hertz."""
    direction: Direction = "downlink"
    """Who sends: downlink, the base station; uplink, the user."""
    subcarriers: int = Field(default=16, ge=1, le=2**16)
    """Of the band, on which the channel is known."""
    subcarrier_spacing: float = Field(default=120e3, ge=1, le=1e10)
    """In hertz."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.subcarriers < self.taps:
            raise ValueError(f"subcarriers must be at least taps = {self.taps}, got {self.subcarriers}")
        return self

    def source(self, bs: ArraySection, ue: ArraySection, backend: Backend = "factored") -> PathSource:
        """On the subcarriers of a DFT of the symbol: from zero up."""
        return PathSource(
            bs.array(), ue.array(), self.carrier, self.direction,
            tuple(self.subcarrier_spacing * k for k in range(self.subcarriers)), backend=backend,
            paths=self.paths, pulse_taps=self.taps, rolloff=self.rolloff,
            symbol_time=1 / (self.subcarriers * self.subcarrier_spacing),
        )  # fmt: skip


def raised_cosine(time: Tensor, rolloff: float) -> Tensor:
    """Impulse response of a raised cosine. time: [...] in symbol times -> [...]."""
    edge = 1 - (2 * rolloff * time) ** 2
    regular = edge.abs() > 1e-6
    smooth = torch.cos(math.pi * rolloff * time) / torch.where(regular, edge, torch.ones_like(edge))
    return torch.sinc(time) * torch.where(regular, smooth, torch.full_like(time, math.pi / 4))
