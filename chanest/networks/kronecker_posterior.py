"""Posterior and prior of VLISTA over the factors of a Kronecker dictionary, whose entries are few where n·b are many."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vlista_core.models.augmentation import initialise
from vlista_core.models.base import matrix_parameter
from vlista_core.models.distributions import DictionaryDistribution
from vlista_core.prox import squared_modulus

_LARGEST_GAIN = 3.0
_LEAST_SHARE = 1e-3


class KroneckerPosterior(nn.Module):
    """q(Ψ_t | x_{t-1}, y, Φ) factor by factor, from the angular spectra of the back-projected y and of the last code.

    The spectra are those along each factor's grid, so the network fits any number of measurements.
    """

    def __init__(
        self,
        shapes: Sequence[tuple[int, int]],
        layers: int,
        family: type[DictionaryDistribution],
        generator: torch.Generator,
        *,
        hidden: int,
        directions: int,
        deviation: float,
    ) -> None:
        """shapes: (N_i, G_i) of the factors; directions: how many learned matrices the mean may move along; deviation: where
        the standard deviations start, in units of N_i^(-1/2)."""
        super().__init__()
        self.atoms = [atoms for _, atoms in shapes]
        self.place = nn.Parameter(torch.zeros(layers, hidden))
        self.body = nn.Sequential(
            nn.Linear(2 * sum(self.atoms) + 2, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()
        )
        self.factors = nn.ModuleList(
            FactorPosterior(*shape, family, generator, hidden=hidden, directions=directions, deviation=deviation)
            for shape in shapes
        )
        initialise(self.body, generator)
        with torch.no_grad():
            self.place.normal_(std=0.3, generator=generator)

    def forward(
        self, t: int, spectrum: Tensor, code: Tensor, noise_var: Tensor, factors: Sequence[Tensor]
    ) -> list[DictionaryDistribution]:
        """spectrum: Ψᴴ Φᴴ y and code: x_{t-1}, both [batch, b]; factors: what all samples share, each [N_i, G_i]."""
        energy = squared_modulus(spectrum).mean(1)
        levels = [_logarithm(noise_var) / 4.0, _logarithm(energy) / 4.0]
        features = [*self._marginals(spectrum), *self._marginals(code), torch.stack(levels, dim=1)]
        entry, *rest = self.body
        hidden = entry(torch.cat(features, dim=1)) + self.place[t]
        for module in rest:
            hidden = module(hidden)
        return [posterior(hidden, factor) for posterior, factor in zip(self.factors, factors, strict=True)]

    def _marginals(self, code: Tensor) -> list[Tensor]:
        """The logarithm of the power along each factor's grid relative to its mean, each [batch, G_i]."""
        power = squared_modulus(code).reshape(len(code), *self.atoms)
        found = []
        for axis in range(1, power.ndim):
            others = [dim for dim in range(1, power.ndim) if dim != axis]
            marginal = power.sum(others) if others else power
            mean = marginal.mean(1, keepdim=True).clamp_min(torch.finfo(power.dtype).tiny)
            found.append(torch.log(marginal / mean + _LEAST_SHARE))
        return found


class FactorPosterior(nn.Module):
    """The distribution of one factor: the shared one with its atoms scaled, moved along a few learned directions."""

    def __init__(
        self,
        length: int,
        atoms: int,
        family: type[DictionaryDistribution],
        generator: torch.Generator,
        *,
        hidden: int,
        directions: int,
        deviation: float,
    ) -> None:
        super().__init__()
        self.family = family
        self.gain, self.weights = nn.Linear(hidden, atoms), nn.Linear(hidden, directions)
        self.raw = nn.Linear(hidden, family.RAW_MAPS * atoms)
        spread = 0.3 / math.sqrt(length)
        drawn = torch.randn(directions, length, atoms, dtype=torch.complex64, generator=generator)
        self.directions = matrix_parameter(spread * drawn)
        with torch.no_grad():
            for head in (self.gain, self.weights, self.raw):
                head.weight.zero_()
                head.bias.zero_()
            start = torch.tensor(family.raw_start(deviation / math.sqrt(length)))
            self.raw.bias.copy_(start.repeat_interleave(atoms))

    def forward(self, hidden: Tensor, factor: Tensor) -> DictionaryDistribution:
        """hidden: [batch, hidden], factor: [N, G] -> a distribution of [batch, N, G]; an atom's entries deviate alike."""
        gain = torch.exp(self.gain(hidden).clamp(-_LARGEST_GAIN, _LARGEST_GAIN))
        weights = self.weights(hidden)
        moved = torch.view_as_complex((weights @ self.directions.flatten(1)).reshape(-1, *self.directions.shape[1:]))
        raw = self.raw(hidden).reshape(len(hidden), self.family.RAW_MAPS, 1, -1)
        return self.family.from_raw(gain[:, None, :] * factor + moved, raw)


class FactorPrior(nn.Module):
    """p(Ψ_t | Ψ_{t-1}) of one factor: what the last layer's deviation from the shared factor leaves behind, atom by atom.

    Δ_t = Ψ_t - A_t has the mean ρ_t Δ_{t-1}, with Δ_0 = 0: a random walk, learned, used in training only.
    """

    def __init__(
        self, length: int, atoms: int, layers: int, family: type[DictionaryDistribution], deviation: float
    ) -> None:
        super().__init__()
        self.family = family
        self.kept = nn.Parameter(torch.full((layers, 1, atoms), 0.5))
        start = torch.tensor(family.raw_start(deviation / math.sqrt(length)))
        self.raw = nn.Parameter(start[:, None, None].repeat(layers, 1, 1, atoms))

    def divergence(
        self, t: int, posterior: DictionaryDistribution, drift: Tensor, last: Tensor, factor: Tensor
    ) -> Tensor:
        """KL(q(Ψ_t) ‖ p(Ψ_t | Ψ_{t-1})): [batch]. drift, last: Δ_t and Δ_{t-1} as drawn [batch, N, G]; factor: A_t."""
        prior = self.family.from_raw(self.kept[t] * last, self.raw[t][None])
        return posterior.shifted(-factor).divergence(prior, drift)


def _logarithm(values: Tensor) -> Tensor:
    """ln, within ±20."""
    return torch.log(values.clamp_min(torch.finfo(values.dtype).tiny)).clamp(-20.0, 20.0)
