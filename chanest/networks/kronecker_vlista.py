"""VLISTA on Kronecker dictionaries: a posterior over the factors of every sample and layer, A-DLISTA as the likelihood.

Ψ_t ~ q(Ψ_t | x_{t-1}, y, Φ), x_t = A-DLISTA layer with Ψ_t, s_t = Ψ_t x_t. Training maximises, as in vlista_core,
    ELBO = Σ_t w_t E log N(s | s_t, δ²) - Σ_t E KL(q(Ψ_t) ‖ p(Ψ_t | Ψ_{t-1})).
"""

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from chanest.bases.unfolded import GROUP
from chanest.dictionaries import KroneckerMap, LearnedKronecker
from chanest.uncertainty.estimate import of_samples
from vlista_core.checkpoint import register_model
from vlista_core.estimate import Estimate, Measurement
from vlista_core.linops import LinearMap
from vlista_core.models import ADLISTA
from vlista_core.models.augmentation import initialise
from vlista_core.models.base import matrix_parameter
from vlista_core.models.distributions import FAMILIES, DictionaryDistribution
from vlista_core.models.dlista import LikelihoodBlock
from vlista_core.models.layer import Layer
from vlista_core.models.vlista import Elbo, gaussian_log_likelihood
from vlista_core.problems import Batch, check_count
from vlista_core.prox import squared_modulus

Noise = list[list[Tensor]]
"""Standard normal draws for each layer and factor, each [batch or 1, N_i, G_i]."""
Shape = tuple[int, int]
"""(N_i, G_i) of a factor."""
Family = type[DictionaryDistribution]
_LARGEST_GAIN = 3.0
_LEAST_SHARE = 1e-3


@register_model
class KroneckerVLISTA(ADLISTA):
    """A-DLISTA whose dictionaries have a distribution for each sample, centred on what all share and moved by a network."""

    def __init__(
        self,
        dictionary: LearnedKronecker,
        *,
        layers: int = 8,
        hidden: int = 48,
        directions: int = 2,
        divergence_weight: float = 1e-3,
        early_weight: float = 0.5,
        family: str = "gaussian",
        deviation: float = 0.05,
        generator: torch.Generator | None = None,
    ) -> None:
        """dictionary: where the shared factors start; hidden, directions, deviation: of the posterior; early_weight: of each
        layer's likelihood relative to the next one's (1 is the paper's); the generator draws the weights (None: seed 0)."""
        draws = generator if generator is not None else torch.Generator().manual_seed(0)
        super().__init__(dictionary, layers=layers, early_weight=early_weight, generator=draws)
        if family not in FAMILIES:
            raise ValueError(f"family must be one of {', '.join(FAMILIES)}, got {family!r}")
        self.divergence_weight = divergence_weight
        shapes = [(int(factor.shape[0]), int(factor.shape[1])) for factor in dictionary.frozen().factors]
        kind = FAMILIES[family]
        with torch.random.fork_rng(devices=[]):
            self.posterior = KroneckerPosterior(
                shapes, layers, kind, draws, hidden=hidden, directions=directions, deviation=deviation
            )
            self.priors = nn.ModuleList(FactorPrior(shape, layers, kind, 2 * deviation) for shape in shapes)

    def plain(self) -> ADLISTA:
        """The A-DLISTA of the same size, untrained: what remains where the posterior is a point."""
        return ADLISTA(cast(LearnedKronecker, self.dictionaries[0]), layers=self.layers)

    def unroll(self, y: Tensor, phi: LinearMap, noise_var: Tensor) -> list[Layer]:
        """The layers with the mean of the posterior for a dictionary in each: no sampling."""
        return self._run(y, phi, noise_var, None)[0]

    def sampled(self, measured: Measurement, *, n_samples: int, seed: int) -> Estimate:
        """The mean of S reconstructions, each with its own dictionaries, their variance and themselves.

        The noise of a draw is a function of (seed, draw, layer) and the same for every sample of a batch, so that an estimate
        does not depend on what else is in the batch.
        """
        check_count("n_samples", n_samples, least=2)
        signals = []
        for draw in range(n_samples):
            noise = self._noise(1, torch.Generator().manual_seed(seed * 1_000_003 + draw), measured.y.device)
            last = self._run(measured.y, measured.phi, measured.noise_var, noise)[0][-1]
            signals.append(last.dictionary.apply(last.code))
        samples = torch.stack(signals)
        return Estimate(samples.mean(0), variance=of_samples(samples, None), samples=samples)

    def elbo(self, batch: Batch, generator: torch.Generator) -> Elbo:
        """The bound of each sample from one draw. δ² is, for each layer and group of like SNR, the value that fits best."""
        noise = self._noise(len(batch), generator, batch.y.device)
        layers, posteriors, drawn = self._run(batch.y, batch.phi, batch.noise_var, noise)
        likelihood, divergence = torch.zeros_like(batch.noise_var), torch.zeros_like(batch.noise_var)
        last = [torch.zeros_like(sample) for sample in drawn[0]]
        for t, layer in enumerate(layers):
            signal = layer.dictionary.apply(layer.code)
            weight = self.early_weight ** (self.layers - 1 - t)
            likelihood = likelihood + weight * grouped_log_likelihood(signal, batch)
            shared = self._shared(t).factors
            for i, (posterior, sample) in enumerate(zip(posteriors[t], drawn[t], strict=True)):
                drift = sample - shared[i]
                prior = cast(FactorPrior, self.priors[i])
                divergence = divergence + prior.divergence(t, posterior, drift, last[i], shared[i])
                last[i] = drift
        return Elbo(likelihood, divergence)

    def training_loss(self, batch: Batch, *, generator: torch.Generator) -> Tensor:
        """-ELBO of a sample, the divergence weighted as the paper does, per signal entry."""
        return -self.elbo(batch, generator).value(self.divergence_weight).mean() / batch.signal.shape[1]

    def _run(
        self, y: Tensor, phi: LinearMap, noise_var: Tensor, noise: Noise | None
    ) -> tuple[list[Layer], list[list[DictionaryDistribution]], list[list[Tensor]]]:
        """Layers, posteriors and the factors used, for each layer; noise None takes the means."""
        block = LikelihoodBlock(y, phi, noise_var, self.augmentation)
        spectrum = self._shared(0).adjoint(phi.adjoint(y))
        code = torch.zeros_like(spectrum)
        layers, posteriors, drawn = [], [], []
        for t in range(self.layers):
            found = self.posterior(t, spectrum, code, noise_var, self._shared(t).factors)
            factors = [q.mean if noise is None else q.sample(noise[t][i]) for i, q in enumerate(found)]
            *delay, tx, rx = factors
            layers.append(block.layer(KroneckerMap(rx, tx, delay[0] if delay else None)))
            code = layers[-1].code
            posteriors.append(found)
            drawn.append(factors)
        return layers, posteriors, drawn

    def _shared(self, t: int) -> KroneckerMap:
        return cast(KroneckerMap, self.dictionary(t))

    def _noise(self, batch: int, generator: torch.Generator, device: torch.device) -> Noise:
        shapes = [(batch, *factor.shape) for factor in self._shared(0).factors]

        def one(shape: tuple[int, ...]) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=self.dtype, device=generator.device).to(device)

        return [[one(shape) for shape in shapes] for _ in range(self.layers)]


