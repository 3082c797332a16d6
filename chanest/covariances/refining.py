"""Paths off the grid: directions of any value for what stands out of the powers on a grid.

Where a channel is a few plane waves, a grid spreads each of them over its neighbours, and at high SNR that is what limits an
estimate. `peaks` begins paths of continuous directions where powers on a grid have maxima; `take_off` leaves a little of the
powers around them on the grid; `improve` moves directions and powers of all paths to more evidence
(`chanest.covariances.path_search`). Nothing here has a gradient: to the network that calls it (`chanest.networks.universal`)
paths are data.
"""

import math
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from chanest.covariances.angular import AngularCovariance, AngularGrid
from chanest.covariances.offgrid import PathCovariance, Paths
from chanest.covariances.path_search import AXES, PathSearch
from vlista_core.estimate import Measurement
from vlista_core.gaussian import condition

_DETERMINED, _WEAKEST = 0.2, 0.01
"""A peak may be a path from so much of p·q on, which it shares with its neighbours, and from that share of all powers on."""
LEFT = 0.2
"""Share of the grid's powers around a path that stays on the grid."""


@dataclass(frozen=True, eq=False)
class OffGrid:
    """Paths of a batch, each sample with as many as it has: the others have no power."""

    paths: Paths
    powers: Tensor
    """[batch, paths, pol_t·pol_r], 0 where there is no path."""
    found: Tensor
    """Which paths there are: [batch, paths] bool."""

    @classmethod
    def none(cls, grid: AngularGrid, powers: Tensor) -> "OffGrid":
        """No path at all. powers: of the grid, [batch, atoms]."""
        batch, pairs = len(powers), len(grid.tx.slants) * len(grid.rx.slants)
        nowhere = powers.new_zeros(batch, 0, 2)
        found = torch.zeros(batch, 0, dtype=torch.bool, device=powers.device)
        return cls(Paths(nowhere, nowhere, grid.rx, grid.tx), powers.new_zeros(batch, 0, pairs), found)

    @property
    def count(self) -> Tensor:
        """Paths of each sample: [batch]."""
        return self.found.sum(1)

    def with_grid(self, grid: AngularCovariance) -> AngularCovariance | PathCovariance:
        """The model of both; that of the grid alone where no sample has a path."""
        if not self.found.shape[1]:
            return grid
        return PathCovariance(grid, self.powers, self.paths.signals())

    def select(self, some: Tensor) -> "OffGrid":
        """Of the chosen samples: [k]."""
        paths = replace(self.paths, departing=self.paths.departing[some], arriving=self.paths.arriving[some])
        return OffGrid(paths, self.powers[some], self.found[some])

    def updated(self, some: Tensor, other: "OffGrid") -> "OffGrid":
        """With what another, of as many paths, has for the chosen samples."""
        departing = self.paths.departing.index_copy(0, some, other.paths.departing)
        arriving = self.paths.arriving.index_copy(0, some, other.paths.arriving)
        paths = replace(self.paths, departing=departing, arriving=arriving)
        powers = self.powers.index_copy(0, some, other.powers)
        return OffGrid(paths, powers, self.found.index_copy(0, some, other.found))

    def and_more(self, other: "OffGrid") -> "OffGrid":
        """With the paths of another after the own ones."""
        paths = replace(
            self.paths,
            departing=torch.cat([self.paths.departing, other.paths.departing], 1),
            arriving=torch.cat([self.paths.arriving, other.paths.arriving], 1),
        )
        powers, found = torch.cat([self.powers, other.powers], 1), torch.cat([self.found, other.found], 1)
        return OffGrid(paths, powers, found)

    def shortened(self) -> "OffGrid":
        """Without the places that no sample uses; paths of a sample come first."""
        most = int(self.count.max()) if len(self.found) else 0
        departing, arriving = self.paths.departing[:, :most], self.paths.arriving[:, :most]
        paths = replace(self.paths, departing=departing, arriving=arriving)
        return OffGrid(paths, self.powers[:, :most], self.found[:, :most])


