"""A few paths off the grid: powers on a grid for most of a channel, and directions of any value for what stands out of it.

Where a channel is a few plane waves, a grid spreads each of them over its neighbours, and at high SNR that is what limits an
estimate. `refine` takes the peaks of the powers on a grid for paths with continuous directions, leaves a little of the powers
around them, and improves directions and powers by the evidence of y: powers by MacKay's fixed point, directions by
Gauss–Newton steps with the gains projected out, each step taken where the evidence rises. Everything happens in the few columns
of the paths, whitened by what the grid holds: one factorisation in all.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from chanest.covariances.angular import AngularCovariance, AngularGrid, GridView, smoothed
from chanest.covariances.offgrid import PathCovariance, Paths
from chanest.covariances.path_search import AXES, PathSearch
from vlista_core.estimate import Measurement
from vlista_core.gaussian import condition
from vlista_core.prox import squared_modulus

_DETERMINED, _WEAKEST = 0.5, 1e-4
"""A peak is a path from so much of p·q on, and from that share of all powers on."""
_LEFT = 0.05
"""Share of the grid's powers around a path that stays on the grid."""
_ROUNDS_AFTER = 3
"""Of the improvement after a path was added."""
_FEW, _HOPELESS = 4, 5.0
"""A model of more paths than that and with so much less evidence than the grid alone, in nats, is not worked on any further."""
_SEEN = 1e-3
"""A direction of which the beams see less, as a share of the best seen one, gets no path."""
_SHRINKING = 2.0
"""With which power the means of g/q, where they are below one, shrink the powers on the grid."""
_SURPRISE = 4.6
"""How far beyond log(directions) g/q must be for a path to be added: noise does that in one of a hundred samples."""


@dataclass(frozen=True, eq=False)
class Refined:
    """What `refine` found."""

    prior: PathCovariance
    paths: Paths
    found: Tensor
    """Which of the paths there are: [batch, paths] bool."""
    log_evidence: Tensor
    """Of y, without its constant, as `Posterior.log_evidence`: [batch]."""
    mean: Tensor
    """E h given y: [batch, n]."""

    @property
    def count(self) -> Tensor:
        """Paths off the grid: [batch]."""
        return self.found.sum(1)

    def select(self, some: Tensor) -> "Refined":
        """Of the chosen samples: [k]."""
        return self._with([tensor[some] for tensor in self._tensors()])

    def updated(self, some: Tensor, other: "Refined") -> "Refined":
        """With what another, of as many paths or more, has for the chosen samples."""
        more = other.found.shape[1] - self.found.shape[1]
        grid, *of_paths, log_evidence, mean = self._tensors()
        own = [grid, *(_longer(tensor, more) for tensor in of_paths), log_evidence, mean]
        return self._with([mine.index_copy(0, some, new) for mine, new in zip(own, other._tensors(), strict=True)])

    def _tensors(self) -> list[Tensor]:
        """All of the samples: powers on the grid, what paths have, then the evidence and the mean."""
        prior, paths = self.prior, self.paths
        of_paths = [prior.powers, prior.signals, paths.departing, paths.arriving, self.found]
        return [prior.grid.powers, *of_paths, self.log_evidence, self.mean]

    def _with(self, tensors: list[Tensor]) -> "Refined":
        """The same of other samples, from tensors in the order of `_tensors`."""
        on_grid, powers, signals, departing, arriving, found, log_evidence, mean = tensors
        prior = PathCovariance(replace(self.prior.grid, powers=on_grid, view=None), powers, signals)
        paths = replace(self.paths, departing=departing, arriving=arriving)
        return Refined(prior, paths, found, log_evidence, mean)


