"""The network of `universal`: powers on a grid of directions, updated by layers that any arrays, pilots and channels share.

A layer has powers p of the atoms of a grid, C = ΦΨ diag(p) (ΦΨ)ᴴ + σ²I, and looks at what is dimensionless of every atom:
    g/q   how much the data ask for it, g = |ψᴴΦᴴC⁻¹y|² against what the model expects, q = ψᴴΦᴴC⁻¹Φψ
    p·q   how well it is determined
and at what surrounds it on the grid. The step log p += ½ log(g/q) is that of majorise-minimise for the likelihood of y; the
network scales it and adds to it, atom by atom: log p += ½ log(g/q)·(1 + a) + b. That is A-DLISTA's idea carried to the end, the
step and the threshold of every atom from the actual Φ, and C is factorised anew in every layer. Weights are shared by all
atoms, so that they fit any grid; surroundings go round in phase. Early layers have coarse grids, late ones fine grids.

Where the evidence of y does not speak against it, the peaks of the powers then leave the grid for directions of any value
(`chanest.covariances.refining`). C has these paths too, and what further layers see of the atoms is what the paths leave over;
after each of them new peaks leave too, and directions and powers of all paths are improved. The answer is the mean of the two
models, grid alone and with paths, weighed by their evidence less a price for each path, whose direction was fitted.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from chanest.arrays import Array
from chanest.covariances.angular import AngularCovariance, AngularGrid, GridView, angular_grid_of
from chanest.covariances.flat import seen_flat
from chanest.covariances.offgrid import PathCovariance
from chanest.covariances.refining import LEFT, OffGrid, around, improve, peaks, take_off
from chanest.networks.atoms import HIGHEST, LOWEST, AtomLayer, Seen, updated
from vlista_core.estimate import Measurement
from vlista_core.gaussian import Posterior, condition
from vlista_core.models.augmentation import initialise
from vlista_core.prox import squared_modulus

_LEAST_SHARE, _LEAST_RATIO = 0.03, 1e-4
"""What the power of a channel is at the least, in units of that of y; what is added to g/q before the logarithm."""
_DEAD = 1e-6
"""An atom of which the beams see less, as a share of the best seen one, keeps its power: y says nothing of it."""
LEAST_NOISE = 1e-6
"""σ² at the least, in units of the mean power of y: what single precision can tell."""
_MOST_PATHS, _MOST_LATER = 8, 2
"""Peaks that leave the grid at the most, at first and after every later layer."""
_ROUNDS, _ROUNDS_AFTER = 2, 2
"""Of the improvement of paths when the first ones leave, and after every later layer."""
_HOPELESS = 20.0
"""Nats that a model with one path may lack before it is given up, for its later layers bring some; half of it with two."""


class Look(NamedTuple):
    """What a layer had before it and what it saw."""

    prior: AngularCovariance | PathCovariance
    posterior: Posterior
    determined: Tensor
    """p·q of every atom, from 0 to 1, by the q of the layer before where there was one: [batch, atoms]."""


class WithPaths(NamedTuple):
    """The models with paths off the grid, of the samples where they are worth a try."""

    some: Tensor
    """Which samples: [k]."""
    looks: list[Look]
    """Of every layer, the last model last."""
    off: OffGrid
    """The paths of the last model."""
    weight: Tensor
    """Of the last model against the grid alone: [k]."""


class Answer(NamedTuple):
    """Both models of a chunk of samples."""

    measured: Measurement
    """In units of y's root mean square."""
    unit: Tensor
    """[batch]."""
    grid: Look
    paths: WithPaths | None

    @property
    def mean(self) -> Tensor:
        """Of both models by their weights, in units of y: [batch, n]."""
        mean, paths = self.grid.posterior.mean, self.paths
        if paths is None:
            return mean
        apart = paths.looks[-1].posterior.mean - mean[paths.some]
        return mean.index_add(0, paths.some, paths.weight[:, None] * apart)


