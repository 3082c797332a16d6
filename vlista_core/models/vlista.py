"""VLISTA (the paper's Algorithm 2): a posterior over the dictionary of every sample and layer, A-DLISTA as the likelihood.

Ψ_t ~ q(Ψ_t | x_{t-1}, y, Φ), x_t = A-DLISTA layer with Ψ_t, s_t = D x_t with one learned decoder D. Training maximises
    ELBO = Σ_t E log N(s | s_t, δ²) - Σ_{t≥2} E KL(q(Ψ_t) ‖ p(Ψ_t | Ψ_{t-1})) - KL(q(Ψ_1) ‖ N(0, 1)).
Images have no true code, so the likelihood acts on the signal. The prior is not used at inference.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from vlista_core.dictionaries import LearnedMap
from vlista_core.estimate import Estimate, Measurement
from vlista_core.linops import DenseMap, LinearMap
from vlista_core.models.adlista import build_augmentation
from vlista_core.models.augmentation import Kind
from vlista_core.models.base import UnfoldedModel
from vlista_core.models.distributions import FAMILIES, DictionaryDistribution, Gaussian, standard_gaussian
from vlista_core.models.dlista import LikelihoodBlock
from vlista_core.models.posterior import Posterior, Prior
from vlista_core.problems import Batch, check_count

_CACHED = 2**20
"""Entries of the dictionaries that are drawn at a time: small enough to stay in cache; larger pieces take twice as long."""
_PIECES = 16
"""Pieces that share the noise of a draw: what is drawn once for all of them is a twentieth of the work."""


@dataclass(frozen=True)
class Elbo:
    """The two parts of the bound, each [batch]: the expected log likelihood and the sum of the divergences."""

    log_likelihood: Tensor
    divergence: Tensor

    def value(self, divergence_weight: float = 1.0) -> Tensor:
        """[batch]."""
        return self.log_likelihood - divergence_weight * self.divergence


class Run(NamedTuple):
    """What the layers did, from the first to the last: s_t [batch, n], x_T [batch, b], q(Ψ_t) and Ψ_t [batch, n, b]."""

    signals: list[Tensor]
    code: Tensor
    posteriors: list[DictionaryDistribution]
    dictionaries: list[Tensor]


class VLISTA(UnfoldedModel):
    """Sparse recovery with a distribution over dictionaries.

    `anchored=False` is the paper's posterior, whose mean comes from the network alone. `anchored=True` is ours: the mean is the
    decoder D plus the network's correction, at no further weights, so that a sample starts from what all samples share.
    """

    def __init__(
        self,
        dictionary: LearnedMap,
        measurements: int,
        *,
        layers: int = 3,
        augmentation: Kind = "paper",
        anchored: bool = False,
        noise: float = 0.1,
        divergence_weight: float = 1e-3,
        draws: int = 1,
        prior_width: int = 32,
        family: str = "gaussian",
        deviation: float = 0.01,
        step: float | None = None,
        threshold: float | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        """dictionary: where the decoder D [n, b] starts; measurements: m; noise: δ of the likelihood; draws: Monte Carlo
        samples of the ELBO; family: of the distributions, a name in FAMILIES; deviation: where the posterior's deviations
        start; step, threshold: as in ADLISTA."""
        super().__init__(layers, dictionary.dtype, measurements=measurements, length=dictionary.shape[0])
        check_count("draws", draws)
        if not noise > 0:
            raise ValueError(f"noise must be positive, got {noise}")
        if family not in FAMILIES:
            raise ValueError(f"family must be one of {', '.join(FAMILIES)}, got {family!r}")
        weights = generator if generator is not None else torch.Generator().manual_seed(0)
        self.forms_product = augmentation == "paper"
        self.anchored, self.draws = anchored, draws
        self.noise, self.divergence_weight = noise, divergence_weight
        self.decoder = dictionary
        n, atoms = dictionary.shape
        is_complex = dictionary.dtype.is_complex
        self.augmentation = build_augmentation(augmentation, layers, dictionary.dtype, step, threshold, weights)
        spread = 0.01 if anchored else n**-0.5
        kind, real = FAMILIES[family], dictionary.dtype.to_real()
        with torch.random.fork_rng(devices=[]):
            self.posterior = Posterior(
                measurements, n, atoms, kind, weights, is_complex=is_complex, deviation=deviation, spread=spread
            ).to(real)
            self.prior = Prior(prior_width, kind, weights, is_complex=is_complex).to(real)

    def forward(self, y: Tensor, phi: LinearMap, noise_var: Tensor) -> Estimate:
        """The estimate with the mean of the posterior for a dictionary in every layer: no sampling."""
        signals, code, _, _ = self.run(y, phi, noise_var, None)
        return Estimate(signals[-1], code, trajectory=tuple(signals))

    def estimate(
        self, y: Tensor, phi: LinearMap | Tensor, noise_var: Tensor | float, *, n_samples: int = 0, seed: int = 0
    ) -> Estimate:
        """With n_samples = S: the mean of S reconstructions, each with its own dictionaries, their variance and themselves.

        The noise of a draw is a function of (seed, draw, layer) and the same for every sample of a batch, so that an estimate
        does not depend on what else is in the batch. S = 0 takes the mean dictionaries and gives no variance.
        """
        if n_samples == 0:
            return super().estimate(y, phi, noise_var)
        check_count("n_samples", n_samples, least=2)
        measured = Measurement.checked(y, phi, noise_var)
        self._check_fit(measured)
        piece = max(1, _CACHED // math.prod(self.decoder.shape))
        with torch.no_grad():
            groups = [self._samples(part, piece, n_samples, seed) for part in _split(measured, _PIECES * piece)]
            samples = torch.cat(groups, dim=1)
            mean = samples.mean(0)
            variance = (samples - mean).abs().square().sum(0) / (n_samples - 1)
        return Estimate(mean, variance=variance, samples=samples)

    def _samples(self, measured: Measurement, piece: int, n_samples: int, seed: int) -> Tensor:
        """Reconstructions [draws, batch, n], `piece` samples at a time; the first posterior serves all draws, the noise all
        samples."""
        nothing = measured.y.new_zeros(1, self.decoder.shape[1])
        split = _split(measured, piece)
        parts = [(part, self._posterior(nothing.expand(len(part.y), -1), part.y, part.phi)) for part in split]
        draws = []
        for draw in range(n_samples):
            noise = self._noise(1, torch.Generator().manual_seed(seed * 1_000_003 + draw))
            signals = [self.run(part.y, part.phi, part.noise_var, noise, first)[0][-1] for part, first in parts]
            draws.append(torch.cat(signals))
        return torch.stack(draws)

    def elbo(self, batch: Batch, generator: torch.Generator) -> Elbo:
        """The bound of each sample, without a weight on the divergence; `draws` trajectories are averaged."""
        likelihood, divergence = torch.zeros_like(batch.noise_var), torch.zeros_like(batch.noise_var)
        for _ in range(self.draws):
            noise = self._noise(len(batch), generator)
            signals, _, posteriors, dictionaries = self.run(batch.y, batch.phi, batch.noise_var, noise)
            for signal in signals:
                likelihood = likelihood + gaussian_log_likelihood(batch.signal, signal, self.noise) / self.draws
            first = posteriors[0].divergence(standard_gaussian(dictionaries[0]), dictionaries[0])
            later = map(self.prior.divergence, posteriors[1:], dictionaries[1:], dictionaries)
            divergence = divergence + sum(later, first) / self.draws
        return Elbo(likelihood, divergence)

    def training_loss(self, batch: Batch, *, generator: torch.Generator) -> Tensor:
        """-ELBO of a sample, the divergence weighted as the paper does, per signal entry."""
        bound = self.elbo(batch, generator).value(self.divergence_weight)
        return -bound.mean() / batch.signal.shape[1]

    def _noise(self, batch: int, generator: torch.Generator) -> list[Tensor]:
        """Standard normal draws for each layer: [batch, n, b], on the device of the generator."""
        shape, place = (batch, *self.decoder.shape), generator.device
        return [torch.randn(shape, generator=generator, dtype=self.dtype, device=place) for _ in range(self.layers)]

    def _posterior(self, code: Tensor, y: Tensor, phi: LinearMap) -> DictionaryDistribution:
        """q(Ψ_t | x_{t-1}, y, Φ)."""
        posterior: DictionaryDistribution = self.posterior(code, y, phi)
        return posterior.shifted(self.decoder.frozen().materialize()) if self.anchored else posterior

    def run(
        self,
        y: Tensor,
        phi: LinearMap,
        noise_var: Tensor,
        noise: list[Tensor] | None,
        first: DictionaryDistribution | None = None,
    ) -> Run:
        """noise: standard normal, [batch or 1, n, b] for each layer, None takes the means; first: q(Ψ_1) where it is known."""
        decoder = self.decoder.frozen()
        block = LikelihoodBlock(y, phi, noise_var, self.augmentation)
        code = y.new_zeros(y.shape[0], decoder.shape[1])
        signals, posteriors, dictionaries = [], [], []
        for t in range(self.layers):
            posterior = first if t == 0 and first is not None else self._posterior(code, y, phi)
            psi = posterior.mean if noise is None else posterior.sample(noise[t].to(y.device))
            code = block.layer(DenseMap(psi)).code
            signals.append(decoder.apply(code))
            posteriors.append(posterior)
            dictionaries.append(psi)
        return Run(signals, code, posteriors, dictionaries)


def _split(measured: Measurement, size: int) -> list[Measurement]:
    """`size` samples at a time."""
    every = torch.arange(len(measured.y), device=measured.y.device)
    return [measured.select(index) for index in torch.split(every, size)]


def gaussian_log_likelihood(signal: Tensor, mean: Tensor, deviation: float) -> Tensor:
    """log N(signal | mean, δ²I), circular where complex. [batch, n] -> [batch]."""
    spread = torch.full_like(signal[:1, :1].real, deviation)
    return Gaussian(mean[:, None], spread[None]).log_density(signal[:, None])
