"""The network of `universal`: powers on a grid of directions, updated by layers that any arrays, pilots and channels share.

A layer has powers p of the atoms of a grid, C = ΦΨ diag(p) (ΦΨ)ᴴ + σ²I, and looks at what is dimensionless of every atom:
    g/q   how much the data ask for it, g = |ψᴴΦᴴC⁻¹y|² against what the model expects, q = ψᴴΦᴴC⁻¹Φψ
    p·q   how well it is determined
and at what surrounds it on the grid. The step log p += ½ log(g/q) is that of majorise-minimise for the likelihood of y; the
network scales it and adds to it, atom by atom: log p += ½ log(g/q)·(1 + a) + b. That is A-DLISTA's idea carried to the end, the
step and the threshold of every atom from the actual Φ, and C is factorised anew in every layer. Weights are shared by all
atoms, so that they fit any grid; surroundings go round in phase. Early layers have coarse grids, late ones fine grids.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from chanest.arrays import Array
from chanest.covariances.angular import AngularCovariance, AngularGrid, GridView, angular_grid_of, smoothed
from chanest.covariances.refining import Refined
from vlista_core.estimate import Measurement
from vlista_core.gaussian import Posterior, condition
from vlista_core.models.augmentation import initialise
from vlista_core.prox import squared_modulus

_FEATURES, _CONTEXT = 24, 4
"""Numbers of an atom and of a sample that a layer sees."""
_LEAST_SHARE, _LEAST_RATIO, _LEAST_DETERMINED = 0.03, 1e-4, 1e-8
"""What the power of a channel is at the least, in units of that of y; what is added to g/q and to p·q before the logarithm."""
_DEAD = 1e-6
"""An atom of which the beams see less, as a share of the best seen one, keeps its power: y says nothing of it."""
_LOWEST, _HIGHEST = -25.0, 15.0
"""Of log p, in units of the power of y."""
LEAST_NOISE = 1e-6
"""σ² at the least, in units of the mean power of y: what single precision can tell."""
_LEAST_POWER = 1e-6
"""Added to powers in units of their mean before a logarithm is taken."""


_DEPARTURES, _ARRIVALS = (3, 4), (6, 7)
"""Axes of directions in a stack of maps [maps, batch, pol_t, columns, rows, pol_r, columns, rows]."""


class Look(NamedTuple):
    """What a layer had before it and what it saw."""

    prior: AngularCovariance
    posterior: Posterior
    determined: Tensor
    """p·q of every atom, from 0 to 1: [batch, atoms]."""


class Answer(NamedTuple):
    """Both models of a chunk of samples, and how they are weighed."""

    measured: Measurement
    """In units of y's root mean square."""
    unit: Tensor
    """[batch]."""
    grid: Look
    refined: Refined
    weight: Tensor
    """Of the model with paths off the grid: [batch, 1]."""


