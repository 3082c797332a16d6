"""Clustered delay lines CDL-A … CDL-E of TR 38.901: Sionna's tables and conventions, drawn sample by sample."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import get_args

import torch
from torch import Tensor

from chanest.arrays import Array
from chanest.channels.power import Sector, mean_cdl_power
from chanest.channels.rays import Rays
from chanest.channels.source import ChannelSource, Direction, uniform_draws
from chanest.channels.tables import RAYS_PER_CLUSTER, CdlModel, CdlTable, cdl_table

_ANGLES = ("aoa", "aod", "zoa", "zod")
_EXTRA_DRAWS = 9

BS_SECTOR = Sector(yaw=0.0, yaw_spread=math.pi / 3)
UE_SECTOR = Sector(yaw=math.pi, yaw_spread=math.pi)


@dataclass(frozen=True)
class CdlSource(ChannelSource):
    """CDL channels of one model, or of a mixture of several with equal weights.

    The cluster angles of a CDL are constants: with both sectors of width zero only phases and the coupling of rays vary
    and the channel is nearly Gaussian. Random orientation is what makes estimation hard, so it is the default.
    """

    models: tuple[CdlModel, ...] = ("C",)
    delay_spread: float = 100e-9
    bs_sector: Sector = BS_SECTOR
    ue_sector: Sector = UE_SECTOR
    random_los_phase: bool = True
    """Draw the phase of the line of sight of D and E. Without it, 89 % of their energy would be a fixed mean."""
    speed: tuple[float, float] = (0.0, 0.0)
    """Least and largest speed of the user; its heading is drawn as Sionna does."""

    def __post_init__(self) -> None:
        if not self.models or any(model not in get_args(CdlModel) for model in self.models):
            raise ValueError(f"models must name some of {', '.join(get_args(CdlModel))}, got {self.models!r}")
        if not 0.0 <= self.speed[0] <= self.speed[1] < math.inf:
            raise ValueError(f"speed must be (least, largest) with 0 <= least <= largest, got {self.speed!r}")
        if not 0.0 <= self.delay_spread < math.inf:
            raise ValueError(f"delay_spread must be a non-negative time in seconds, got {self.delay_spread!r}")

    @property
    def has_line_of_sight(self) -> bool:
        return any(cdl_table(model).k_factor > 0 for model in self.models)

    @cached_property
    def mean_power(self) -> float:
        rx, tx = (self.ue_sector, self.bs_sector) if self.direction == "downlink" else (self.bs_sector, self.ue_sector)
        each = [_mean_power(model, self.direction, self.rx, self.tx, rx, tx) for model in self.models]
        return sum(each) / len(each)

    def draw(self, generators: Sequence[torch.Generator]) -> Rays:
        table = _stacked(self.models, self.direction)
        clusters = table["delays"].shape[1]
        cells = clusters * RAYS_PER_CLUSTER
        draws = uniform_draws(generators, 8 * cells + _EXTRA_DRAWS)
        phases, keys, extra = torch.split(draws, [4 * cells, 4 * cells, _EXTRA_DRAWS], dim=1)
        model = (extra[:, 0] * len(self.models)).long()
        keys = keys.reshape(-1, 4, clusters, RAYS_PER_CLUSTER)
        angles = table["angles"][model].gather(3, torch.argsort(keys, dim=-1, stable=True))
        bs, ue = self.bs_sector.orient(extra[:, 1:3]), self.ue_sector.orient(extra[:, 3:5])
        rx, tx = (ue, bs) if self.direction == "downlink" else (bs, ue)
        los_phase = math.pi * (2 * extra[:, 5] - 1) if self.random_los_phase else torch.zeros_like(extra[:, 5])
        return Rays(
            model=model,
            delays=table["delays"][model] * self.delay_spread,
            powers=table["powers"][model],
            **dict(zip(_ANGLES, angles.unbind(1), strict=True)),
            phases=math.pi * (2 * phases.reshape(-1, clusters, RAYS_PER_CLUSTER, 4) - 1),
            xpr=table["xpr"][model],
            k_factor=table["k_factor"][model],
            los_angles=table["los_angles"][model],
            los_phase=los_phase,
            rx_orientation=rx,
            tx_orientation=tx,
            velocity=self._velocity(extra[:, 6:9]),
            time=torch.zeros(len(generators)),
        )

    def _velocity(self, draws: Tensor) -> Tensor:
        """Speed uniform in the range, azimuth uniform over the circle, zenith uniform in (0, π): [batch, 3]."""
        least, largest = self.speed
        speed = least + (largest - least) * draws[:, 0]
        azimuth, zenith = 2 * math.pi * draws[:, 1], math.pi * draws[:, 2]
        sine = torch.sin(zenith)
        heading = torch.stack([sine * torch.cos(azimuth), sine * torch.sin(azimuth), torch.cos(zenith)], 1)
        return speed[:, None] * heading


@lru_cache
def _mean_power(
    model: CdlModel, direction: Direction, rx: Array, tx: Array, rx_sector: Sector, tx_sector: Sector
) -> float:
    return mean_cdl_power(_directed(model, direction), rx, tx, rx_sector, tx_sector)


def _directed(model: CdlModel, direction: Direction) -> CdlTable:
    table = cdl_table(model)
    return table if direction == "downlink" else table.reversed()


@lru_cache
def _stacked(models: tuple[CdlModel, ...], direction: Direction) -> dict[str, Tensor]:
    """The tables of several models side by side, padded with clusters of power zero, float32.

    delays, powers: [models, clusters]; angles: [models, 4, clusters, rays]; xpr, k_factor: [models];
    los_angles: [models, 4].
    """
    tables = [_directed(model, direction) for model in models]
    clusters = max(len(table.delays) for table in tables)

    def padded(values: Tensor, dim: int) -> Tensor:
        missing = clusters - values.shape[dim]
        last = values.narrow(dim, values.shape[dim] - 1, 1)
        return torch.cat([values, *([last] * missing)], dim)

    powers = torch.zeros(len(tables), clusters)
    for row, table in zip(powers, tables, strict=True):
        row[: len(table.powers)] = table.powers
    return {
        "delays": torch.stack([padded(table.delays, 0) for table in tables]).float(),
        "powers": powers,
        "angles": torch.stack(
            [padded(torch.stack([getattr(table, name) for name in _ANGLES]), 1) for table in tables]
        ).float(),
        "xpr": torch.tensor([table.xpr for table in tables]),
        "k_factor": torch.tensor([table.k_factor for table in tables]),
        "los_angles": torch.tensor([table.los_angles for table in tables]),
    }
