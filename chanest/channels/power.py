"""The mean power of an ensemble in closed form: the constant that makes E|h_ij|² = 1."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from chanest.arrays import Array
from chanest.channels.geometry import Directions, fields, rotation
from chanest.channels.tables import CdlTable


@dataclass(frozen=True)
class Sector:
    """The orientations an end may take: yaw and tilt uniform within ± their spread, in radians; roll is zero."""

    yaw: float = 0.0
    yaw_spread: float = 0.0
    tilt: float = 0.0
    tilt_spread: float = 0.0

    def orient(self, draws: Tensor) -> Tensor:
        """Orientations from uniform numbers. draws: [batch, 2] in [0, 1) -> [batch, 3]."""
        yaw = self.yaw + self.yaw_spread * (2 * draws[:, 0] - 1)
        tilt = self.tilt + self.tilt_spread * (2 * draws[:, 1] - 1)
        return torch.stack([yaw, tilt, torch.zeros_like(yaw)], dim=1)

    def quadrature(self, *, yaws: int = 60, tilts: int = 6) -> Tensor:
        """Midpoints of a grid over the sector: [points, 3], float64. An angle that does not vary gets one point."""
        yaw_points, tilt_points = (
            (torch.arange(count, dtype=torch.float64) + 0.5) / count
            if spread
            else torch.full((1,), 0.5, dtype=torch.float64)
            for count, spread in ((yaws, self.yaw_spread), (tilts, self.tilt_spread))
        )
        return self.orient(torch.cartesian_prod(yaw_points, tilt_points))


def mean_cdl_power(table: CdlTable, rx: Array, tx: Array, rx_sector: Sector, tx_sector: Sector) -> float:
    """E|h_ij|² over phases, couplings, orientations and ports.

    Azimuth and zenith of an end are coupled at random, so a ray meets each of the 20 × 20 pairs equally often and the
    two ends are independent: the expectation is a sum of products of moments of the two element fields.
    """
    receive, receive_los = _moments(rx, rx_sector, table.zoa, table.aoa, table.los_angles[2], table.los_angles[0])
    transmit, transmit_los = _moments(tx, tx_sector, table.zod, table.aod, table.los_angles[3], table.los_angles[1])
    mixing = torch.tensor([[1.0, 1.0 / table.xpr], [1.0 / table.xpr, 1.0]], dtype=torch.float64)
    diffuse = torch.einsum("c,ca,ab,cb->", table.powers, receive[:, :2], mixing, transmit[:, :2])
    # (F_θF'_θ - F_φF'_φ)², the line of sight: its polarisation matrix is diag(1, -1). The mean over ports of both ends.
    specular = receive_los[:2] @ transmit_los[:2] - 2 * receive_los[2] * transmit_los[2]
    return float((diffuse + table.k_factor * specular) / (1 + table.k_factor))


def _moments(
    array: Array, sector: Sector, zenith: Tensor, azimuth: Tensor, los_zenith: float, los_azimuth: float
) -> tuple[Tensor, Tensor]:
    """E[F_θ²], E[F_φ²], E[F_θF_φ] over orientations and polarisations: clusters [clusters, 3], line of sight [3]."""
    clusters, rays = zenith.shape
    pairs_zenith = zenith[:, :, None].expand(-1, -1, rays).flatten()
    pairs_azimuth = azimuth[:, None, :].expand(-1, rays, -1).flatten()
    all_zenith = torch.cat([pairs_zenith, torch.tensor([los_zenith], dtype=torch.float64)])
    all_azimuth = torch.cat([pairs_azimuth, torch.tensor([los_azimuth], dtype=torch.float64)])
    turns_with_yaw = array.pattern != "omni" or sector.tilt != 0.0 or sector.tilt_spread != 0.0
    points = sector.quadrature() if turns_with_yaw else sector.quadrature(yaws=1)
    total = torch.zeros(3, len(all_zenith), dtype=torch.float64)
    for orientation in torch.split(points, 8):
        size = len(orientation)
        toward = Directions.of(all_zenith.expand(size, -1), all_azimuth.expand(size, -1))
        local = toward.vectors() @ rotation(orientation)
        theta, phi = fields(array, orientation, toward, local).unbind(2)
        total += torch.stack([theta**2, phi**2, theta * phi]).mean(2).sum(1)
    total /= len(points)
    return total[:, :-1].reshape(3, clusters, -1).mean(2).T, total[:, -1]
