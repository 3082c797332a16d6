"""VLISTA on Kronecker dictionaries: a posterior over the factors of every sample and layer, A-DLISTA as the likelihood.

Ψ_t ~ q(Ψ_t | x_{t-1}, y, Φ), x_t = A-DLISTA layer with Ψ_t, s_t = Ψ_t x_t. Training maximises
    ELBO = Σ_t E log N(s | s_t, δ_t²) - Σ_{t≥2} E KL(q(Ψ_t) ‖ p(Ψ_t | Ψ_{t-1})) - KL(q(Ψ_1) ‖ N(0, 1)),
the divergences weighted by 1e-3.

The paper's: this bound with all layers alike, the standard normal first prior, a learned conditional prior, a posterior that
sees x_{t-1}, y and Φ, A-DLISTA layers, the weight of the divergences.

Ours: Ψ_t is a Kronecker product and q is over its factors; their means are what all samples share, scaled and moved by a
network that sees powers along the angular grids; the conditional prior is a Markov chain with one learned number per layer and
atom; the likelihood acts on s, the channel, as there is no true code; the augmentation is the adaptive one; s_t = Ψ_t x_t has
no decoder of its own; δ_t² is learned as a function of the sample and the antennas: `likelihood="learned"`, a named extension
("constant" is one number).

Entries of a factor with N antennas are counted in units of N^(-1/2), in which those of a steering vector have modulus one: in
that unit the first prior is standard normal, and every deviation here is in it.
"""

import math
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from chanest.dictionaries import KroneckerMap, LearnedKronecker
from chanest.networks.kronecker_posterior import (
    Deviations,
    FactorPrior,
    KroneckerPosterior,
    Likelihood,
    LikelihoodVariance,
)
from vlista_core.checkpoint import register_model
from vlista_core.estimate import Estimate, Measurement
from vlista_core.linops import LinearMap
from vlista_core.models import ADLISTA
from vlista_core.models.distributions import FAMILIES, DictionaryDistribution, Gaussian, standard_gaussian
from vlista_core.models.dlista import LikelihoodBlock
from vlista_core.models.layer import Layer
from vlista_core.models.vlista import Elbo
from vlista_core.problems import Batch, check_count
from vlista_core.prox import squared_modulus

Noise = list[list[Tensor]]
"""Standard normal draws for each layer and factor, each [batch or 1, N_i, G_i]."""


