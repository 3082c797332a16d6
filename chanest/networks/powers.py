"""The network of `atom-lmmse`: the power of every atom for each sample.

What a channel's atoms can have for powers is a family: profiles p_1 … p_K, k-means of those that training channels have. The
network sees how much of y falls on each profile and answers with a mixture of them, so that the whole angular spectrum has a
say in the step and the shrinkage of every single atom.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from chanest.channels.rays import Rays
from chanest.channels.source import ChannelSource
from chanest.covariances.codebook import k_means
from chanest.covariances.directions import Directions
from vlista_core.models.augmentation import initialise

SPECTRA, SCALARS = 2, 2
"""Angular spectra that the network sees, and numbers of the sample besides."""
_SHARPNESS = 40.0
"""A ray counts for the atoms near it, as exp(40·cos²) of the angle between their steering vectors."""
_FLOOR = 0.01, 0.006
"""What an atom has at least: parts of its own mean power and of that of all."""
_LOWEST, _LEVEL = -13.0, 0.051
"""Of the logarithms of powers in a file, from 2·10⁻⁶ to one."""


class PowerNetwork(nn.Module):
    """Weights of the profiles from the powers that y has on each of them; powers are the mixture by these weights."""

    def __init__(self, atoms: int, profiles: int, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        inputs = SPECTRA * profiles + SCALARS
        self.levels: Tensor
        self.free: nn.Parameter | None = None
        """The profiles as logarithms while they are learned; afterwards they are rounded to `levels`."""
        self.register_buffer("levels", torch.zeros(profiles, atoms, dtype=torch.uint8))
        self.centre: Tensor
        self.spread: Tensor
        self.register_buffer("centre", torch.zeros(inputs))
        self.register_buffer("spread", torch.ones(inputs))
        with torch.random.fork_rng(devices=[]):
            self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise((inputs, hidden, hidden, profiles)))
        initialise(self, generator)

    def forward(self, spectra: list[Tensor], scalars: list[Tensor]) -> Tensor:
        """spectra: powers of the atoms, [batch, atoms] each; scalars: positive, [batch] each -> powers, [batch, atoms]."""
        profiles = self.profiles()
        hidden = (_features(profiles, spectra, scalars) - self.centre) / self.spread
        first, second, last = self.layers
        hidden = nn.functional.gelu(first(hidden))
        hidden = hidden + nn.functional.gelu(second(hidden))
        weights: Tensor = last(hidden).softmax(1)
        return weights @ profiles

    def profiles(self) -> Tensor:
        """p_1 … p_K: [K, atoms]."""
        return (_LOWEST + _LEVEL * self.levels if self.free is None else self.free).exp()

    @torch.no_grad()
    def start(self, powers: Tensor, seed: int) -> None:
        """Take the profiles from the powers of training channels, [samples, atoms], and let them be learned from now on."""
        labels, count = k_means(powers.sqrt(), len(self.levels), seed)
        total = torch.zeros(self.levels.shape).index_add_(0, labels, powers)
        total[count == 0] = powers[torch.arange(len(count)) % len(powers)][count == 0]
        self.free = nn.Parameter((total / count.clamp_min(1)[:, None] + floor(powers.mean(0))).log())

    @torch.no_grad()
    def settle(self) -> None:
        """Round the learned profiles to what a file holds: a byte per atom, steps of 5 % of its power."""
        if self.free is not None:
            self.levels = ((self.free - _LOWEST) / _LEVEL).round().clamp(0, 255).to(torch.uint8)
            self.free = None

    @torch.no_grad()
    def standardise(self, spectra: list[Tensor], scalars: list[Tensor]) -> None:
        """Take centre and spread of the inputs from samples of them."""
        features = _features(self.profiles(), spectra, scalars)
        self.centre, self.spread = features.mean(0), features.std(0) + 1e-3


def floor(mean: Tensor) -> Tensor:
    """The least power of each atom, from the mean powers: [atoms]."""
    own, common = _FLOOR
    return own * mean + common * mean.mean()


def atom_powers(source: ChannelSource, rays: Rays, directions: Directions) -> Tensor:
    """The powers of the atoms given the clusters of each sample: [batch, atoms].

    A cluster's are the product of those at both ends: which ray of one end goes with which of the other is not known.
    """
    factors = source.factors(rays)
    clusters, per_cluster = rays.aoa.shape[1:]
    power = factors.gains.abs().square().sum(dim=(1, 2)) * source.scale**2
    departing = _nearness(factors.tx, directions.dictionary.tx.mT)
    arriving = _nearness(factors.rx, directions.dictionary.rx.mT)

    def of(some: slice, groups: int) -> Tensor:
        sent, received = (
            near[:, some].reshape(len(near), groups, -1, near.shape[2]).mean(2) for near in (departing, arriving)
        )
        total = power[:, some].reshape(len(power), groups, -1).sum(2)
        return (total[..., None] * sent).mT @ received

    diffuse = clusters * per_cluster
    powers = of(slice(0, diffuse), clusters)
    if power.shape[1] > diffuse:  # The last ray is the line of sight: a cluster of its own.
        powers = powers + of(slice(diffuse, None), 1)
    return powers.flatten(1)


def _nearness(steering: Tensor, atoms: Tensor) -> Tensor:
    """How much of each ray counts for each atom, one in all. [batch, rays, N], [atoms, N] -> [batch, rays, atoms]."""
    cosine = (steering @ atoms.mH).abs() / atoms.shape[1]
    return (_SHARPNESS * cosine.square()).softmax(2)


def _features(profiles: Tensor, spectra: list[Tensor], scalars: list[Tensor]) -> Tensor:
    """Logarithms of the power on each profile, and of the scalars: [batch, SPECTRA·K + SCALARS]."""
    shares = (profiles / profiles.sum(1, keepdim=True)).mT
    seen = [spectrum @ shares for spectrum in spectra] + [scalar[:, None] for scalar in scalars]
    return torch.cat([value.clamp_min(torch.finfo(value.dtype).tiny) for value in seen], 1).log()