class UniversalNetwork(nn.Module):
    """Layers on grids that become finer, then layers with paths; one set of weights for arrays, front ends and channels."""

    def __init__(self, oversampling: Sequence[float], path_layers: int, width: int, generator: torch.Generator) -> None:
        """oversampling: of the grid of each layer, then that of the answer; path_layers: how many come after the peaks left."""
        super().__init__()
        self.oversampling = tuple(oversampling)
        with torch.random.fork_rng(devices=[]):
            self.layers = nn.ModuleList(AtomLayer(width) for _ in self.oversampling[:-1])
            self.path_layers = nn.ModuleList(AtomLayer(width) for _ in range(path_layers))
        initialise(self, generator)
        with torch.no_grad():
            for layer in (*self.layers, *self.path_layers):
                for name in ("leave", "of_departing", "of_arriving", "of_context"):
                    layer.get_parameter(f"{name}.weight").zero_()
        self.price = nn.Parameter(torch.tensor([1.0, 1.0, 0.0]))
        """Of a path: in all, for each axis along which it has a direction, for each pair of polarisations; in nats."""
        self.steepness = nn.Parameter(torch.tensor(-0.75))

    def forward(self, measured: Measurement, rx: Array, tx: Array) -> tuple[list[Look], WithPaths | None]:
        """What layers had and saw, see `on_grid`, and the models with paths. measured: y of mean power one, see `scaled`."""
        looks = self.on_grid(measured, rx, tx)
        return looks, self.with_paths(looks[-1], measured)

    def on_grid(self, measured: Measurement, rx: Array, tx: Array) -> list[Look]:
        """What every layer after the first, which has equal powers, had and saw; the model of the grid alone last."""
        looks: list[Look] = []
        grid = angular_grid_of(rx, tx, self.oversampling[0], measured.y.dtype)
        view = GridView(grid, measured.phi)
        level = _flat_start(measured, view)
        log_powers = level[:, None].expand(-1, grid.atoms)
        for number, (layer, finer) in enumerate(zip(self.layers, self.oversampling[1:], strict=True)):
            powers = log_powers.exp()
            if number == 0:
                whitened, expected = seen_flat(level.exp(), view, measured)
                seen = _seen(whitened, expected, powers, view)
            else:
                prior = AngularCovariance(powers, grid, view)
                posterior = condition(prior, measured)
                whitened = posterior.whitened
                seen = _seen(whitened, view.forms(posterior.precision), powers, view)
                looks.append(Look(prior, posterior, seen.determined))
            log_powers = updated(layer, log_powers, seen, _of_sample(measured, whitened, powers, seen), grid)
            before, coarse = log_powers, grid
            if finer != grid.oversampling:
                grid = angular_grid_of(rx, tx, finer, measured.y.dtype)
                log_powers, view = interpolated(before, coarse, grid), GridView(grid, measured.phi)
        determined = before.exp() * seen.expected
        if grid != coarse:
            determined = interpolated(determined, coarse, grid, add_up=False)
        prior = AngularCovariance(log_powers.exp(), grid, view)
        return [*looks, Look(prior, condition(prior, measured), determined)]

    def with_paths(self, look: Look, measured: Measurement) -> WithPaths | None:
        """Models with paths where the peaks of a grid's powers may be some; None where no sample has a promising one."""
        model, alone = look.prior, look.posterior.log_evidence
        assert isinstance(model, AngularCovariance)
        begun = peaks(model, look.determined, most=_MOST_PATHS)
        if not begun.found.shape[1]:
            return None
        off, rest, evidence = take_off(begun, model, measured, rounds=_ROUNDS)
        some = (evidence - self._price(off) > alone - _HOPELESS / off.count).nonzero()[:, 0]
        if not len(some):
            return None
        measured, off, grid = measured.select(some), off.select(some).shortened(), model.grid
        model, looks = rest.among(some, measured.phi), []
        log_powers, view = model.powers.log(), model.view
        assert view is not None
        for layer in self.path_layers:
            prior = off.with_grid(model)
            posterior = condition(prior, measured)
            seen = _seen(posterior.whitened, view.forms(posterior.precision), model.powers, view)
            looks.append(Look(prior, posterior, seen.determined))
            context = _of_sample(measured, posterior.whitened, model.powers, seen, off)
            log_powers = updated(layer, log_powers, seen, context, grid)
            model = AngularCovariance(log_powers.exp(), grid, view)
            more = peaks(model, model.powers * seen.expected, most=_MOST_LATER)
            log_powers = torch.where(around(more, grid), log_powers + math.log(LEFT), log_powers)
            model = AngularCovariance(log_powers.exp(), grid, view)
            off = improve(off.and_more(more), model, measured, rounds=_ROUNDS_AFTER)
        prior = off.with_grid(model)
        looks.append(Look(prior, condition(prior, measured), looks[-1].determined))
        gain = (looks[-1].posterior.log_evidence - alone[some]).detach() - self._price(off)
        weight = torch.sigmoid(nn.functional.softplus(self.steepness) * gain)
        return WithPaths(some, looks, off, weight)

    def evidence(self, answer: Answer) -> Tensor:
        """log p(y) of both models together, the price of paths paid, in units of y's root mean square: [batch]."""
        alone, paths = answer.grid.posterior.log_evidence, answer.paths
        if paths is None:
            return alone
        other = paths.looks[-1].posterior.log_evidence - self._price(paths.off)
        return alone.index_copy(0, paths.some, torch.logaddexp(alone[paths.some], other))

    def _price(self, off: OffGrid) -> Tensor:
        """Nats of evidence that were gained by fitting directions to y: [batch]."""
        ends = (off.paths.rx, off.paths.tx)
        axes = sum(size > 1 for array in ends for size in (array.columns, array.rows))
        pairs = math.prod(len(array.slants) for array in ends)
        return (self.price[0] + axes * self.price[1] + pairs * self.price[2]) * off.count