@torch.no_grad()
def refine(
    prior: AngularCovariance,
    measured: Measurement,
    determined: Tensor,
    log_evidence: Tensor,
    *,
    most: int = 8,
    rounds: int = 5,
    additions: int = 3,
) -> Refined:
    """Take the peaks of a grid's powers off the grid, then look for what they hid.

    determined: p·q of every atom, [batch, atoms]; log_evidence: of the grid alone, [batch]; most: paths at the beginning;
    rounds: of the improvement; additions: paths that may be added one by one, each where y asks for a direction far more than
    the model expects.
    """
    powers, index, found = _peaks(prior, determined, most)
    around = _around(index, found, prior.grid)
    rest = replace(prior, powers=torch.where(around, _LEFT * prior.powers, prior.powers))
    taken = _taken(rest, measured, index, powers, found, rounds=rounds)
    hopeful = (taken.count <= _FEW) | (taken.log_evidence > log_evidence - _HOPELESS)
    promising = hopeful & (taken.count > 0)
    for _ in range(0 if promising.is_meta else additions):
        some = promising.nonzero()[:, 0]
        if not len(some):
            break
        more, wanted = _one_more(taken.select(some), measured.select(some), prior.grid)
        taken, promising = taken.updated(some, more), promising.clone()
        promising[some] = wanted
    return taken


