"""The delays of a channel as y itself shows them: powers on a grid of delays, and the delay modes that carry them.

Nothing is known of the channel beforehand. The measurements of one subcarrier are taken for independent draws of one
covariance over the subcarriers, C = Σ_k p_k d_k d_kᴴ + σ²I, and the powers p of all delays go up the likelihood by
majorise–minimise steps, p_k ← p_k (g_k/q_k)^0.7 with g_k = d_kᴴC⁻¹ĜC⁻¹d_k, q_k = d_kᴴC⁻¹d_k and Ĝ what was measured.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from vlista_core.estimate import Measurement
from vlista_core.gaussian import DenseCovariance, condition
from vlista_core.linops import IdentityMap
from vlista_core.prox import squared_modulus

_OVERSAMPLING = 2
_STEPS, _EXPONENT = 15, 0.7
_CAUTION = 1.3
"""What noise is taken for: draws of it differ, and no delay is to explain that."""
_LEAST_POWER = 0.1
"""Power of a mode in units of the noise, below which nothing can be said of it."""
_LEAST_RATIO = 1e-6
_LEAST_SHARE = 0.05


class OwnModes(NamedTuple):
    """The delay modes of each sample, strongest first, padded to as many as the sample with the most has."""

    modes: Tensor
    """U: [batch, S, D]."""
    powers: Tensor
    """E|uᴴh|² of an antenna, 0 for padding: [batch, D]."""


def own_modes(measured: Measurement, subcarriers: int) -> OwnModes:
    """Of samples whose subcarriers are all measured alike, with white noise."""
    y = measured.y.unflatten(1, (subcarriers, -1))
    gain = measured.phi.blocks()[0].squared_frobenius_norm() / y.shape[2]
    gain = gain.clamp_min(torch.finfo(gain.dtype).tiny)
    noise = measured.noise_var / gain
    total = delay_covariance(y @ y.mH / (y.shape[2] * gain[:, None, None]), noise)
    values, vectors = torch.linalg.eigh(total)
    values, vectors = values.flip(1).clamp_min(0.0), vectors.flip(2)
    kept = values > _LEAST_POWER * noise[:, None]
    kept[:, 0] = True
    values = values.clamp_min(torch.finfo(values.dtype).tiny)
    count = int(kept.sum(1).max())
    return OwnModes(vectors[:, :, :count], torch.where(kept, values, 0.0)[:, :count])


def delay_covariance(shown: Tensor, noise: Tensor) -> Tensor:
    """Σ_k p_k d_k d_kᴴ. shown: Ĝ, [batch, S, S], noise: [batch] -> [batch, S, S]."""
    subcarriers = shown.shape[1]
    points = _OVERSAMPLING * subcarriers
    turn = torch.outer(torch.arange(subcarriers), -2 * math.pi * torch.arange(points) / points).to(shown.real)
    delays = torch.polar(torch.ones_like(turn), turn)
    level = _CAUTION * noise.maximum(torch.finfo(noise.dtype).eps * shown.diagonal(dim1=1, dim2=2).real.mean(1))
    level = level.clamp_min(torch.finfo(noise.dtype).tiny)
    power = shown.diagonal(dim1=1, dim2=2).real.mean(1)
    powers = ((power - level).maximum(_LEAST_SHARE * level) / points)[:, None].expand(-1, points)
    nothing, identity = shown.new_zeros(len(shown), subcarriers), IdentityMap(subcarriers, shown.dtype, shown.device)
    for _ in range(_STEPS):
        prior = DenseCovariance((delays * powers[:, None]) @ delays.mH)
        white = condition(prior, Measurement(nothing, identity, level)).precision @ delays
        expected = (delays.conj() * white).sum(1).real
        asked = (white.conj() * (shown @ white)).sum(1).real
        powers = powers * (asked / expected).clamp_min(_LEAST_RATIO) ** _EXPONENT
    return (delays * powers[:, None]) @ delays.mH


@dataclass(frozen=True)
class ModeParts:
    """Every delay mode of some samples as a narrowband measurement of a channel of power one."""

    measured: Measurement
    """Of all subcarriers, with white noise."""
    own: OwnModes
    each: Measurement
    """Of the modes of all samples, one after another: [modes in all, m₁]."""
    sample: Tensor
    """Whose mode it is: [modes in all]."""
    mode: Tensor
    """Which: [modes in all]."""

    @classmethod
    def of(cls, measured: Measurement, subcarriers: int) -> "ModeParts":
        """From measurements with white noise that see all subcarriers alike."""
        own = own_modes(measured, subcarriers)
        y = own.modes.mH @ measured.y.unflatten(1, (subcarriers, -1))
        sample, mode = own.powers.nonzero(as_tuple=True)
        power = own.powers[sample, mode]
        phi = measured.phi.blocks()[0].select(sample)
        each = Measurement(y[sample, mode] / power.sqrt()[:, None], phi, measured.noise_var[sample] / power)
        return cls(measured, own, each, sample, mode)

    def alone(self, place: int) -> "ModeParts":
        """Of one sample, without padding."""
        some, kept = self.sample == place, int((self.own.powers[place] > 0).sum())
        index = torch.tensor([place], device=self.sample.device)
        own = OwnModes(self.own.modes[index, :, :kept], self.own.powers[index, :kept])
        where = torch.zeros_like(self.sample[some])
        return ModeParts(
            self.measured.select(index), own, self.each.select(some.nonzero()[:, 0]), where, self.mode[some]
        )

    @property
    def scale(self) -> Tensor:
        """What the channels of power one are to be multiplied by: [modes in all]."""
        return self.own.powers[self.sample, self.mode].sqrt()

    def together(self, parts: Tensor) -> Tensor:
        """h on the subcarriers from the channels of power one: [modes in all, n₁] -> [batch, S·n₁]."""
        return (self.own.modes @ self._placed(self.scale[:, None] * parts)).flatten(1)

    def variances_together(self, parts: Tensor) -> Tensor:
        """Variances on the subcarriers where modes err independently of each other: [modes in all, n₁] -> [batch, S·n₁]."""
        return (squared_modulus(self.own.modes) @ self._placed(self.scale.square()[:, None] * parts)).flatten(1)

    def _placed(self, parts: Tensor) -> Tensor:
        """[modes in all, n₁] -> [batch, D, n₁], zero for padding."""
        whole = parts.new_zeros(*self.own.powers.shape, parts.shape[1])
        return whole.index_put((self.sample, self.mode), parts)
