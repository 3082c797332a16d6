"""VLISTA on Kronecker dictionaries: a posterior over the factors of every sample and layer, A-DLISTA as the likelihood.

Ψ_t ~ q(Ψ_t | x_{t-1}, y, Φ), x_t = A-DLISTA layer with Ψ_t, s_t = Ψ_t x_t. Training maximises, as in vlista_core,
    ELBO = Σ_t w_t E log N(s | s_t, δ²) - Σ_t E KL(q(Ψ_t) ‖ p(Ψ_t | Ψ_{t-1})).
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from chanest.bases.unfolded import GROUP
from chanest.dictionaries import KroneckerMap, LearnedKronecker
from chanest.networks.kronecker_posterior import FactorPrior, KroneckerPosterior
from chanest.uncertainty.estimate import of_samples
from vlista_core.checkpoint import register_model
from vlista_core.estimate import Estimate, Measurement
from vlista_core.linops import LinearMap
from vlista_core.models import ADLISTA
from vlista_core.models.distributions import FAMILIES, DictionaryDistribution
from vlista_core.models.dlista import LikelihoodBlock
from vlista_core.models.layer import Layer
from vlista_core.models.vlista import Elbo, gaussian_log_likelihood
from vlista_core.problems import Batch, check_count

Noise = list[list[Tensor]]
"""Standard normal draws for each layer and factor, each [batch or 1, N_i, G_i]."""


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
            self.priors = torch.nn.ModuleList(FactorPrior(*shape, layers, kind, 2 * deviation) for shape in shapes)

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
        return [
            [
                torch.randn(shape, generator=generator, dtype=self.dtype, device=generator.device).to(device)
                for shape in shapes
            ]
            for _ in range(self.layers)
        ]


register_model(KroneckerVLISTA)


def grouped_log_likelihood(signal: Tensor, batch: Batch) -> Tensor:
    """log N(s | ŝ, δ²I) of each sample, δ² being the mean error of its group of like SNR. [batch, n] -> [batch]."""
    order = batch.noise_var.argsort()
    likelihood = torch.zeros_like(batch.noise_var)
    for some in torch.split(order, GROUP):
        truth, mean = batch.signal[some], signal[some]
        deviation = (truth - mean).detach().abs().square().mean().sqrt()
        likelihood = likelihood.index_put((some,), gaussian_log_likelihood(truth, mean, float(deviation)))
    return likelihood