def _seen(whitened: Tensor, expected: Tensor, powers: Tensor, view: GridView) -> Seen:
    """What y and Φ say of every atom of a grid, given a model of it and perhaps of more.

    whitened: C⁻¹y of that model, [batch, m]; expected: ψᴴΦᴴC⁻¹Φψ and powers of every atom, [batch, atoms].
    """
    most = expected.amax(1, keepdim=True)
    alive = expected > 2 * _DEAD * most
    expected = expected.maximum(_DEAD * most + torch.finfo(expected.dtype).tiny)
    asked = squared_modulus(view.matched(whitened))
    ratio = torch.where(alive, asked / expected, 1.0)
    step = torch.where(alive, 0.5 * torch.log(ratio + _LEAST_RATIO), 0.0)
    return Seen(expected, ratio, step, powers * expected)


def scaled(measured: Measurement) -> tuple[Measurement, Tensor]:
    """y in units of its root mean square, its noise at least what single precision can tell, and the unit: [batch]."""
    power = squared_modulus(measured.y).mean(1)
    unit = torch.where(power > 0, power, torch.ones_like(power)).sqrt()
    noise_var = (measured.noise_var / unit.square()).clamp_min(LEAST_NOISE)
    return Measurement(measured.y / unit[:, None], measured.phi, noise_var), unit


def interpolated(values: Tensor, coarse: AngularGrid, fine: AngularGrid, *, add_up: bool = True) -> Tensor:
    """Values on a finer grid of the same arrays, linear along every axis: [batch, atoms].

    add_up: they are logarithms of powers, whose sum stays what it is, or so.
    """
    field = values.reshape(len(values), *coarse.shape)
    for place, axis in enumerate((2, 3, 5, 6)):
        if coarse.axes[place] != fine.axes[place]:
            weights = _circular_weights(coarse.axes[place], fine.axes[place]).to(field)
            field = (field.movedim(axis, -1) @ weights.mT).movedim(-1, axis)
    return field.reshape(len(values), -1) - (math.log(fine.atoms / coarse.atoms) if add_up else 0.0)


@cache
def _circular_weights(points: int, finer: int) -> Tensor:
    """What every point of a circle of `finer` points takes of its two neighbours among `points`: [finer, points]."""
    phases = (torch.arange(finer) - finer // 2) / finer
    place = (phases * points + points // 2) % points
    left = place.floor().long() % points
    share = place - place.floor()
    weights = torch.zeros(finer, points)
    rows = torch.arange(finer)
    weights[rows, left] += 1.0 - share
    weights[rows, (left + 1) % points] += share
    return weights


def _flat_start(measured: Measurement, view: GridView) -> Tensor:
    """The equal power of all atoms that gives y the power that noise does not explain: its logarithm, [batch]."""
    seen = measured.phi.squared_frobenius_norm().clamp_min(torch.finfo(measured.noise_var.dtype).tiny)
    share = (1.0 - measured.noise_var).clamp_min(_LEAST_SHARE)
    level = torch.log(share * measured.y.shape[1] / (seen * view.grid.atoms)) + math.log(_polarisations(view.grid))
    return level.clamp(LOWEST, HIGHEST)


def _polarisations(grid: AngularGrid) -> int:
    return len(grid.tx.slants) * len(grid.rx.slants)


def _of_sample(
    measured: Measurement, whitened: Tensor, powers: Tensor, seen: Seen, off: OffGrid | None = None
) -> Tensor:
    """Noise, share of the measurements that the grid uses up, misfit, measurements per atom, paths, and their share of the
    power: [batch, 6]."""
    count, atoms = measured.y.shape[1], powers.shape[1]
    used = seen.determined.sum(1) / count
    misfit = (measured.y.conj() * whitened).real.sum(1) / count
    logs = (measured.noise_var.log() / 5.0, torch.log(used + 1e-3), torch.log(misfit.clamp_min(0.0) + 1e-3))
    per_atom = torch.full_like(used, math.log(count / atoms))
    power = torch.zeros_like(used) if off is None else off.powers.sum((1, 2))
    paths = torch.zeros_like(used) if off is None else off.count.to(used) / _MOST_PATHS
    return torch.stack([*logs, per_atom, paths, power / (power + powers.sum(1))], 1)