@torch.no_grad()
def peaks(model: AngularCovariance, determined: Tensor, *, most: int) -> OffGrid:
    """Paths where a grid's powers have their strongest local maxima, with what they gather from their neighbours.

    determined: p·q of every atom, [batch, atoms]; most: paths of a sample.
    """
    grid, count = model.grid, len(model.grid.arriving)
    if model.powers.is_meta:
        return OffGrid.none(grid, model.powers)
    powers, index, found = _maxima(model, determined, most)
    departing, arriving = (each.to(powers) for each in (grid.departing, grid.arriving))
    paths = Paths(departing[index // count], arriving[index % count], grid.rx, grid.tx)
    return OffGrid(paths, powers, found).shortened()


@torch.no_grad()
def take_off(
    begun: OffGrid, model: AngularCovariance, measured: Measurement, *, rounds: int
) -> tuple[OffGrid, AngularCovariance, Tensor]:
    """Improve paths that begin at peaks of a grid's powers, of which `LEFT` is left around them.

    rounds: of the improvement. -> the paths; what is left on the grid; log evidence of both together, -inf where there is no
    path, [batch].
    """
    rest = replace(model, powers=torch.where(around(begun, model.grid), LEFT * model.powers, model.powers))
    off, evidence = _searched(rest, measured, begun, begun.count.nonzero()[:, 0], rounds)
    return off, rest, evidence


@torch.no_grad()
def improve(off: OffGrid, rest: AngularCovariance, measured: Measurement, *, rounds: int) -> OffGrid:
    """Directions and powers with more evidence, given what is on the grid."""
    if not off.found.shape[1]:
        return off
    return _searched(rest, measured, off, off.count.nonzero()[:, 0], rounds)[0]


def _searched(
    rest: AngularCovariance, measured: Measurement, off: OffGrid, some: Tensor, rounds: int
) -> tuple[OffGrid, Tensor]:
    """The paths of the chosen samples after some rounds, and their evidence with that of the grid, -inf for the others."""
    everyone = len(some) == len(off.found)
    part, inside, model = (
        (off, measured, rest) if everyone else (off.select(some), measured.select(some), rest.select(some))
    )
    factor = condition(model, inside).factor
    search = PathSearch(inside, factor, part.paths, part.powers, part.found)
    furthest = _furthest(rest.grid.axes).to(part.powers)
    for number in range(rounds):
        search.improve(furthest, last=number == rounds - 1)
    volume = 2 * factor.diagonal(dim1=1, dim2=2).real.log().sum(1)
    moved, evidence = OffGrid(search.paths, search.powers, part.found), search.now.evidence - volume
    if everyone:
        return moved, evidence
    return off.updated(some, moved), torch.full_like(rest.powers[:, 0], -torch.inf).index_copy(0, some, evidence)


def _maxima(prior: AngularCovariance, determined: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """The strongest local maxima over the directions, all polarisations together, the strongest first.

    -> powers with those of their neighbours, [batch, paths, pol]; which directions, [batch, paths]; which are paths,
    [batch, paths] bool.
    """
    grid, batch = prior.grid, len(determined)
    field, used = (each.reshape(batch, *grid.shape) for each in (prior.powers.expand_as(determined), determined))
    total, certain = field.sum((1, 4)), used.amax((1, 4))  # [batch, columns, rows, columns, rows]
    highest = torch.ones_like(certain, dtype=torch.bool)
    for axis in range(1, 1 + AXES):
        if total.shape[axis] > 1:
            falling = total > total.roll(-1, axis)
            highest &= falling & ~falling.roll(1, axis)
    everything = total.flatten(1).sum(1)[:, None, None, None, None]
    good = highest & (certain > _DETERMINED) & (total > _WEAKEST * everything)
    count = min(most, total[0].numel())
    strength, index = torch.where(good, total, 0.0).flatten(1).topk(count, 1)
    pairs = field.movedim(4, 2).flatten(3).flatten(1, 2)  # [batch, pol_t·pol_r, directions]
    near = _surroundings(index, grid.axes).flatten(1)
    powers = pairs.gather(2, near[:, None].expand(-1, pairs.shape[1], -1)).unflatten(2, (count, -1)).sum(3).mT
    found = strength > 0
    return powers * found[:, :, None], index, found


def around(off: OffGrid, grid: AngularGrid) -> Tensor:
    """Which atoms lie within one point of a path along every axis: [batch, atoms] bool."""
    place = torch.zeros_like(off.count)[:, None].expand_as(off.found)
    phases = torch.cat([off.paths.departing, off.paths.arriving], 2)
    for phase, points in zip(phases.unbind(2), grid.axes, strict=True):
        place = place * points + ((phase / (2 * math.pi) * points).round().long() + points // 2) % points
    near = _surroundings(place, grid.axes)
    marks = torch.zeros(len(place), math.prod(grid.axes), dtype=torch.bool, device=place.device)
    marks = marks.scatter_add(1, near.flatten(1), off.found[:, :, None].expand_as(near).flatten(1))
    marks = marks.reshape(-1, *grid.axes)
    pol_t, columns, rows, pol_r, *receive = grid.shape
    spread_out = marks[:, None, :, :, None].expand(-1, pol_t, columns, rows, pol_r, *receive)
    return spread_out.reshape(len(place), -1)


def _surroundings(place: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Directions within one point along every axis, themselves among them: [batch, paths] -> [batch, paths, neighbours]."""
    steps, strides = (each.to(place.device) for each in _steps(axes))
    points = torch.tensor(axes, device=place.device)
    around = (place[:, :, None, None] // strides + steps) % points
    return (around * strides).sum(3)


@cache
def _steps(axes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """To all neighbours, [neighbours, 4], 0 along axes of one point; how far points along an axis are apart in memory, [4]."""
    each = [torch.arange(-1, 2) if points > 1 else torch.zeros(1, dtype=torch.long) for points in axes]
    return torch.cartesian_prod(*each), torch.tensor([math.prod(axes[place + 1 :]) for place in range(AXES)])


@cache
def _furthest(axes: tuple[int, ...]) -> Tensor:
    """Half a point of the grid along each axis, 0 where there is but one: [4]."""
    return torch.tensor([0.0 if points == 1 else math.pi / points for points in axes])