def _one_more(taken: Refined, measured: Measurement, grid: AngularGrid) -> tuple[Refined, Tensor]:
    """A refined model with less on the grid where paths explain it and, where y asks for it, one more path; and where it did.

    -> the model, and for which samples a path was added: [batch] bool.
    """
    model = replace(taken.prior, grid=replace(taken.prior.grid, view=GridView(grid, measured.phi)))
    rest, wanted, best, strength = _looked_again(model, measured)
    paths = taken.paths
    departing, arriving = (each.to(strength) for each in (grid.departing, grid.arriving))
    place = departing[best // len(arriving)], arriving[best % len(arriving)]
    paths = replace(
        paths,
        departing=torch.cat([paths.departing, place[0][:, None]], 1),
        arriving=torch.cat([paths.arriving, place[1][:, None]], 1),
    )
    powers = torch.cat([taken.prior.powers, (strength * wanted[:, None])[:, None]], 1)
    found = torch.cat([taken.found, wanted[:, None]], 1)
    return _improved(rest, measured, paths, powers, found, rounds=_ROUNDS_AFTER), wanted


def _taken(
    rest: AngularCovariance, measured: Measurement, index: Tensor, powers: Tensor, found: Tensor, *, rounds: int
) -> Refined:
    """Paths that begin at directions of the grid, improved. index: of the directions, [batch, paths]."""
    grid, count = rest.grid, len(rest.grid.arriving)
    departing, arriving = (each.to(powers) for each in (grid.departing, grid.arriving))
    paths = Paths(departing[index // count], arriving[index % count], grid.rx, grid.tx)
    return _improved(rest, measured, paths, powers, found, rounds=rounds)


def _improved(
    rest: AngularCovariance, measured: Measurement, paths: Paths, powers: Tensor, found: Tensor, *, rounds: int
) -> Refined:
    """Directions and powers of paths after some rounds. powers: [batch, paths, pol], found: [batch, paths] bool."""
    posterior = condition(rest, measured)
    search = PathSearch(measured, posterior.factor, paths, powers, found)
    for _ in range(rounds):
        search.improve(_furthest(rest.grid).to(powers))
    signals = search.paths.signals()
    mean = rest.apply(measured.phi.adjoint(search.unexplained())) + torch.einsum(
        "bkc,bkcn->bn", search.now.gains, signals
    )
    volume = 2 * posterior.factor.diagonal(dim1=1, dim2=2).real.log().sum(1)
    model = PathCovariance(rest, search.powers, signals)
    return Refined(model, search.paths, found, search.now.evidence - volume, mean)


def _looked_again(model: PathCovariance, measured: Measurement) -> tuple[AngularCovariance, Tensor, Tensor, Tensor]:
    """What y asks for beyond a model: g/q, which is exponential of mean one where the model is right.

    -> the powers on the grid, smaller where y asks for less around a direction; which samples ask for one more path, [batch]
    bool, where, [batch], and its powers, [batch, pol].
    """
    grid, view, batch = model.grid.grid, model.grid.view, len(measured.y)
    assert view is not None
    posterior = condition(model, measured)
    expected = view.forms(posterior.precision)
    expected = expected.maximum(_SEEN * expected.amax(1, keepdim=True) + torch.finfo(expected.dtype).tiny)
    asked = squared_modulus(grid.dictionary.to(expected.device).adjoint(posterior.gradient))
    field = (asked / expected).reshape(batch, *grid.shape)
    less = smoothed(field, (2, 3, 5, 6)).clamp_max(1.0).reshape(batch, -1)
    rest = replace(model.grid, powers=model.grid.powers * less.pow(_SHRINKING))
    ratio, expected = (
        each.reshape(batch, *grid.shape).movedim(4, 2).flatten(3).flatten(1, 2) for each in (field, expected)
    )
    score, index = ratio.sum(1).max(1)
    wanted = score > _SURPRISE + math.log(ratio.shape[2]) + 2 * (ratio.shape[1] - 1)
    chosen = index[:, None, None].expand(-1, ratio.shape[1], 1)
    ratio, expected = (each.gather(2, chosen)[:, :, 0] for each in (ratio, expected))
    return rest, wanted, index, (ratio - 1.0).clamp_min(0.01) / expected


def _peaks(prior: AngularCovariance, determined: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """The strongest local maxima over the directions, all polarisations together.

    -> powers with those of their neighbours, [batch, paths, pol]; which directions, [batch, paths]; which are paths,
    [batch, paths] bool.
    """
    grid, batch = prior.grid, len(determined)
    field, used = (each.reshape(batch, *grid.shape) for each in (prior.powers.expand_as(determined), determined))
    total, certain = field.sum((1, 4)), used.amax((1, 4))  # [batch, columns, rows, columns, rows]
    highest = torch.ones_like(certain, dtype=torch.bool)
    for axis in range(1, 1 + AXES):
        if total.shape[axis] > 1:
            highest &= (total >= total.roll(1, axis)) & (total > total.roll(-1, axis))
    everything = total.flatten(1).sum(1)[:, None, None, None, None]
    good = highest & (certain > _DETERMINED) & (total > _WEAKEST * everything)
    count = min(most, total[0].numel())
    strength, index = torch.where(good, total, 0.0).flatten(1).topk(count, 1)
    gathered = field
    for axis in (2, 3, 5, 6):
        size = field.shape[axis]
        if size > 1:
            gathered = gathered + gathered.roll(1, axis) + gathered.roll(-1, axis)
    pairs = gathered.movedim(4, 2).flatten(3).flatten(1, 2)  # [batch, pol_t·pol_r, directions]
    powers = pairs.gather(2, index[:, None].expand(-1, pairs.shape[1], -1)).mT
    found = strength > 0
    return powers * found[:, :, None], index, found


def _around(index: Tensor, found: Tensor, grid: AngularGrid) -> Tensor:
    """Which atoms lie within one point of a path along every axis: [batch, atoms] bool."""
    marks = torch.zeros(len(index), math.prod(grid.axes), dtype=torch.bool, device=index.device)
    marks = marks.scatter(1, index, found).reshape(-1, *grid.axes)
    for axis in range(1, 1 + AXES):
        marks = marks | marks.roll(1, axis) | marks.roll(-1, axis)
    pol_t, columns, rows, pol_r, *receive = grid.shape
    spread_out = marks[:, None, :, :, None].expand(-1, pol_t, columns, rows, pol_r, *receive)
    return spread_out.reshape(len(index), -1)


def _longer(tensor: Tensor, more: int) -> Tensor:
    """With so many zeros more along the second dimension."""
    zeros = tensor.new_zeros(tensor.shape[0], max(more, 0), *tensor.shape[2:])
    return torch.cat([tensor, zeros], 1)


def _furthest(grid: AngularGrid) -> Tensor:
    """Half a point of the grid along each axis, 0 where there is but one: [4]."""
    return torch.tensor([0.0 if points == 1 else math.pi / points for points in grid.axes])
