"""Which spread, offset and window of delay a sample has, told from y: a first look at all subcarriers, then the likelihood.

The first look takes the measurements of one subcarrier for independent draws of one covariance over the subcarriers, whatever
their directions. It is cheap and knows the delays to some hundredth of the inverse bandwidth. Clusters that share a delay have
directions of their own: the likelihood of y with them, in the few directions and delay modes that carry most power, tells
spread and offset ten times as well. Steps go to the top of the parabola through nine points around the present one.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from chanest.covariances.kronecker import KroneckerCovariance
from chanest.covariances.profiles import DelayProfiles, Timing
from chanest.frontend import BeamformingMap
from vlista_core.estimate import Measurement
from vlista_core.gaussian import DenseCovariance, condition
from vlista_core.linops import IdentityMap

WIDE = torch.complex128
_CANDIDATES = 3
_KEPT = 20
"""Eigenvectors of a covariance over subcarriers, at the most."""
_DIRECTIONS, _MODES = 12, 10
"""Of the measurements of one subcarrier, and of the delays, in which the likelihood is worked out."""
_ROUNDS, _STEP, _LONGEST = 4, 0.05, 1.5
"""Steps of the search, the first distance of the nine points in units of the resolution, and the longest step in distances."""
_POINTS = torch.cartesian_prod(*2 * [torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)])
_PARABOLA = torch.linalg.pinv(
    torch.stack([torch.ones(9).double(), *_POINTS.T, *_POINTS.T.square(), _POINTS.prod(1)], 1)
)
"""Coefficients 1, x, y, x², y², xy from values at the nine points."""


class Hypotheses(NamedTuple):
    """What the first look compares: covariances over the subcarriers by their main eigenvectors, offset zero."""

    values: Tensor
    """[pairs, kept]."""
    vectors: Tensor
    """[pairs, S, kept]."""
    timing: Timing
    offsets: Tensor


@lru_cache(maxsize=8)
def hypotheses(profiles: DelayProfiles, version: int) -> Hypotheses:
    """Those of a grid of spreads and windows. version: of the buffers, so that what was learned anew is worked out anew."""
    timing, offsets = profiles.grid()
    columns = profiles.responses(timing) * profiles.powers_at(timing).sqrt()[:, None]
    values, vectors = torch.linalg.eigh(columns @ columns.mH)
    kept = min(_KEPT, values.shape[1])
    return Hypotheses(values[:, -kept:].float(), vectors[:, :, -kept:].to(torch.complex64), timing, offsets)


def first_look(profiles: DelayProfiles, modes: Tensor, inside: Measurement) -> Timing:
    """The most likely of a grid for three spreads, where there are as many tops: [batch, 3] each.

    modes: U, [S, D], inside: the measurement in them.
    """
    known = hypotheses(profiles, profiles.ranges._version)
    subcarriers, count = modes.shape
    y = inside.y.unflatten(1, (count, -1))
    size = y.shape[2]
    gain = inside.phi.blocks()[0].squared_frobenius_norm() / size
    noise = (inside.noise_var / gain).to(y.real.dtype)
    shown = y @ y.mH / (size * gain[:, None, None])
    shown = modes @ (shown - torch.diag_embed(noise[:, None].expand(-1, count)).to(y.dtype)) @ modes.mH
    lags = (torch.arange(subcarriers)[:, None] - torch.arange(subcarriers)).flatten() + subcarriers - 1
    steps = (profiles.phases[1] - profiles.phases[0]) * (torch.arange(2 * subcarriers - 1) - subcarriers + 1)
    turn = steps[:, None] * known.offsets
    turns = torch.polar(torch.ones_like(turn), turn).to(y.dtype)
    found = []
    for one, sigma in zip(shown, noise, strict=True):
        share = known.values / (known.values + sigma)
        weighted = ((known.vectors * share[:, None]) @ known.vectors.mH).mT * one
        sums = y.new_zeros(len(share), 2 * subcarriers - 1).index_add_(1, lags, weighted.flatten(1))
        fit = (sums @ turns).real / sigma + (share - torch.log1p(known.values / sigma)).sum(1, keepdim=True)
        found.append(_tops(fit, known))
    return Timing(*(torch.stack(field) for field in zip(*found, strict=True)))


def _tops(fit: Tensor, known: Hypotheses) -> Timing:
    """The best pairs and offsets at the highest tops over the spreads. fit: [pairs, offsets]."""
    value, offset = fit.max(1)
    spreads = len(known.timing.spread.unique())
    best, window = value.reshape(spreads, -1).max(1)
    padded = torch.nn.functional.pad(best, (1, 1), value=-torch.inf)
    top = (best >= padded[:-2]) & (best >= padded[2:])
    order = torch.where(top, best, -torch.inf).argsort(descending=True)[:_CANDIDATES]
    order = torch.where(top[order], order, order[0])
    order = torch.cat([order, order[:1].expand(_CANDIDATES - len(order))])
    pair = order * (len(value) // spreads) + window[order]
    return Timing(known.timing.spread[pair], known.offsets[offset[pair]], known.timing.window[pair])


class Likelihood:
    """log p(y | timing) in the main directions and delay modes, given what clusters have at both ends."""

    def __init__(
        self, profiles: DelayProfiles, modes: Tensor, inside: Measurement, space: KroneckerCovariance, timing: Timing
    ) -> None:
        """space: T_p and S_p of all parts, timing: hypotheses that decide which modes are looked at, [batch, any]."""
        phi = inside.phi
        if not isinstance(phi, BeamformingMap):
            raise TypeError(f"delays are told where all subcarriers are measured alike, got {type(phi).__name__}")
        self.profiles = profiles
        powers = profiles.powers_at(timing).mean(1)
        terms = space.terms_seen(phi.one_subcarrier()).expand(len(inside.y), -1, -1, -1)
        total = (powers.to(terms.dtype)[:, None] @ terms.flatten(2))[:, 0].unflatten(1, terms.shape[2:])
        directions = torch.linalg.eigh(total).eigenvectors[:, :, -_DIRECTIONS:]
        seen: Tensor = directions.mH[:, None] @ terms @ directions[:, None]
        columns = self._columns(modes.to(WIDE), timing).transpose(1, 2).flatten(2)
        late = torch.linalg.eigh(columns @ columns.mH).eigenvectors[:, :, -_MODES:]
        self.terms = seen.flatten(2).to(WIDE)
        self.modes = modes.to(WIDE) @ late
        inner = late.mH @ inside.y.unflatten(1, (modes.shape[1], -1)).to(WIDE) @ directions.conj().to(WIDE)
        self.y, self.noise = inner.flatten(1), inside.noise_var.double()

    def _columns(self, modes: Tensor, timing: Timing) -> Tensor:
        """√P_p d_p in the modes: [batch, any, D, parts]."""
        modes = modes if modes.ndim == 2 else modes[:, None]
        columns: Tensor = (modes.mH @ self.profiles.responses(timing)) * self.profiles.powers_at(timing).sqrt()[
            :, :, None
        ]
        return columns

    def __call__(self, timing: Timing) -> Tensor:
        """Up to a constant of the sample: [batch, any], float64."""
        columns = self._columns(self.modes, timing)
        batch, several, late, parts = columns.shape
        pairs = (columns[:, :, :, None] * columns[:, :, None].conj()).reshape(batch, -1, parts)
        blocks = (pairs @ self.terms).reshape(batch * several, late, late, *2 * [self.y.shape[1] // late])
        size = self.y.shape[1]
        prior = DenseCovariance(blocks.transpose(2, 3).reshape(batch * several, size, size))
        y, noise = (values.repeat_interleave(several, 0) for values in (self.y, self.noise))
        found = condition(prior, Measurement(y, IdentityMap(size, y.dtype), noise)).log_evidence
        return found.reshape(batch, several)


def refined(likelihood: Likelihood, timing: Timing) -> tuple[Timing, Tensor]:
    """The top of the likelihood near a timing, and the covariance of (spread, offset) there: [batch] each, [batch, 2, 2]."""
    points, distance = _POINTS, torch.full((len(timing.spread), 2), _STEP, dtype=torch.float64)
    distance[:, 0] /= float(likelihood.profiles.shape.square().mean().sqrt())
    bend, last = torch.zeros(()), distance
    for _ in range(_ROUNDS):
        around = timing.among(len(points))
        spread = (around.spread + distance[:, :1] * points[:, 0]).clamp_min(1e-6)
        values = likelihood(Timing(spread, around.offset + distance[:, 1:] * points[:, 1], around.window))
        _, *slope, right, down, mixed = (values @ _PARABOLA.T).unbind(1)
        bend = torch.stack([2 * right, mixed, mixed, 2 * down], 1).unflatten(1, (2, 2))
        bent, axes = torch.linalg.eigh(bend)
        step = -(axes @ ((axes.mT @ torch.stack(slope, 1)[:, :, None]) / bent.clamp_max(-1e-9)[:, :, None]))[:, :, 0]
        step = torch.where((bent < 0).all(1, keepdim=True), step, points[values.argmax(1)])
        step = step * (_LONGEST / step.abs().amax(1, keepdim=True).clamp_min(_LONGEST))
        timing = Timing(
            (timing.spread + distance[:, 0] * step[:, 0]).clamp_min(1e-6), timing.offset + distance[:, 1] * step[:, 1],
            timing.window,
        )  # fmt: skip
        last, distance = distance, distance * (2 * step.abs()).clamp(0.3, 1.0)
    bent, axes = torch.linalg.eigh(bend)
    spread_out = (axes / -bent.clamp_max(-0.25)[:, None]) @ axes.mT
    return timing, last[:, :, None] * spread_out * last[:, None]
