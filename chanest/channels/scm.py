"""The spatial channel model of the learned-estimator papers: Kronecker covariances of a few Laplacian clusters.

A sample has L clusters: gains uniform on [0, 1], then normalised to sum one, and an angle uniform on ±90° at each end. Around
it the power angular spectrum is Laplacian, of standard deviation 2° at the base station and 35° at the user, wrapped round the
circle; a linear array sees front and back folded together. With linear arrays and X of independent CN(0, 1) entries
    H = R_bs^½ X R_ms^{T/2},  R = Σ_l g_l R_l,
so that both ends share the gains, and given the angles the channel is Gaussian with covariance R_bs ⊗ R_ms (the
3GPP model of B. Fesl, M. Koller, W. Utschick and co-authors). In their papers y = h + n, which is beams = "identity".

The covariance of two antennas k steps of d wavelengths apart is the Fourier coefficient E exp(j2πdk sin θ). Expanding the
exponential in e^{jnθ} (Jacobi–Anger) leaves the characteristic function of the Laplacian at integers, where wrapping is exact:
    r(k) = Σ_n J_n(2πdk) e^{jnθ₀} / (1 + n²σ²/2).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from chanest.arrays import Array
from chanest.channels.rays import Rays, strengths
from chanest.channels.section import ArraySection, ChannelSection
from chanest.channels.source import Backend, ChannelSource, Direction, uniform_draws
from vlista_core.draws import Split, sample_generators
from vlista_core.linalg import cholesky

_RAYS = 100
_STRIDE = 37
"""Coprime to the number of rays: which quantile of one end goes with which of the other."""
_MARGIN = 40
"""Orders of Bessel functions beyond their argument, after which they are below 1e-16."""


@dataclass(frozen=True)
class ScmSource(ChannelSource):
    """L clusters between linear arrays. Spreads in radians.

    The rays are what a helper knows: a cluster for every pair of a cluster at the receiver and one at the transmitter, power
    g_i·g_j, its rays at the quantiles of the Laplacian. The mean of their outer products is the covariance, as nearly as 100
    points give it; `covariances` has it exactly.
    """

    from_rays: ClassVar[bool] = False

    clusters: int = 3
    bs_spread: float = math.radians(2.0)
    ue_spread: float = math.radians(35.0)

    def __post_init__(self) -> None:
        for name, array in (("bs", self.bs), ("ue", self.ue)):
            if array.rows != 1 or array.pattern != "omni" or array.polarization != "V":
                allowed = "one row, pattern omni and polarization V"
                raise ValueError(f"{name} must have {allowed} for the spatial channel model, got {array}")
        if self.backend != "factored":
            raise ValueError(f"backend must be factored for the spatial channel model, got {self.backend!r}")

    @property
    def mean_power(self) -> float:
        return 1.0

    @property
    def spreads(self) -> tuple[float, float]:
        """Of the receiver and of the transmitter."""
        return self.ends(self.bs_spread, self.ue_spread)

    def draw(self, generators: Sequence[torch.Generator]) -> Rays:
        batch, count, zeros = len(generators), self.clusters, torch.zeros(len(generators))
        gains, arriving, leaving = uniform_draws(generators, 3 * count).reshape(batch, 3, count).unbind(1)
        gains = gains / gains.sum(1, keepdim=True).clamp_min(torch.finfo(gains.dtype).tiny)
        rx_spread, tx_spread = self.spreads
        offsets, order = _quantiles(), torch.arange(_RAYS) * _STRIDE % _RAYS
        pairs = (batch, count, count, _RAYS)
        aoa = math.pi * (arriving - 0.5)[:, :, None, None] + rx_spread * offsets
        aod = math.pi * (leaving - 0.5)[:, None, :, None] + tx_spread * offsets[order]
        level = torch.full((batch, count**2, _RAYS), math.pi / 2)
        return Rays(
            model=torch.zeros(batch, dtype=torch.int64),
            delays=torch.zeros(batch, count**2),
            powers=(gains[:, :, None] * gains[:, None, :]).flatten(1),
            aoa=aoa.expand(pairs).flatten(1, 2),
            aod=aod.expand(pairs).flatten(1, 2),
            zoa=level,
            zod=level.clone(),
            phases=torch.zeros(batch, count**2, _RAYS, 4),
            strength=strengths(torch.full((batch,), math.inf)),
            k_factor=zeros,
            los_angles=torch.zeros(batch, 4),
            los_phase=zeros.clone(),
            rx_orientation=torch.zeros(batch, 3),
            tx_orientation=torch.zeros(batch, 3),
            velocity=torch.zeros(batch, 3),
            time=zeros.clone(),
        )

    def channels(self, indices: Sequence[int], *, seed: int, split: Split = "test") -> tuple[Tensor, Rays]:
        rays = self.rays(indices, seed=seed, split=split)
        generators = sample_generators(seed, split, indices, "fading")
        shape = (self.rx.ports, self.tx.ports)
        fading = torch.stack([torch.randn(shape, dtype=torch.complex64, generator=each) for each in generators])
        rx, tx = (cholesky(covariance) for covariance in self.covariances(rays))
        return (rx @ fading.to(rx.dtype) @ tx.mT).to(torch.complex64), rays

    def covariances(self, rays: Rays) -> tuple[Tensor, Tensor]:
        """Of the receiver, [batch, N_r, N_r], and of the transmitter, [batch, N_t, N_t]; complex128, ones on the diagonal."""
        powers = rays.powers.double().reshape(len(rays), self.clusters, self.clusters)
        rx_angle, tx_angle = (
            angle.double().mean(2).reshape(len(rays), self.clusters, self.clusters) for angle in (rays.aoa, rays.aod)
        )
        rx_spread, tx_spread = self.spreads
        return (
            laplacian_covariance(self.rx, rx_angle[:, :, 0], powers.sum(2), rx_spread),
            laplacian_covariance(self.tx, tx_angle[:, 0, :], powers.sum(1), tx_spread),
        )


class ScmSection(ChannelSection):
    """The spatial channel model; spreads are standard deviations in degrees."""

    kind: Literal["scm"]
    """Which channels these are."""
    carrier: float = Field(default=2e9, ge=1e6, le=1e13)
    """Carrier frequency in hertz."""
    direction: Direction = "uplink"
    """Who sends: downlink, the base station; uplink, the user."""
    clusters: int = Field(default=3, ge=1, le=8)
    """Of a sample, each a Laplacian power spectrum over angles."""
    bs_spread: float = Field(default=2.0, gt=0, le=90)
    """Spread of a cluster at the base station, degrees."""
    ue_spread: float = Field(default=35.0, gt=0, le=90)
    """Spread of a cluster at the user, degrees."""

    def source(self, bs: ArraySection, ue: ArraySection, backend: Backend = "factored") -> ScmSource:
        for name, end in (("bs", bs), ("ue", ue)):
            turned = {
                key: getattr(end, key) for key in ("yaw", "yaw_spread", "tilt", "tilt_spread") if getattr(end, key)
            }
            for key, value in turned.items():
                raise ValueError(f"{name}.{key} must be 0 for scm, whose angles are those of the array, got {value}")
        return ScmSource(
            bs.array(), ue.array(), self.carrier, self.direction, backend=backend, clusters=self.clusters,
            bs_spread=math.radians(self.bs_spread), ue_spread=math.radians(self.ue_spread),
        )  # fmt: skip


def laplacian_covariance(array: Array, angles: Tensor, gains: Tensor, spread: float) -> Tensor:
    """Σ_l g_l E aaᴴ over the Laplacian around each angle. angles, gains: [batch, L], float64 -> [batch, N, N], complex128."""
    weights = _bessel(array.columns, array.horizontal_spacing, spread)
    orders = torch.arange(weights.shape[0], dtype=torch.float64) - weights.shape[0] // 2
    phase = orders * angles[:, :, None]
    series = (torch.polar(gains[:, :, None].expand_as(phase), phase)).sum(1)
    lags = series @ weights.to(series.dtype)
    place = torch.arange(array.columns)
    apart = place[:, None] - place
    table = torch.cat([lags[:, 1:].flip(1).conj(), lags], 1)
    return table[:, apart + array.columns - 1]


@lru_cache
def _bessel(count: int, spacing: float, spread: float) -> Tensor:
    """J_n(2πdk)/(1 + n²σ²/2) for the orders n = -M … M and lags k = 0 … count - 1: [2M + 1, count], float64."""
    from scipy.special import jv

    argument = 2 * math.pi * spacing * torch.arange(count, dtype=torch.float64)
    most = math.ceil(float(argument[-1])) + _MARGIN
    orders = torch.arange(-most, most + 1, dtype=torch.float64)
    values = torch.from_numpy(jv(orders[:, None].numpy(), argument.numpy()))
    return values / (1 + orders[:, None].square() * spread**2 / 2)


@lru_cache
def _quantiles() -> Tensor:
    """Of the Laplacian of standard deviation one: [rays], float32. Their mean is zero."""
    centred = (2 * torch.arange(_RAYS, dtype=torch.float64) + 1) / _RAYS - 1
    return (-torch.sign(centred) * torch.log1p(-centred.abs()) / math.sqrt(2)).float()
