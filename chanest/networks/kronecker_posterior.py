"""The networks of VLISTA on Kronecker dictionaries: posterior and prior of the factors, and the likelihood variance.

Deviations and entries of a factor with N antennas are in units of N^(-1/2): see `kronecker_vlista`.
"""

import math
from typing import Literal, cast

import torch
from torch import Tensor, nn

from vlista_core.estimate import Measurement
from vlista_core.linalg import solve_hermitian
from vlista_core.models.augmentation import initialise
from vlista_core.models.base import matrix_parameter
from vlista_core.models.distributions import DictionaryDistribution, Gaussian
from vlista_core.prox import squared_modulus

Shape = tuple[int, int]
"""(N_i, G_i) of a factor."""
Family = type[DictionaryDistribution]
Deviations = Literal["network", "constant"]
"""Posterior deviations: for each sample, layer and atom from a network, or one learned number for all."""
Likelihood = Literal["learned", "constant"]
"""δ²: for each sample, layer and antenna from a network, or one learned number for all."""
_LARGEST_GAIN = 3.0
_LEAST_SHARE = 1e-3
_SEEN = 3
"""Powers that the posterior sees of every atom: of the back-projected y, of the last code, of the column of ΦΨ."""
_LARGEST_LOG = 15.0
_RIDGE = 1e-3
_START = (math.log(0.3), 0.5, 0.0, 0.0)
"""log δ² starts as log 0.3 + log σ²/2: a rough guess of the error at any SNR."""


