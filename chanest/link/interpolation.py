"""Sionna's LMMSE interpolation along one axis after the other, with filters that all blocks of a link share.

`sionna.phy.ofdm.LMMSEChannelEstimator` works its filters out for every block and antenna, with matrices as large as the axis:
32 GB for a block of 16 antennas, 4 streams and 624 subcarriers. Filters depend on the noise and the pilots alone, so that one
of each kind does. The equations are those of its documentation, the numbers the same (a test compares them).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from chanest.pilots import Pilots
from vlista_core.linalg import solve_hermitian
from vlista_core.prox import squared_modulus

_AXES = {"s": 1, "t": 3, "f": 4}
"""Where antennas, symbols and subcarriers are in [batch, antennas, streams, symbols, subcarriers]."""


@dataclass(frozen=True)
class _Group:
    """Rows along an axis whose known entries are at the same places."""

    rows: Tensor
    """Which, of all rows beside the axis: [rows]."""
    places: Tensor
    """[K]."""
    filters: Tensor
    """[rows or 1, axis, K]."""


@dataclass(frozen=True)
class _Pass:
    """A filter along an axis."""

    axis: int
    groups: tuple[_Group, ...]

    def __call__(self, h: Tensor) -> Tensor:
        turned = h.movedim(self.axis, -1)
        rows = turned.reshape(len(h), -1, turned.shape[-1])
        out = torch.zeros_like(rows)
        for group in self.groups:
            known = rows[:, group.rows[:, None], group.places]
            out[:, group.rows] = torch.einsum("gck,bgk->bgc", group.filters, known)
        return out.reshape(turned.shape).movedim(-1, self.axis)


class LMMSEInterpolation:
    """h_hat and err_var as Sionna's LMMSE has them, for pilots that no two streams share and noise `no` at all antennas."""

    def __init__(
        self, pilots: Pilots, time: Tensor, frequency: Tensor, space: Tensor, *, order: str, no: float
    ) -> None:
        """time, frequency, space: covariances along each axis; order: of the axes, as "f-t-s"."""
        self.values = pilots.values
        self.no = no
        known = (pilots.values != 0)[None].expand(len(space), -1, -1, -1)
        energy = squared_modulus(pilots.values).expand(known.shape)
        error = torch.where(known, no / energy.clamp_min(torch.finfo(energy.dtype).tiny), 0.0)
        covariances, letters = {"t": time, "f": frequency, "s": space}, order.split("-")
        self.passes: list[_Pass] = []
        for letter in letters:
            done, error, known = _filter(
                error, known, covariances[letter], _AXES[letter] - 1, last=letter == letters[-1]
            )
            self.passes.append(done)
        self.error = error

    def __call__(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """y: [batch, 1, antennas, symbols, subcarriers] -> Sionna's shapes for one receiver and one transmitter."""
        sent = self.values != 0
        h = y[:, 0, :, None] * torch.where(sent, 1 / torch.where(sent, self.values, 1.0), 0.0)
        for one in self.passes:
            h = one(h)
        return h[:, None, :, None], self.error.expand(h.shape)[:, None, :, None]


def _filter(error: Tensor, known: Tensor, covariance: Tensor, axis: int, *, last: bool) -> tuple[_Pass, Tensor, Tensor]:
    """A pass, and error variances and known entries after it, all [antennas, streams, symbols, subcarriers].

    What an axis gives is scaled for the next to the mean power that LS estimates have: s = 2 r/(r - v + p), p being the power
    of the filtered values and v their error variance.
    """
    shape = known.movedim(axis, -1).shape
    errors, places = (each.movedim(axis, -1).reshape(-1, shape[-1]) for each in (error, known))
    patterns, members = places.unique(dim=0, return_inverse=True)
    out, reached = torch.zeros_like(errors), torch.zeros_like(places)
    groups = []
    power = covariance.diagonal().real
    for number, pattern in enumerate(patterns):
        at = pattern.nonzero()[:, 0]
        if not len(at):
            continue
        rows = (members == number).nonzero()[:, 0]
        different, which = errors[rows][:, at].unique(dim=0, return_inverse=True)
        total = covariance[at][:, at] + torch.diag_embed(different).to(covariance)
        filters = solve_hermitian(total, covariance[at].expand(len(total), -1, -1)).mH
        left = (power - (filters * covariance[at].mT).sum(2).real).clamp_min(0.0)
        if not last:
            size = ((filters @ total) * filters.conj()).sum(2).real
            scale = 2 * power / (size + power - left)
            filters = scale[:, :, None] * filters
            left = (scale * (scale - 1) * size + (1 - scale) * power + scale * left).clamp_min(0.0)
        groups.append(_Group(rows, at, filters if len(different) == 1 else filters[which]))
        out[rows], reached[rows] = left[which], True
    error, known = (each.reshape(shape).movedim(-1, axis) for each in (out, reached))
    return _Pass(axis + 1, tuple(groups)), error, known
