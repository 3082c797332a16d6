"""Channel matrices from rays in factored form: H = A_rx diag(g) A_txᵀ, one batched matrix product over all rays.

Nothing of size batch × N_r × N_t × rays is ever formed. Steering vectors are built by doubling (six complex products
give 64 elements), so a ray costs two complex exponentials per end whatever the size of the array. Directions, rotations
and element fields are those of TR 38.901 clauses 7.1 and 7.3, in float64.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from chanest.arrays import Array
from chanest.channels.rays import Rays

SPEED_OF_LIGHT = 299792458.0
End = Literal["rx", "tx"]

# Tables 7.3-1 and 7.3-2: vertical and horizontal 3 dB width (degrees), largest attenuation (dB), element gain (dBi).
_PATTERNS = {"38.901": (65.0, 65.0, 30.0, 8.0), "38.901-handheld": (125.0, 125.0, 22.5, 5.3)}


@dataclass(frozen=True)
class Directions:
    """Directions in the global frame by the sines and cosines of their angles, each [..., rays], taken once."""

    sin_zenith: Tensor
    cos_zenith: Tensor
    sin_azimuth: Tensor
    cos_azimuth: Tensor

    @classmethod
    def of(cls, zenith: Tensor, azimuth: Tensor) -> "Directions":
        """From angles, zenith and azimuth alike [..., rays]."""
        return cls(torch.sin(zenith), torch.cos(zenith), torch.sin(azimuth), torch.cos(azimuth))

    def vectors(self) -> Tensor:
        """Unit vectors: [..., rays, 3]."""
        return torch.stack(
            [self.sin_zenith * self.cos_azimuth, self.sin_zenith * self.sin_azimuth, self.cos_zenith], dim=-1
        )


def velocities(speed: tuple[float, float], draws: Tensor) -> Tensor:
    """Speed uniform in (least, largest), azimuth uniform over the circle, zenith uniform in (0, π), as Sionna's CDL has it.

    draws: [batch, 3] in [0, 1) -> [batch, 3].
    """
    least, largest = speed
    return (least + (largest - least) * draws[:, :1]) * Directions.of(
        math.pi * draws[:, 2], 2 * math.pi * draws[:, 1]
    ).vectors()


@dataclass(frozen=True)
class RayFactors:
    """The factors of H = Σ_ray a_rx g a_txᵀ; rays run cluster by cluster, the line of sight (if any) comes last."""

    rx: Tensor
    """Receive steering: [batch, rays, elements]."""
    tx: Tensor
    """Transmit steering: [batch, rays, elements]."""
    gains: Tensor
    """√power · field · Doppler for each pair of polarisations: [batch, pol_rx, pol_tx, rays]."""
    clusters: int

    def narrowband(self) -> Tensor:
        """Sum of all taps: [batch, N_r, N_t]."""
        return _weighted_product(self.rx, self.gains, self.tx)

    def taps(self) -> Tensor:
        """The matrix of every cluster: [batch, clusters, N_r, N_t]. The line of sight belongs to the first cluster."""
        (batch, rays, _), clusters = self.rx.shape, self.clusters
        diffuse = rays - rays % clusters

        def split(tensor: Tensor) -> Tensor:
            return tensor[:, :diffuse].reshape(batch * clusters, diffuse // clusters, -1)

        pol_rx, pol_tx = self.gains.shape[1:3]
        gains = self.gains[..., :diffuse].reshape(batch, pol_rx, pol_tx, clusters, -1).movedim(3, 1).flatten(0, 1)
        product = _weighted_product(split(self.rx), gains, split(self.tx))
        result = product.reshape(batch, clusters, *product.shape[1:])
        if diffuse < rays:
            result[:, 0] += _weighted_product(self.rx[:, diffuse:], self.gains[..., diffuse:], self.tx[:, diffuse:])
        return result

    def beams(self, transmit: Tensor, combiner: Tensor | None) -> Tensor:
        """W_tᴴ H f_t without H. transmit: [batch, N_t, T], combiner: [batch, T, N_r, N_RF] or None for W = I.

        -> [batch, T, N_RF] (or N_r).
        """
        batch, _, pilots = transmit.shape
        pol_rx, pol_tx, rays = self.gains.shape[1:]
        sent = self.tx @ transmit.reshape(batch, pol_tx, -1, pilots).movedim(1, 2).flatten(2)
        sent = sent.reshape(batch, rays, pol_tx, pilots).permute(0, 2, 3, 1)
        arriving = torch.einsum("bpqr,bqtr->bptr", self.gains, sent)
        if combiner is None:
            received = arriving.flatten(1, 2) @ self.rx
            return received.reshape(batch, pol_rx, pilots, -1).movedim(1, 2).flatten(2)
        chains = combiner.shape[-1]
        weights = combiner.conj().reshape(batch, pilots, pol_rx, -1, chains).permute(0, 3, 2, 1, 4)
        seen = (self.rx @ weights.flatten(2)).reshape(batch, rays, pol_rx, pilots, chains)
        return (seen * arriving.permute(0, 3, 1, 2)[..., None]).sum(dim=(1, 2))


def ray_factors(rays: Rays, rx: Array, tx: Array, carrier: float, moving: End, *, line_of_sight: bool) -> RayFactors:
    """Steering vectors and gains of every ray, complex64 (complex128 for float64 rays).

    `line_of_sight` says whether the source has models with one; the samples without get a ray of power zero.
    """
    wide = torch.float64
    angles = torch.stack([angle.flatten(1) for angle in (rays.aoa, rays.aod, rays.zoa, rays.zod)])
    if line_of_sight:
        angles = torch.cat([angles, rays.los_angles.T[:, :, None]], 2)
    aoa, aod, zoa, zod = angles.to(wide)
    complex_type = torch.complex128 if rays.phases.dtype == wide else torch.complex64
    arriving, leaving = Directions.of(zoa, aoa), Directions.of(zod, aod)
    a_rx, centre_rx, field_rx = _end(rx, rays.rx_orientation.to(wide), arriving, complex_type)
    a_tx, centre_tx, field_tx = _end(tx, rays.tx_orientation.to(wide), leaving, complex_type)

    toward_user = arriving if moving == "rx" else leaving
    radial = (toward_user.vectors() @ rays.velocity.to(wide)[:, :, None])[..., 0]
    shift = centre_rx + centre_tx + 2 * math.pi * carrier / SPEED_OF_LIGHT * radial * rays.time.to(wide)[:, None]
    common = _amplitudes(rays, line_of_sight) * torch.polar(torch.ones_like(shift), shift)
    gains = common[:, None, None, :] * _field_products(rays, field_rx, field_tx, line_of_sight)
    return RayFactors(a_rx, a_tx, gains.to(complex_type), clusters=rays.delays.shape[1])


def _end(
    array: Array, orientation: Tensor, toward: Directions, complex_type: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Of one end: steering relative to its first element, phase of that element, and field."""
    local, field = local_and_field(array, orientation, toward)
    across = 2 * math.pi * array.horizontal_spacing * local[..., 1]
    down = -2 * math.pi * array.vertical_spacing * local[..., 2]
    steering = _powers(across, array.columns, complex_type)
    if array.rows > 1:
        steering = (steering[..., :, None] * _powers(down, array.rows, complex_type)[..., None, :]).flatten(-2)
    first = -(array.columns - 1) / 2 * across - (array.rows - 1) / 2 * down
    return steering, first, field