class AtomLayer(nn.Module):
    """One update of all powers: two hidden layers on what is seen of an atom, of its surroundings and of the sample."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter = nn.Linear(_FEATURES, width)
        self.context = nn.Linear(_CONTEXT + width, width)
        self.middle = nn.Linear(width, width)
        self.leave = nn.Linear(width, 2)

    def forward(self, features: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """features: [batch, atoms, 24], context: [batch, 4] -> a and b, [batch, atoms] each."""
        hidden = self.enter(features)
        everywhere = self.context(torch.cat([context, torch.relu(hidden).mean(1)], 1))
        hidden = nn.functional.relu(hidden + everywhere[:, None])
        hidden = hidden + nn.functional.relu(self.middle(hidden))
        scale, shift = self.leave(hidden).unbind(2)
        return scale, shift


class UniversalNetwork(nn.Module):
    """Layers on grids that become finer; one set of weights for arrays, front ends and channels of any kind."""

    def __init__(self, oversampling: Sequence[float], width: int, generator: torch.Generator) -> None:
        """oversampling: of the grid of each layer, then that of the answer."""
        super().__init__()
        self.oversampling = tuple(oversampling)
        with torch.random.fork_rng(devices=[]):
            self.layers = nn.ModuleList(AtomLayer(width) for _ in self.oversampling[:-1])
        initialise(self, generator)
        with torch.no_grad():
            for layer in self.layers:
                layer.get_parameter("leave.weight").zero_()

    def forward(self, measured: Measurement, rx: Array, tx: Array) -> list[Look]:
        """What every layer had and saw, the answer last. measured: y of mean power one, see `scaled`."""
        looks: list[Look] = []
        kind = measured.y.dtype
        grid = angular_grid_of(rx, tx, self.oversampling[0], kind)
        view = GridView(grid, measured.phi)
        log_powers = _flat_start(measured, view)
        for layer, finer in zip([*self.layers, None], [*self.oversampling[1:], None], strict=True):
            prior = AngularCovariance(log_powers.exp(), grid, view)
            posterior = condition(prior, measured)
            expected = view.forms(posterior.precision)
            expected = expected.maximum(_DEAD * expected.amax(1, keepdim=True) + torch.finfo(expected.dtype).tiny)
            determined = prior.powers * expected
            looks.append(Look(prior, posterior, determined))
            if layer is None or finer is None:
                break
            asked = squared_modulus(grid.dictionary.to(expected.device).adjoint(posterior.gradient))
            alive = expected > 2 * _DEAD * expected.amax(1, keepdim=True)
            ratio = torch.where(alive, asked / expected, 1.0)
            step = torch.where(alive, 0.5 * torch.log(ratio + _LEAST_RATIO), 0.0)
            features = _of_atoms(grid, step, ratio, determined, log_powers)
            scale, shift = layer(features, _of_sample(measured, posterior, determined))
            log_powers = (log_powers + step * (1.0 + scale) + shift).clamp(_LOWEST, _HIGHEST)
            if finer != grid.oversampling:
                coarse, grid = grid, angular_grid_of(rx, tx, finer, kind)
                log_powers, view = interpolated(log_powers, coarse, grid), GridView(grid, measured.phi)
        return looks


def scaled(measured: Measurement) -> tuple[Measurement, Tensor]:
    """y in units of its root mean square, its noise at least what single precision can tell, and the unit: [batch]."""
    power = squared_modulus(measured.y).mean(1)
    unit = torch.where(power > 0, power, torch.ones_like(power)).sqrt()
    noise_var = (measured.noise_var / unit.square()).clamp_min(LEAST_NOISE)
    return Measurement(measured.y / unit[:, None], measured.phi, noise_var), unit


def interpolated(log_powers: Tensor, coarse: AngularGrid, fine: AngularGrid) -> Tensor:
    """Logarithms of powers on a finer grid of the same arrays, linear along every axis, of the same sum of powers or so."""
    field = log_powers.reshape(len(log_powers), *coarse.shape)
    for place, axis in enumerate((2, 3, 5, 6)):
        weights = _circular_weights(coarse.axes[place], fine.axes[place]).to(field)
        field = (field.movedim(axis, -1) @ weights.mT).movedim(-1, axis)
    return field.reshape(len(log_powers), -1) - math.log(fine.atoms / coarse.atoms)


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
    """Equal powers of all atoms that give y the power that noise does not explain: logarithms, [batch, atoms]."""
    seen = measured.phi.squared_frobenius_norm().clamp_min(torch.finfo(measured.noise_var.dtype).tiny)
    share = (1.0 - measured.noise_var).clamp_min(_LEAST_SHARE)
    level = torch.log(share * measured.y.shape[1] / (seen * view.grid.atoms)) + math.log(_polarisations(view.grid))
    return level.clamp(_LOWEST, _HIGHEST)[:, None].expand(-1, view.grid.atoms)


def _polarisations(grid: AngularGrid) -> int:
    return len(grid.tx.slants) * len(grid.rx.slants)


def _of_atoms(grid: AngularGrid, step: Tensor, ratio: Tensor, determined: Tensor, log_powers: Tensor) -> Tensor:
    """What is seen of every atom and of its surroundings: [batch, atoms, 24].

    Its step, log p·q, log p relative to the mean, and where it lies; then, as logarithms of means: the powers around it, before
    and after the plain step; the ratios g/q around it; both over all atoms that share its departure, its arrival, its row of
    departures or its row of arrivals; and the mean step around it. A mean is taken before the logarithm: a strong neighbour
    leaks, and the mean of g/q over many atoms tells their power where noise hides that of each.
    """
    batch, shape = len(step), grid.shape
    relative = log_powers - log_powers.logsumexp(1, keepdim=True) + math.log(grid.atoms)
    moved = log_powers + step
    moved = moved - moved.logsumexp(1, keepdim=True) + math.log(grid.atoms)
    maps = torch.cat([torch.stack([moved, relative]).exp(), ratio[None]]).reshape(3, batch, *shape)
    near = smoothed(maps, _DEPARTURES)
    both = smoothed(near, _ARRIVALS)
    far = smoothed(smoothed(both[::2], _DEPARTURES), _DEPARTURES)
    around = [*near.unbind(0), *both.unbind(0), *far.unbind(0), smoothed(maps[:1], _ARRIVALS)[0]]
    shared = [maps[2].mean(axes, keepdim=True) for axes in ((4, 5, 6), (1, 2, 3), (1, 2, 4, 5, 6), (1, 2, 3, 4, 5))]
    ends = [maps[0].mean(axes, keepdim=True) for axes in ((4, 5, 6), (1, 2, 3))]
    logs = [torch.log(field + _LEAST_POWER) / 4.0 for field in (*around, *shared, *ends)]
    steps = step.reshape(1, batch, *shape)
    steps_around = [smoothed(steps, axes)[0] for axes in (_DEPARTURES, _ARRIVALS)]
    own = [step, torch.log(determined + _LEAST_DETERMINED) / 4.0, relative / 4.0]
    flat = [field.expand(batch, *shape).reshape(batch, -1) for field in (*logs, *steps_around)]
    return torch.cat([torch.stack([*own, *flat], 2), grid.coordinates.to(step).expand(batch, -1, -1)], 2)


def _of_sample(measured: Measurement, posterior: Posterior, determined: Tensor) -> Tensor:
    """Noise, share of the measurements that the model uses up, misfit, and measurements per atom: [batch, 4]."""
    count, atoms = measured.y.shape[1], determined.shape[1]
    used = determined.sum(1) / count
    misfit = (measured.y.conj() * posterior.whitened).real.sum(1) / count
    logs = (measured.noise_var.log() / 5.0, torch.log(used + 1e-3), torch.log(misfit.clamp_min(0.0) + 1e-3))
    return torch.stack([*logs, torch.full_like(used, math.log(count / atoms))], 1)