class Run(NamedTuple):
    """What the layers did, from the first to the last; `drawn` are the factors in units of N_i^(-1/2), [batch, N_i, G_i]."""

    layers: list[Layer]
    posteriors: list[list[DictionaryDistribution]]
    drawn: list[list[Tensor]]
    hidden: list[Tensor]


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
        family: str = "gaussian",
        deviation: float = 0.05,
        deviations: Deviations = "network",
        likelihood: Likelihood = "learned",
        generator: torch.Generator | None = None,
    ) -> None:
        """dictionary: where the shared factors start; hidden, directions: of the posterior; deviation: where its deviations
        start; deviations="constant" is a control; likelihood: where δ² comes from; the generator draws the weights (None:
        seed 0)."""
        draws = generator if generator is not None else torch.Generator().manual_seed(0)
        super().__init__(dictionary, layers=layers, generator=draws)
        for name, value, known in (
            ("family", family, tuple(FAMILIES)),
            ("deviations", deviations, ("network", "constant")),
            ("likelihood", likelihood, ("learned", "constant")),
        ):
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
        self.divergence_weight, self.deviation = divergence_weight, deviation
        shapes = [(int(factor.shape[0]), int(factor.shape[1])) for factor in dictionary.frozen().factors]
        with torch.random.fork_rng(devices=[]):
            self.posterior = KroneckerPosterior(
                shapes, layers, FAMILIES[family], draws,
                hidden=hidden, directions=directions, deviation=deviation, constant=deviations == "constant",
            )  # fmt: skip
            self.priors = nn.ModuleList(FactorPrior(shape, layers, 2 * deviation) for shape in shapes)
            rows = [length for length, _ in shapes]
            self.likelihood = LikelihoodVariance(rows, layers, hidden, draws, constant=likelihood == "constant")

    def plain(self) -> ADLISTA:
        """The A-DLISTA of the same size, untrained: what remains where the posterior is a point."""
        return ADLISTA(cast(LearnedKronecker, self.dictionaries[0]), layers=self.layers)

    def unroll(self, y: Tensor, phi: LinearMap, noise_var: Tensor) -> list[Layer]:
        """The layers with the mean of the posterior for a dictionary in each: no sampling."""
        return self.run(y, phi, noise_var, None).layers

    def forward(self, y: Tensor, phi: LinearMap, noise_var: Tensor, *, every_layer: bool = False) -> Estimate:
        """The estimate with the mean dictionaries; its variance is δ² of the last layer."""
        run = self.run(y, phi, noise_var, None)
        wanted = run.layers if every_layer else run.layers[-1:]
        trajectory = tuple(layer.dictionary.apply(layer.code) for layer in wanted)
        variance = self.likelihood(self.layers - 1, run.hidden[-1], trajectory[-1], Measurement(y, phi, noise_var))
        return Estimate(trajectory[-1], run.layers[-1].code, variance, trajectory=trajectory if every_layer else None)

    def draws(self, measured: Measurement, *, n_samples: int, seed: int) -> tuple[Tensor, Tensor]:
        """S reconstructions, each with its own dictionaries, [draws, batch, n], and the mean of their δ², [batch, n].

        The noise of a draw is a function of (seed, draw, layer) and the same for every sample of a batch, so that an estimate
        does not depend on what else is in the batch.
        """
        check_count("n_samples", n_samples, least=2)
        signals, variances = [], []
        for draw in range(n_samples):
            noise = self.noise(1, torch.Generator().manual_seed(seed * 1_000_003 + draw), measured.y.device)
            run = self.run(measured.y, measured.phi, measured.noise_var, noise)
            last = run.layers[-1]
            signals.append(last.dictionary.apply(last.code))
            variances.append(self.likelihood(self.layers - 1, run.hidden[-1], signals[-1], measured))
        return torch.stack(signals), torch.stack(variances).mean(0)

    def elbo(self, batch: Batch, generator: torch.Generator) -> Elbo:
        """The bound of each sample from one draw, without a weight on the divergence."""
        noise = self.noise(len(batch), generator, batch.y.device)
        run = self.run(batch.y, batch.phi, batch.noise_var, noise)
        measured = Measurement(batch.y, batch.phi, batch.noise_var)
        likelihood, divergence = torch.zeros_like(batch.noise_var), torch.zeros_like(batch.noise_var)
        for t, layer in enumerate(run.layers):
            signal = layer.dictionary.apply(layer.code)
            deviation = self.likelihood(t, run.hidden[t], signal, measured).sqrt()
            likelihood = likelihood + Gaussian(signal[:, None], deviation[:, None]).log_density(batch.signal[:, None])
            for i, (posterior, sample) in enumerate(zip(run.posteriors[t], run.drawn[t], strict=True)):
                if t == 0:
                    prior = standard_gaussian(sample)
                else:
                    now, before = (self._shared(place)[i] for place in (t, t - 1))
                    prior = self.priors[i](t, now, run.drawn[t - 1][i] - before)
                divergence = divergence + posterior.divergence(prior, sample)
        return Elbo(likelihood, divergence)

    def training_loss(self, batch: Batch, *, generator: torch.Generator) -> Tensor:
        """-ELBO of a sample, the divergence weighted as the paper does, per signal entry."""
        return -self.elbo(batch, generator).value(self.divergence_weight).mean() / batch.signal.shape[1]

    @torch.no_grad()
    def settle(self, batch: Batch) -> None:
        """Before training: the shared factors in the unit of the first prior, which changes no estimate as the augmentation is
        blind to it, and a learned δ² near the errors of each layer on training draws of all SNRs."""
        sizes = [factor.abs().square().mean().sqrt() for factor in self._shared(0)]
        for learned in cast("list[LearnedKronecker]", list(self.dictionaries)):
            weights = [
                each for each in (learned.delay_weight, learned.tx_weight, learned.rx_weight) if each is not None
            ]
            for weight, size in zip(weights, sizes, strict=True):
                weight.div_(size)
        measured = Measurement(batch.y, batch.phi, batch.noise_var)
        for t, layer in enumerate(self.unroll(batch.y, batch.phi, batch.noise_var)):
            self.likelihood.settle(t, layer.dictionary.apply(layer.code), measured, batch.signal)

    def run(self, y: Tensor, phi: LinearMap, noise_var: Tensor, noise: Noise | None) -> Run:
        """The layers one after another; noise None takes the means of the posteriors."""
        block = LikelihoodBlock(y, phi, noise_var, self.augmentation)
        first = cast(KroneckerMap, self.dictionary(0))
        with torch.no_grad():
            columns = (phi @ first).column_norms().square().expand(y.shape[0], -1)
        spectrum = squared_modulus(first.adjoint(phi.adjoint(y)))
        power = torch.zeros_like(spectrum)
        run = Run([], [], [], [])
        for t in range(self.layers):
            shared = self._shared(t)
            posteriors, hidden = self.posterior(t, (spectrum, power, columns), noise_var, shared)
            drawn = [q.mean if noise is None else q.sample(noise[t][i]) for i, q in enumerate(posteriors)]
            *delay, tx, rx = (factor / math.sqrt(factor.shape[-2]) for factor in drawn)
            layer = block.layer(KroneckerMap(rx, tx, delay[0] if delay else None))
            power = squared_modulus(layer.code)
            for kept, new in zip(run, (layer, posteriors, drawn, hidden), strict=True):
                cast(list[object], kept).append(new)
        return run

    def noise(self, batch: int, generator: torch.Generator, device: torch.device) -> Noise:
        """Standard normal draws for `run`."""
        shapes = [(batch, *factor.shape) for factor in self._shared(0)]

        def one(shape: tuple[int, ...]) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=self.dtype, device=generator.device).to(device)

        return [[one(shape) for shape in shapes] for _ in range(self.layers)]

    def _shared(self, t: int) -> list[Tensor]:
        """The factors that all samples share in layer t, in units of N_i^(-1/2), each [N_i, G_i]."""
        factors = cast(KroneckerMap, self.dictionary(t)).factors
        return [math.sqrt(len(factor)) * factor for factor in factors]
