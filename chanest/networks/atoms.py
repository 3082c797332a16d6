"""One layer of `universal`: what it sees of every atom and of what surrounds it, and how it updates all powers.

The network is the same for all atoms. Surroundings go round in phase.
"""

import math
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from chanest.covariances.angular import AngularGrid, group_by_group

_OWN, _SHARED, _PLACE, _CONTEXT, _WHOLE = 16, 8, 2, 6, 7
"""Numbers that a layer sees: of an atom, of what shares its departure or its arrival, of the place of that, of a sample, of its
whole spectrum."""
_GROUP = 2**14
"""Atoms times samples of which a layer sees all numbers at once: what they need stays in cache."""
_LEAST_DETERMINED, _LEAST_POWER = 1e-8, 1e-6
"""What is added to p·q, and to powers in units of their mean, before the logarithm."""
LOWEST, HIGHEST = -25.0, 15.0
"""Of log p, in units of the power of y."""
_MOST_IN_A_PRODUCT = 400
"""Directions over which means are taken by a product with a matrix."""
_DEPARTURES, _ARRIVALS = (3, 4), (6, 7)
"""Axes of directions in a stack of maps [maps, batch, pol_t, columns, rows, pol_r, columns, rows]."""


class Seen(NamedTuple):
    """Statistics of every atom: [batch, atoms] each."""

    expected: Tensor
    """q."""
    ratio: Tensor
    """g/q, 1 where the beams see nothing of an atom."""
    step: Tensor
    """½ log(g/q)."""
    determined: Tensor
    """p·q, from 0 to 1."""


class Features(NamedTuple):
    """What a layer sees of every atom, and of what shares a departure or an arrival with it."""

    own: Tensor
    """[batch, 16, atoms]."""
    departing: Tensor
    """[batch, 8, departures], of each polarisation."""
    arriving: Tensor
    """[batch, 8, arrivals], of each polarisation."""
    whole: Tensor
    """How much the powers and the ratios g/q differ over atoms, departures and arrivals: [batch, 7]."""