class KroneckerPosterior(nn.Module):
    """q(Ψ_t | x_{t-1}, y, Φ) factor by factor, from the angular spectra of the back-projected y and of the last code.

    The spectra are those along each factor's grid, so the network fits any number of measurements.
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
            FactorPosterior(shape, family, generator, hidden, directions, deviation) for shape in shapes
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
        axes = range(1, power.ndim)
        found = [power.sum([other for other in axes if other != axis]) for axis in axes]
        tiny = torch.finfo(power.dtype).tiny
        return [torch.log(each / each.mean(1, keepdim=True).clamp_min(tiny) + _LEAST_SHARE) for each in found]


class FactorPosterior(nn.Module):
    """The distribution of one factor: the shared one with its atoms scaled, moved along a few learned directions."""

    def __init__(
        self, shape: Shape, family: Family, generator: torch.Generator, hidden: int, directions: int, deviation: float
    ) -> None:
        """As for KroneckerPosterior."""
        length, atoms = shape
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

    def __init__(self, shape: Shape, layers: int, family: Family, deviation: float) -> None:
        super().__init__()
        length, atoms = shape
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


def grouped_log_likelihood(signal: Tensor, batch: Batch) -> Tensor:
    """log N(s | ŝ, δ²I) of each sample, δ² being the mean error of its group of like SNR. [batch, n] -> [batch]."""
    order = batch.noise_var.argsort()
    likelihood = torch.zeros_like(batch.noise_var)
    for some in torch.split(order, GROUP):
        truth, mean = batch.signal[some], signal[some]
        deviation = (truth - mean).detach().abs().square().mean().sqrt()
        likelihood = likelihood.index_put((some,), gaussian_log_likelihood(truth, mean, float(deviation)))
    return likelihood