def _powers(phase: Tensor, count: int, complex_type: torch.dtype) -> Tensor:
    """exp(j·n·phase) for n = 0 … count - 1 by doubling: phase [batch, rays] -> [batch, rays, count].

    The factor of each doubling is squared in double precision, so an entry carries at most log2(count) roundings.
    """
    result = torch.empty(*phase.shape, count, dtype=complex_type, device=phase.device)
    result[..., 0] = 1.0
    if count == 1:
        return result
    factor = torch.polar(torch.ones_like(phase), phase)
    done = 1
    while done < count:
        step = min(done, count - done)
        torch.mul(result[..., :step], factor.to(complex_type)[..., None], out=result[..., done : done + step])
        factor = factor * factor
        done *= 2
    return result


def _amplitudes(rays: Rays, line_of_sight: bool) -> Tensor:
    """√(share of the power) of every ray: [batch, rays], float64."""
    k_factor = rays.k_factor.double()[:, None]
    per_cluster = rays.aoa.shape[2]
    diffuse = torch.sqrt(rays.powers.double() / per_cluster / (k_factor + 1)).repeat_interleave(per_cluster, dim=1)
    return torch.cat([diffuse, torch.sqrt(k_factor / (k_factor + 1))], 1) if line_of_sight else diffuse


def _field_products(rays: Rays, field_rx: Tensor, field_tx: Tensor, line_of_sight: bool) -> Tensor:
    """F_rxᵀ X F_tx with the polarisation matrix X of every ray: [batch, pol_rx, pol_tx, rays], complex128."""
    mixing = torch.polar(rays.strength.expand_as(rays.phases), rays.phases).flatten(1, 2)
    if line_of_sight:
        los = torch.polar(torch.ones_like(rays.los_phase), rays.los_phase)[:, None]
        mixing = torch.cat([mixing, torch.stack([los, 0 * los, 0 * los, -los], dim=2)], 1)
    total = torch.zeros((), dtype=torch.complex128, device=mixing.device)
    for i, entry in enumerate(mixing.unbind(2)):
        receive, transmit = field_rx[:, :, None, i // 2], field_tx[:, None, :, i % 2]
        total = total + receive * transmit * entry[:, None, None, :]
    return total


def expected_power(rays: Rays, rx: Array, tx: Array) -> Tensor:
    """E|h_ij|² over random phases and over the antennas of both ends, for each sample's rays: [batch], float64.

    Elements and their fields decide it, not where they stand, so it costs little whatever the size of the arrays.
    """
    wide = torch.float64
    angles = torch.stack([angle.flatten(1) for angle in (rays.aoa, rays.aod, rays.zoa, rays.zod)])
    aoa, aod, zoa, zod = torch.cat([angles, rays.los_angles.T[:, :, None]], 2).to(wide)
    field_rx = local_and_field(rx, rays.rx_orientation.to(wide), Directions.of(zoa, aoa))[1]
    field_tx = local_and_field(tx, rays.tx_orientation.to(wide), Directions.of(zod, aod))[1]
    share = _amplitudes(rays, True).square()
    mixing = rays.strength.to(wide).expand_as(rays.phases).flatten(1, 2).square().unflatten(2, (2, 2))
    seen = [field[..., :-1].square().mean(1) for field in (field_rx, field_tx)]
    diffuse = torch.einsum("br,brij,bir,bjr->b", share[:, :-1], mixing, *seen)
    (rx_theta, rx_phi), (tx_theta, tx_phi) = (field[..., -1].unbind(2) for field in (field_rx, field_tx))
    line = rx_theta[:, :, None] * tx_theta[:, None] - rx_phi[:, :, None] * tx_phi[:, None]
    return diffuse + share[:, -1] * line.square().mean((1, 2))


def _weighted_product(rx: Tensor, gains: Tensor, tx: Tensor) -> Tensor:
    """Σ_ray a_rx g a_txᵀ for every pair of polarisations as one product: [batch, N_r, N_t].

    rx, tx: [batch, rays, elements]; gains: [batch, pol_rx, pol_tx, rays].
    """
    batch, pol_rx, pol_tx, _ = gains.shape
    elements_rx, elements_tx = rx.shape[2], tx.shape[2]
    left = (rx[:, :, None, :] * gains.flatten(1, 2).mT[..., None]).flatten(2)
    product = torch.bmm(left.mT, tx).view(batch, pol_rx, pol_tx, elements_rx, elements_tx)
    return product.transpose(2, 3).reshape(batch, pol_rx * elements_rx, pol_tx * elements_tx)


def rotation(orientation: Tensor) -> Tensor:
    """The matrix from local to global coordinates (7.1-4). orientation: yaw, tilt, roll [..., 3] -> [..., 3, 3]."""
    (ca, cb, cc), (sa, sb, sc) = torch.cos(orientation).unbind(-1), torch.sin(orientation).unbind(-1)
    rows = [
        torch.stack([ca * cb, ca * sb * sc - sa * cc, ca * sb * cc + sa * sc], dim=-1),
        torch.stack([sa * cb, sa * sb * sc + ca * cc, sa * sb * cc - ca * sc], dim=-1),
        torch.stack([-sb, cb * sc, cb * cc], dim=-1),
    ]
    return torch.stack(rows, dim=-2)


def local_and_field(array: Array, orientation: Tensor, toward: Directions) -> tuple[Tensor, Tensor]:
    """Directions in the frame of an array, and the global θ and φ field of an element of each polarisation.

    orientation: [batch, 3]; toward: [batch, rays] -> [batch, rays, 3] and [batch, polarisations, 2, rays].
    """
    local = toward.vectors() @ rotation(orientation)
    cosine, sine = _polarisation_turn(orientation, toward)
    slants = [(math.cos(slant), math.sin(slant)) for slant in array.slants]
    along_theta = torch.stack([along * cosine - across * sine for along, across in slants], dim=1)
    along_phi = torch.stack([along * sine + across * cosine for along, across in slants], dim=1)
    field = torch.stack([along_theta, along_phi], dim=2)
    return local, field if array.pattern == "omni" else field * _amplitude(array, local)[:, None, None, :]


def _polarisation_turn(orientation: Tensor, toward: Directions) -> tuple[Tensor, Tensor]:
    """cos ψ and sin ψ of the turn from local to global field components (7.1-15): each [batch, rays]."""
    (cos_yaw, cos_tilt, cos_roll), (sin_yaw, sin_tilt, sin_roll) = (
        trigonometry(orientation)[:, :, None].unbind(1) for trigonometry in (torch.cos, torch.sin)
    )
    cos_turn = toward.cos_azimuth * cos_yaw + toward.sin_azimuth * sin_yaw
    sin_turn = toward.sin_azimuth * cos_yaw - toward.cos_azimuth * sin_yaw
    real = sin_roll * toward.cos_zenith * sin_turn + cos_roll * (
        cos_tilt * toward.sin_zenith - sin_tilt * toward.cos_zenith * cos_turn
    )
    imaginary = sin_roll * cos_turn + sin_tilt * cos_roll * sin_turn
    length = torch.hypot(real, imaginary).clamp_min(torch.finfo(real.dtype).tiny)
    return real / length, imaginary / length


def _amplitude(array: Array, local: Tensor) -> Tensor:
    """√(power pattern) in local directions (7.3-1): [batch, rays, 3] -> [batch, rays]."""
    vertical_width, horizontal_width, floor, gain = _PATTERNS[array.pattern]
    zenith = torch.rad2deg(torch.acos(local[..., 2].clamp(-1.0, 1.0)))
    azimuth = torch.rad2deg(torch.atan2(local[..., 1], local[..., 0]))
    vertical = (12 * ((zenith - 90.0) / vertical_width) ** 2).clamp_max(floor)
    horizontal = (12 * (azimuth / horizontal_width) ** 2).clamp_max(floor)
    return 10 ** ((gain - (vertical + horizontal).clamp_max(floor)) / 20)