class AtomLayer(nn.Module):
    """One update of all powers: two hidden layers on what is seen of an atom, of its surroundings and of the sample."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter = nn.Linear(_OWN, width, bias=False)
        self.departing = nn.Linear(_SHARED + _PLACE, width)
        self.arriving = nn.Linear(_SHARED + _PLACE, width, bias=False)
        self.of_departing, self.of_arriving = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.context = nn.Linear(_CONTEXT + _WHOLE + width, width)
        self.of_context = nn.Linear(width, width)
        self.middle = nn.Linear(width, width)
        self.leave = nn.Linear(width, 2)

    def forward(self, features: Features, grid: AngularGrid, context: Tensor) -> tuple[Tensor, Tensor]:
        """context: [batch, 6] -> a and b, [batch, atoms] each.

        Atoms come last: every product is a few rows times a long one, and nothing is transposed.
        """
        departing_at, arriving_at = (place.to(context) for place in grid.coordinates)
        departing = _of_end(self.departing, self.of_departing, features.departing, departing_at)
        arriving = _of_end(self.arriving, self.of_arriving, features.arriving, arriving_at)
        hidden = (departing[:, :, :, None] + arriving[:, :, None]).flatten(2)
        hidden = hidden.baddbmm_(self.enter.weight.expand(len(hidden), -1, -1), features.own)
        everywhere = self.context(torch.cat([context, features.whole, torch.relu(hidden).mean(2)], 1))
        everywhere = everywhere + self.of_context(torch.relu(everywhere))
        hidden = hidden.add_(everywhere[:, :, None]).relu_()
        more = _mapped(self.middle.weight, hidden, self.middle.bias[:, None]).relu_()
        first = _mapped(self.leave.weight, hidden, self.leave.bias[:, None])
        scale, shift = _mapped(self.leave.weight, more, first).unbind(1)
        return scale, shift


def _of_end(layer: nn.Linear, more: nn.Linear, seen: Tensor, place: Tensor) -> Tensor:
    """What one end shares. seen: [batch, 8, directions], place: [directions, 2] -> [batch, rows, directions]."""
    weight, of_place = layer.weight.split([_SHARED, _PLACE], 1)
    hidden = _mapped(weight, seen, nn.functional.linear(place, of_place, layer.bias).mT)
    return _mapped(more.weight, torch.relu(hidden), hidden)


def _mapped(weight: Tensor, maps: Tensor, bias: Tensor) -> Tensor:
    """weight: [rows, k], maps: [batch, k, atoms], bias: [(batch,) rows or 1, atoms or 1] -> [batch, rows, atoms]."""
    return torch.baddbmm(bias, weight.expand(len(maps), -1, -1), maps)


def updated(layer: nn.Module, log_powers: Tensor, seen: Seen, context: Tensor, grid: AngularGrid) -> Tensor:
    """log p + ½ log(g/q)·(1 + a) + b: [batch, atoms]."""

    def some(log_powers: Tensor, context: Tensor, *parts: Tensor) -> Tensor:
        part = Seen(*parts)
        scale, shift = layer(_of_atoms(grid, part, log_powers), grid, context)
        moved: Tensor = log_powers + part.step * (1.0 + scale) + shift
        return moved.clamp(LOWEST, HIGHEST)

    return group_by_group(some, (log_powers, context, *seen), _GROUP // grid.atoms)


def _of_atoms(grid: AngularGrid, seen: Seen, log_powers: Tensor) -> Features:
    """What is seen of every atom and of its surroundings.

    Its step, log p·q, log p relative to the mean; the mean step around it; then, as logarithms of means: the powers around it,
    before and after the plain step, and the ratios g/q around it, near and far; both over all atoms that share its departure,
    its arrival, its row of departures or its row of arrivals, or what surrounds these. A mean is taken before the logarithm: a
    strong neighbour leaks, and the mean of g/q over many atoms tells their power where noise hides that of each.
    """
    batch = len(log_powers)
    powers = log_powers.exp()
    relative = log_powers - powers.mean(1, keepdim=True).log()
    moved = powers * seen.step.exp()
    powers, moved = (each / each.mean(1, keepdim=True) for each in (powers, moved))
    maps = torch.stack([moved, powers, seen.ratio, seen.step]).reshape(4, batch, *grid.shape)
    near, beside = smoothed(maps, _DEPARTURES, 1), smoothed(maps[::3], _ARRIVALS, 1)
    both = smoothed(near[:3], _ARRIVALS, 1)
    far = smoothed(both[::2], _DEPARTURES, 2)
    wide = smoothed(smoothed(far, _DEPARTURES, 4), _ARRIVALS, 1)
    steps = (seen.step, torch.log(seen.determined + _LEAST_DETERMINED) / 4.0, relative / 4.0)
    of_steps, means = (near[3], beside[1]), (*near[:3], *both, *far, *wide, beside[0])
    own = torch.stack([*steps, *(each.reshape(batch, -1) for each in (*of_steps, *means))], 1)
    _log_mean(own[:, len(steps) + len(of_steps) :])
    departing, arriving = maps[::2].mean((5, 6, 7)), maps[::2].mean((2, 3, 4))
    whole = torch.cat([contrast(each.flatten(2)) for each in (maps[:3], departing, arriving)])
    return Features(own, _shared(departing), _shared(arriving), whole.mT)


def contrast(values: Tensor) -> Tensor:
    """Logarithm of the mean square over the squared mean. values: [maps, batch, any] -> [maps, batch]."""
    means = values.mean(2)
    return torch.log((values.square().mean(2) + _LEAST_POWER) / (means.square() + _LEAST_POWER)).mul_(0.25)


def _shared(means: Tensor) -> Tensor:
    """Means over all atoms that share a direction of one end, over those of its row, and over those of its surroundings, near
    and far, as logarithms: [batch, 8, directions].

    means: [2, batch, pol, columns, rows].
    """
    rows = means.mean((2, 3), keepdim=True).expand_as(means)
    near = smoothed(means, (3, 4), 1)
    return _log_mean(torch.cat([means, rows, near, smoothed(near, (3, 4), 2)]).flatten(2).transpose(0, 1))


def _log_mean(means: Tensor) -> Tensor:
    """In place."""
    return means.add_(_LEAST_POWER).log_().mul_(0.25)


def smoothed(field: Tensor, axes: tuple[int, int], *reaches: int) -> Tensor:
    """Means with weights ¼, ½, ¼ of points so far apart along two axes that go round, for one reach after the other.

    Along the last axes that is a product with one matrix, unless there are many points.
    """
    sizes = field.shape[axes[0]], field.shape[axes[1]]
    if axes[1] == field.ndim - 1 and math.prod(sizes) <= _MOST_IN_A_PRODUCT:
        weights = _smoothing(*sizes, reaches).to(field)
        return (field.reshape(-1, len(weights)) @ weights).reshape(field.shape)
    for reach in reaches:
        for axis in axes:
            field = _along(field, axis, reach)
    return field


def _along(field: Tensor, axis: int, reach: int) -> Tensor:
    if (points := field.shape[axis]) == 1:
        return field
    step = reach % points
    ends = field.narrow(axis, points - step, step), field.narrow(axis, 0, step)
    round_about = torch.cat([ends[0], field, ends[1]], axis)
    before, after = (round_about.narrow(axis, start, points) for start in (0, 2 * step))
    return torch.lerp(torch.lerp(before, after, 0.5), field, 0.5)


@cache
def _smoothing(columns: int, rows: int, reaches: tuple[int, ...]) -> Tensor:
    """The symmetric matrix of `smoothed`: [columns·rows, columns·rows]."""
    points = torch.eye(columns * rows).reshape(-1, columns, rows)
    for reach in reaches:
        points = _along(_along(points, 1, reach), 2, reach)
    return points.flatten(1)