class KroneckerPosterior(nn.Module):
    """q(Ψ_t | x_{t-1}, y, Φ) factor by factor, from powers along each factor's grid and the noise level.

    The powers are those of the back-projected ΨᴴΦᴴy, of the code x_{t-1} and of the columns of ΦΨ, with the Ψ that all samples
    share in the first layer; the network fits any number of measurements.
    """

    def __init__(
        self,
        shapes: list[Shape],
        layers: int,
        family: Family,
        generator: torch.Generator,
        *,
        hidden: int,
        directions: int,
        deviation: float,
        constant: bool,
    ) -> None:
        """shapes: (N_i, G_i) of the factors; directions: how many learned matrices the mean may move along; deviation: where
        the standard deviations start; constant: one for all."""
        super().__init__()
        self.atoms = [atoms for _, atoms in shapes]
        self.place = nn.Parameter(torch.zeros(layers, hidden))
        self.body = nn.Sequential(
            nn.Linear(_SEEN * sum(self.atoms) + 2, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()
        )
        start = torch.tensor(family.raw_start(deviation))
        self.constant = nn.Parameter(start[None, :, None, None]) if constant else None
        self.factors = nn.ModuleList(
            FactorPosterior(shape, layers, family, generator, hidden, directions, None if constant else start)
            for shape in shapes
        )
        initialise(self.body, generator)
        with torch.no_grad():
            self.place.normal_(std=0.3, generator=generator)

    def forward(
        self, t: int, powers: tuple[Tensor, ...], noise_var: Tensor, factors: list[Tensor]
    ) -> tuple[list[DictionaryDistribution], Tensor]:
        """powers: what the class says it sees, each [batch, b]; factors: what all samples share, each [N_i, G_i].

        Also gives the hidden features [batch, hidden].
        """
        levels = torch.stack([_logarithm(noise_var), _logarithm(powers[0].mean(1))], dim=1) / 4.0
        seen = [self._marginals(power) for power in powers]
        entry, *rest = self.body
        hidden = entry(torch.cat([*(each for kind in seen for each in kind), levels], dim=1)) + self.place[t]
        for module in rest:
            hidden = module(hidden)
        own = [torch.stack(kinds, dim=1) for kinds in zip(*seen, strict=True)]
        found = zip(self.factors, own, factors, strict=True)
        return [posterior(t, hidden, each, factor, self.constant) for posterior, each, factor in found], hidden

    def _marginals(self, power: Tensor) -> list[Tensor]:
        """The logarithm of the power along each factor's grid relative to its mean, each [batch, G_i]."""
        power = power.reshape(power.shape[0], *self.atoms)
        axes = range(1, power.ndim)
        found = [power.sum([other for other in axes if other != axis]) for axis in axes]
        tiny = torch.finfo(power.dtype).tiny
        return [torch.log(each / each.mean(1, keepdim=True).clamp_min(tiny) + _LEAST_SHARE) for each in found]


class FactorPosterior(nn.Module):
    """The distribution of one factor: the shared one with its atoms scaled, moved along a few learned directions.

    The deviations of an atom follow the hidden features and, through a slope for each layer, the powers of that very atom.
    """

    def __init__(
        self,
        shape: Shape,
        layers: int,
        family: Family,
        generator: torch.Generator,
        hidden: int,
        directions: int,
        start: Tensor | None,
    ) -> None:
        """As for KroneckerPosterior. start: the raw maps at the start, [RAW_MAPS]; None where they are given."""
        length, atoms = shape
        super().__init__()
        self.family = family
        self.gain, self.weights = nn.Linear(hidden, atoms), nn.Linear(hidden, directions)
        self.directions = matrix_parameter(
            0.3 * torch.randn(directions, length, atoms, dtype=torch.complex64, generator=generator)
        )
        heads = [self.gain, self.weights]
        self.raw: nn.Linear | None = None
        self.slopes: nn.Parameter | None = None
        if start is not None:
            self.raw = nn.Linear(hidden, family.RAW_MAPS * atoms)
            self.slopes = nn.Parameter(torch.zeros(layers, family.RAW_MAPS, _SEEN))
            heads.append(self.raw)
        with torch.no_grad():
            for head in heads:
                head.weight.zero_()
                head.bias.zero_()
            if start is not None and self.raw is not None:
                self.raw.bias.copy_(start.repeat_interleave(atoms))

    def forward(
        self, t: int, hidden: Tensor, own: Tensor, factor: Tensor, constant: Tensor | None
    ) -> DictionaryDistribution:
        """hidden: [batch, hidden], own: powers of the atoms [batch, 3, G], factor: [N, G] -> a distribution of [batch, N, G];
        an atom's entries deviate alike. constant: the raw maps of all samples, where there is no network for them."""
        gain = torch.exp(self.gain(hidden).clamp(-_LARGEST_GAIN, _LARGEST_GAIN))
        weights = self.weights(hidden)
        moved = torch.view_as_complex((weights @ self.directions.flatten(1)).reshape(-1, *self.directions.shape[1:]))
        if self.raw is None or self.slopes is None:
            raw = cast(Tensor, constant)
        else:
            raw = self.raw(hidden).reshape(hidden.shape[0], self.family.RAW_MAPS, -1) + self.slopes[t] @ own
            raw = raw[:, :, None]
        return self.family.from_raw(gain[:, None, :] * factor + moved, raw)


class FactorPrior(nn.Module):
    """p(Ψ_t | Ψ_{t-1}) of one factor, t ≥ 2: a Markov chain about the shared factors A_t, learned, used in training only.

    Δ_t = Ψ_t - A_t has the mean ρ Δ_{t-1} and the deviation τ = (1 - ρ²)^(1/2): what is N(0, 1) stays so. One τ in (0, 1) is
    learned for each layer and atom. A prior whose mean and deviation are both free would follow a posterior that shrinks to a
    point; in this one a small τ means that Δ_t must stay at Δ_{t-1}, and Δ_1 has the standard normal prior to answer to.
    """

    def __init__(self, shape: Shape, layers: int, deviation: float) -> None:
        """deviation: τ at the start."""
        super().__init__()
        self.raw = nn.Parameter(torch.full((layers - 1, 1, shape[1]), math.log(deviation / (1 - deviation))))

    def forward(self, t: int, factor: Tensor, last: Tensor) -> Gaussian:
        """factor: A_t [N, G], last: Δ_{t-1} as drawn [batch, N, G]; layers count from 0, so t is at least 1."""
        deviation = torch.sigmoid(self.raw[t - 1])
        return Gaussian(factor + (1 - deviation.square()).sqrt() * last, deviation[None])


class LikelihoodVariance(nn.Module):
    """δ_t² of every entry of h: a network on what the posterior has seen, σ², the power of s_t and how well it fits y.

    log δ² is a number for the sample and the layer plus one for each row of each factor (subcarrier, transmit and receive
    antenna). Nothing is known of the true h, so a sample that fails unseen has too small a δ².
    """

    def __init__(
        self, rows: list[int], layers: int, hidden: int, generator: torch.Generator, *, constant: bool
    ) -> None:
        """rows: N_i of the factors; hidden: features of the posterior; constant: one number for all."""
        super().__init__()
        self.rows = rows
        self.constant = nn.Parameter(torch.tensor(_START[0])) if constant else None
        if constant:
            return
        self.line = nn.Parameter(torch.tensor(_START).repeat(layers, 1))
        self.place = nn.Parameter(torch.zeros(layers, hidden))
        self.body, self.head = nn.Linear(hidden + 3, hidden), nn.Linear(hidden, sum(rows))
        initialise(self.body, generator)
        with torch.no_grad():
            self.place.normal_(std=0.3, generator=generator)
            self.head.weight.zero_()
            self.head.bias.zero_()

    def forward(self, t: int, hidden: Tensor, signal: Tensor, measured: Measurement) -> Tensor:
        """hidden: [batch, hidden], signal: s_t [batch, n] -> δ² [batch, n]. No gradient goes back to s_t from here."""
        if self.constant is not None:
            return self.constant.exp().expand(signal.shape)
        levels = self._levels(signal, measured)
        inside = torch.relu(self.body(torch.cat([hidden, levels / 4.0], dim=1)) + self.place[t])
        total = (levels @ self.line[t, 1:] + self.line[t, 0]).reshape(-1, *(1 for _ in self.rows))
        for axis, part in enumerate(self.head(inside).split(self.rows, dim=1), start=1):
            shape = [part.shape[0], *(1 for _ in self.rows)]
            shape[axis] = -1
            total = total + part.reshape(shape)
        return total.flatten(1).clamp(-_LARGEST_LOG, _LARGEST_LOG).exp()

    @torch.no_grad()
    def settle(self, t: int, signal: Tensor, measured: Measurement, truth: Tensor) -> None:
        """Start from the regression of the samples' mean errors on what is seen of them. truth: h [batch, n]."""
        errors = _logarithm(squared_modulus(signal - truth).mean(1))
        if self.constant is not None:
            self.constant.copy_(errors.mean())
            return
        levels = self._levels(signal, measured)
        design = torch.cat([torch.ones_like(levels[:, :1]), levels], dim=1)
        ridge = _RIDGE * len(design) * torch.eye(design.shape[1], device=design.device)
        self.line[t] = solve_hermitian(design.mT @ design + ridge, (design.mT @ errors)[:, None])[:, 0]

    @staticmethod
    @torch.no_grad()
    def _levels(signal: Tensor, measured: Measurement) -> Tensor:
        """Logarithms of σ², of the power of s_t and of |y - Φs_t|²/σ²: [batch, 3]."""
        residual = _logarithm(squared_modulus(measured.y - measured.phi.apply(signal)).mean(1))
        noise = _logarithm(measured.noise_var)
        return torch.stack([noise, _logarithm(squared_modulus(signal).mean(1)), residual - noise], dim=1)


def _logarithm(values: Tensor) -> Tensor:
    """ln, within ±20."""
    return torch.log(values.clamp_min(torch.finfo(values.dtype).tiny)).clamp(-20.0, 20.0)
