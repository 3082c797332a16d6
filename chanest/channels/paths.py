"""A few plane waves through a pulse-shaping filter: the frequency-selective channel of the hybrid-MIMO literature.

H[k] = Σ_l g_l P_k(τ_l) a_rx a_txᵀ with P_k(τ) = Σ_d p(dT_s - τ) exp(-j2πf_k dT_s), d = 0 … taps - 1, p a raised cosine,
gains CN(0, 1/L), azimuths uniform over the half-plane in front of each array and delays uniform over the taps (the
set-up of Rodríguez-Fernández et al., "Frequency-domain compressive channel estimation", 2018).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from chanest.channels.rays import Rays
from chanest.channels.source import ChannelSource, uniform_draws


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

    @property
    def has_line_of_sight(self) -> bool:
        return False

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
            xpr=torch.full((batch,), math.inf),
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


def raised_cosine(time: Tensor, rolloff: float) -> Tensor:
    """Impulse response of a raised cosine. time: [...] in symbol times -> [...]."""
    edge = 1 - (2 * rolloff * time) ** 2
    regular = edge.abs() > 1e-6
    smooth = torch.cos(math.pi * rolloff * time) / torch.where(regular, edge, torch.ones_like(edge))
    return torch.sinc(time) * torch.where(regular, smooth, torch.full_like(time, math.pi / 4))
