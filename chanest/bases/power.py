"""What y says of the power of a channel: in which unit to work, and whether there is anything but noise.

Estimators that learned from channels of E|h|² = 1 expect such channels. One that is stronger or weaker than channels of that
power are by fading (a user near by, channels that nobody normalised) is estimated in a unit of its own and scaled back.
"""

from dataclasses import replace

import torch
from torch import Tensor

from vlista_core.estimate import Estimate, Measurement
from vlista_core.prox import squared_modulus

_USUAL_DB = 10.0
"""How far from E|h|² = 1 fading alone may bring what y shows: 1,000 channels of the shipped scenarios stay within 6.5 dB."""
_OTHER_UNITS_DB = 60.0
"""Beyond this no fading is to blame."""
_SURE = 4.0
"""Standard deviations."""
_NOTHING, _SOMETHING = 4.0, 7.0
"""-log10 of the probability that noise alone is as strong as y: up to the first y need not show a channel, from the second on
it surely does."""


def shown_power(measured: Measurement) -> tuple[Tensor, Tensor]:
    """E|h|² as y shows it, (|y|² - mσ²)/‖Φ‖², which may be negative, and the deviation that noise gives it: [batch] each."""
    count, seen = measured.y.shape[1], measured.phi.squared_frobenius_norm()
    seen = seen.clamp_min(torch.finfo(seen.dtype).tiny)
    energy = squared_modulus(measured.y).sum(1)
    return (energy - count * measured.noise_var) / seen, count**0.5 * measured.noise_var / seen


def unusual(measured: Measurement, name: str) -> Tensor | None:
    """Which samples are surely not of E|h|² = 1, fading included: [batch] bool, None for none; ValueError for wrong units."""
    power, deviation = shown_power(measured)
    low, high = power - _SURE * deviation, power + _SURE * deviation
    high = torch.where(squared_modulus(measured.y).sum(1) > 0, high, 1.0)  # y = 0 is a channel of no power, not a unit
    usual, most = 10 ** (_USUAL_DB / 10), 10 ** (_OTHER_UNITS_DB / 10)
    found = (low > usual) | (high < 1 / usual)
    if found.is_meta or not bool(found.any()):
        return None
    wrong = (low > most) | (high < 1 / most)
    if bool(wrong.any()):
        unit = float(power[wrong].abs().median().sqrt())
        raise ValueError(
            f"y must come from channels of E|h|² = 1 or so, for which this {name} was made; {int(wrong.sum())} of {len(wrong)} "
            f"samples show about {unit**2:.1e}. Divide y by {unit:.1e} and noise_var by its square, and multiply the result"
        )
    return found


def in_unit(measured: Measurement, unit: Tensor) -> Measurement:
    """The measurement of h/unit. unit: [batch]."""
    return Measurement(measured.y / unit[:, None], measured.phi, measured.noise_var / unit.square())


def kept(measured: Measurement, found: Estimate, loudest: float) -> Estimate:
    """The estimate of a method without a prior, scaled down where it would be worse than none.

    One that fits y worse than zero does is scaled to its best fit. Noise above the loudest that the method was made for weakens
    it as it does a linear filter, by loudest/σ² from E|h|² = 1 at the most, unless y is surely stronger than noise.
    """
    fit = measured.phi.apply(found.signal)
    energy, along = squared_modulus(fit).sum(1), (fit.conj() * measured.y).real.sum(1)
    best = (along / energy.clamp_min(torch.finfo(energy.dtype).tiny)).clamp(0.0, 1.0)
    share = torch.where(energy > 2 * along, best, 1.0)
    noise, usual = measured.noise_var.clamp_min(loudest), measured.phi.squared_frobenius_norm()
    weak = loudest / noise
    weak = torch.where(weak < 1, weak * (usual / energy.maximum(usual)).sqrt(), weak)
    share = (share * _presence(measured.y, noise).maximum(weak))[:, None]
    return replace(found, signal=share * found.signal, code=None if found.code is None else share * found.code)


def _presence(y: Tensor, noise_var: Tensor) -> Tensor:
    """0 where noise alone may well be as strong as y, 1 where it is surely not: [batch]. y: complex, [batch, m]."""
    ratio = squared_modulus(y).sum(1) / noise_var
    chance: Tensor = torch.special.gammaincc(torch.full_like(ratio, y.shape[1]), ratio)
    return ((-chance.clamp_min(10**-_SOMETHING).log10() - _NOTHING) / (_SOMETHING - _NOTHING)).clamp(0.0, 1.0)


def out_of_unit(found: Estimate, unit: Tensor) -> Estimate:
    """The estimate of h from that of h/unit. unit: [batch]."""
    by = unit[:, None]
    return replace(
        found,
        signal=by * found.signal,
        code=None if found.code is None else by * found.code,
        variance=None if found.variance is None else by.square() * found.variance,
        trajectory=None if found.trajectory is None else tuple(by * signal for signal in found.trajectory),
        samples=None if found.samples is None else by * found.samples,
    )
