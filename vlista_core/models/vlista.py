"""VLISTA (the paper's Algorithm 2): a posterior over the dictionary of every sample and layer, A-DLISTA as the likelihood.

Ψ_t ~ q(Ψ_t | x_{t-1}, y, Φ), x_t = A-DLISTA layer with Ψ_t, s_t = D x_t with one learned decoder D. Training maximises
    ELBO = Σ_t E log N(s | s_t, δ²) - Σ_{t≥2} E KL(q(Ψ_t) ‖ p(Ψ_t | Ψ_{t-1})) - KL(q(Ψ_1) ‖ N(0, 1)).
Images have no true code, so the likelihood acts on the signal. The prior is not used at inference.

The paper leaves open and we chose: all networks start as `start_from` says; the divergence from the conditional prior may be
estimated from some samples of a batch, without bias, because the prior costs more than all else. δ is a hyperparameter of the
training, as printed: it says what doubt costs. With the weight w on the divergence and deviations at their best, doubt adds
about wnδ² to the squared error of a pixel, so `doubt`, the share of the error that it may be, sets δ. What is left of the error
when training is over is another number, which `fit_spread` takes from validation draws; the intervals of an estimate have both,
the doubt and the rest.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from vlista_core.dictionaries import LearnedMap
from vlista_core.estimate import Estimate, Measurement
from vlista_core.linalg import solve_hermitian
from vlista_core.linops import DenseMap, LinearMap
from vlista_core.models.adlista import build_augmentation
from vlista_core.models.augmentation import Kind, PaperAugmentation
from vlista_core.models.base import UnfoldedModel, store_matrix
from vlista_core.models.distributions import FAMILIES, DictionaryDistribution, Gaussian, standard_gaussian
from vlista_core.models.dlista import LikelihoodBlock
from vlista_core.models.posterior import Posterior, Prior
from vlista_core.problems import Batch, check_count

_CACHED = 2**20
"""Entries of the dictionaries that are drawn at a time: small enough to stay in cache; larger pieces take twice as long."""
_FEW, _THRESHOLD = 64, 1e-3
"""Of `start_from`: samples that scale the posterior, and the threshold in units of a step's root mean square."""
_TRIED, _RATIO, _MOST_TRIES = 16, 1.25, 40
"""Of the search of the first deviation: samples, the ratio of one to the next, and how many at most."""
_ABOVE, _ABOVE_CONSTANT = 1.5, 1.25
"""The first deviation over the best one. The bound drives deviations up in time; a constant one, a single number, is slow."""
_RIDGES = (1e-4, 1e-3, 1e-2, 1e-1)
"""What `start_from` tries, in units of the mean power of a code."""
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
    """What the layers did, from the first to the last: s_t [batch, n], x_t [batch, b], q(Ψ_t) and Ψ_t [batch, n, b]."""

    signals: list[Tensor]
    codes: list[Tensor]
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
        doubt: float | None = None,
        divergence_weight: float = 1e-3,
        draws: int = 1,
        prior_width: int = 32,
        prior_share: int = 1,
        family: str = "gaussian",
        deviation: float = 0.01,
        constant: bool = False,
        step: float | None = None,
        threshold: float | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        """dictionary: where the decoder D [n, b] starts; measurements: m; noise: δ of the likelihood; doubt: the share
        of the error that doubt may be, from which `start_from` sets δ and the first deviation; draws: Monte Carlo samples of
        the ELBO; prior_share: one of so many samples of a batch estimates the divergence from the conditional prior;
        family: of the distributions, a name in FAMILIES; deviation: where the posterior's deviations start; constant: one
        learned deviation for all, the control; step, threshold: as in ADLISTA."""
        super().__init__(layers, dictionary.dtype, measurements=measurements, length=dictionary.shape[0])
        check_count("draws", draws)
        check_count("prior_share", prior_share)
        if not noise > 0:
            raise ValueError(f"noise must be positive, got {noise}")
        if family not in FAMILIES:
            raise ValueError(f"family must be one of {', '.join(FAMILIES)}, got {family!r}")
        weights = generator if generator is not None else torch.Generator().manual_seed(0)
        self.forms_product = augmentation == "paper"
        self.anchored, self.draws, self.prior_share, self.deviation = anchored, draws, prior_share, deviation
        self.divergence_weight = divergence_weight
        self.doubt, self.constant = doubt, constant
        self.noise: Tensor
        self.register_buffer("noise", torch.tensor(float(noise)))
        self.spread: Tensor
        self.register_buffer("spread", torch.tensor(float(noise)))
        self.decoder = dictionary
        n, atoms = dictionary.shape
        self.start_samples = 4 * atoms
        is_complex = dictionary.dtype.is_complex
        self.augmentation = build_augmentation(augmentation, layers, dictionary.dtype, step, threshold, weights)
        spread = 0.01 if anchored else n**-0.5
        kind, real = FAMILIES[family], dictionary.dtype.to_real()
        with torch.random.fork_rng(devices=[]):
            self.posterior = Posterior(
                measurements, n, atoms, kind, weights, is_complex=is_complex, deviation=deviation, spread=spread,
                constant=constant,
            ).to(real)  # fmt: skip
            self.prior = Prior(prior_width, kind, weights, is_complex=is_complex).to(real)

    @torch.no_grad()
    def start_from(self, batch: Batch) -> None:
        """The paper's VLISTA starts with a posterior as `Posterior.start_from` has it, a step of 1/(2‖ΦΨ‖²), next to no
        threshold, and the decoder that fits sampled codes of the batch best: by least squares, with the ridge that suits the
        last quarter of the batch. With `doubt`, δ and the deviations are set too. Ours, the anchored one, stays as built."""
        if self.anchored:
            return
        generator = torch.Generator().manual_seed(0)
        some = batch.select(torch.arange(min(len(batch), _FEW), device=batch.y.device))
        self.posterior.start_from(some.y, some.phi, self.deviation, generator)
        psi = DenseMap(self._posterior(batch.y.new_zeros(len(some), self.decoder.shape[1]), some.y, some.phi).mean)
        step = 0.5 / float((some.phi @ psi).spectral_norm().square().mean())
        gradient = psi.adjoint(some.phi.adjoint(some.y))
        self.posterior.follow(step * gradient)
        if isinstance(self.augmentation, PaperAugmentation):
            self.augmentation.start(step, _THRESHOLD * step * float(gradient.abs().square().mean().sqrt()))
        every, codes = torch.arange(len(batch), device=batch.y.device), []
        for index in torch.split(every, max(1, _PIECES * _CACHED // math.prod(self.decoder.shape))):
            part = batch.select(index)
            codes.append(self.run(part.y, part.phi, part.noise_var, self.draw_noise(len(part), generator)).codes[-1])
        (entries,) = self.decoder.parameters()
        store_matrix(entries, _ridge(torch.cat(codes), batch.signal))
        if self.doubt is not None:
            error = (self.decoder.frozen().apply(torch.cat(codes)) - batch.signal).abs().square().mean()
            self.noise.copy_((self.doubt * error / (self.divergence_weight * self.decoder.shape[0])).sqrt())
            self._start_deviation(batch.select(torch.arange(min(len(batch), _TRIED), device=batch.y.device)), generator)

    def _start_deviation(self, batch: Batch, generator: torch.Generator) -> None:
        """Let the deviations start a little above those with the best bound, with N(0, 1) for every prior.

        Descent moves all of them alike by the same weights that set them apart: on the way up from a start below the best these
        fade, and deviations become alike; on the way down they grow (docs/notes/what-vlista-learns-on-images.md).
        """
        draws = [self.draw_noise(len(batch), generator)]
        draws.append([-each for each in draws[0]])

        def bound(deviation: float) -> float:
            self.posterior.move_deviation(self.deviation, deviation)
            runs = [self.run(batch.y, batch.phi, batch.noise_var, noise) for noise in draws]
            likelihood = sum(float(each.mean()) for run in runs for each in self.log_likelihoods(run, batch.signal))
            prior = standard_gaussian(runs[0].dictionaries[0])
            parts = zip(runs[0].posteriors, runs[0].dictionaries, strict=True)
            divergence = sum(float(q.divergence(prior, psi).mean()) for q, psi in parts)
            self.posterior.move_deviation(deviation, self.deviation)
            return likelihood / len(runs) - self.divergence_weight * divergence

        best = self.deviation
        reached = bound(best)
        for ratio in (_RATIO, 1.0 / _RATIO):
            for _ in range(_MOST_TRIES):
                if (found := bound(best * ratio)) <= reached:
                    break
                best, reached = best * ratio, found
        self.posterior.move_deviation(self.deviation, best * (_ABOVE_CONSTANT if self.constant else _ABOVE))

    @torch.no_grad()
    def fit_spread(self, batch: Batch, *, n_samples: int = 16) -> None:
        """Set `spread`, the root mean square of the error that the variance of the reconstructions does not explain."""
        out = self.estimate(batch.y, batch.phi, batch.noise_var, n_samples=n_samples)
        assert out.samples is not None
        rest = (out.signal - batch.signal).abs().square().mean() - out.samples.var(0).mean()
        self.spread.copy_(rest.clamp_min(0.0).sqrt())

    def forward(self, y: Tensor, phi: LinearMap, noise_var: Tensor) -> Estimate:
        """The estimate with the mean of the posterior for a dictionary in every layer: no sampling."""
        run = self.run(y, phi, noise_var, None)
        return Estimate(run.signals[-1], run.codes[-1], trajectory=tuple(run.signals))

    def estimate(
        self, y: Tensor, phi: LinearMap | Tensor, noise_var: Tensor | float, *, n_samples: int = 0, seed: int = 0
    ) -> Estimate:
        """With n_samples = S: the mean of S reconstructions, each with its own dictionaries, and themselves.

        S = 1 is the paper's Algorithm 2; S = 0 takes the mean dictionaries. From S = 2 on there is a variance, that of the
        model's predictions: of the reconstructions plus the square of `spread`. The noise of a draw is a function of (seed,
        draw, layer) and the same for every sample of a batch: an estimate does not depend on what else is in the batch.
        """
        if n_samples == 0:
            return super().estimate(y, phi, noise_var)
        check_count("n_samples", n_samples)
        measured = Measurement.checked(y, phi, noise_var)
        self._check_fit(measured)
        piece = max(1, _CACHED // math.prod(self.decoder.shape))
        with torch.no_grad():
            groups = [self._samples(part, piece, n_samples, seed) for part in _split(measured, _PIECES * piece)]
            samples = torch.cat(groups, dim=1)
            mean = samples.mean(0)
            variance = samples.var(0) + self.spread.square() if n_samples > 1 else None
        return Estimate(mean, variance=variance, samples=samples)

    def _samples(self, measured: Measurement, piece: int, n_samples: int, seed: int) -> Tensor:
        """Reconstructions [draws, batch, n], `piece` samples at a time; the first posterior serves all draws, the noise all
        samples."""
        nothing = measured.y.new_zeros(1, self.decoder.shape[1])
        split = _split(measured, piece)
        parts = [(part, self._posterior(nothing.expand(len(part.y), -1), part.y, part.phi)) for part in split]
        draws = []
        for draw in range(n_samples):
            noise = self.draw_noise(1, torch.Generator().manual_seed(seed * 1_000_003 + draw))
            signals = [self.run(part.y, part.phi, part.noise_var, noise, first).signals[-1] for part, first in parts]
            draws.append(torch.cat(signals))
        return torch.stack(draws)

    def elbo(self, batch: Batch, generator: torch.Generator) -> Elbo:
        """The bound of each sample, without a weight on the divergence; `draws` trajectories are averaged.

        Every second draw has the noise of the one before with its sign turned. What a draw adds to the error, and is linear in
        the noise, cancels: with one draw it hides from the deviations what they do to the likelihood.
        """
        likelihood, divergence = torch.zeros_like(batch.noise_var), torch.zeros_like(batch.noise_var)
        noise: list[Tensor] = []
        for draw in range(self.draws):
            noise = [-each for each in noise] if draw % 2 else self.draw_noise(len(batch), generator)
            run = self.run(batch.y, batch.phi, batch.noise_var, noise)
            likelihood = likelihood + sum(self.log_likelihoods(run, batch.signal)) / self.draws
            if draw % 2 == 0:
                divergence = divergence + sum(self.divergences(run, generator)) / math.ceil(self.draws / 2)
        return Elbo(likelihood, divergence)

    def log_likelihoods(self, run: Run, signal: Tensor) -> list[Tensor]:
        """log N(s | s_t, δ²) of each layer: [batch] each. signal: [batch, n]."""
        return [gaussian_log_likelihood(signal, mean, self.noise) for mean in run.signals]

    def divergences(self, run: Run, generator: torch.Generator | None = None) -> list[Tensor]:
        """KL of the posterior of each layer from its prior: [batch] each.

        With a `prior_share` and a generator, those from the second layer on are estimated from one of so many samples, which
        the generator chooses: their mean is right on average, single samples are not.
        """
        first = run.posteriors[0].divergence(standard_gaussian(run.dictionaries[0]), run.dictionaries[0])
        size, share = len(first), 1 if generator is None else self.prior_share
        count = size // share
        if size % share:
            count += int(
                torch.rand((), generator=generator, device=None if generator is None else generator.device)
                < size % share / share
            )
        later = [first.new_zeros(size) for _ in run.posteriors[1:]]
        if count:
            some = slice(0, count)
            posteriors = [posterior.select(some) for posterior in run.posteriors]
            dictionaries = [dictionary[some] for dictionary in run.dictionaries]
            found = map(self.prior.divergence, posteriors[1:], dictionaries[1:], dictionaries)
            later = [each if count == size else (each.sum() * share / size).expand(size) for each in found]
        return [first, *later]

    def training_loss(self, batch: Batch, *, generator: torch.Generator) -> Tensor:
        """-ELBO of a sample, the divergence weighted as the paper does.

        It is not divided by n: Adam would not mind, but its weight decay would then outweigh the gradients of the posterior.
        """
        return -self.elbo(batch, generator).value(self.divergence_weight).mean()

    def draw_noise(self, batch: int, generator: torch.Generator) -> list[Tensor]:
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
        run = Run([], [], [], [])
        for t in range(self.layers):
            posterior = first if t == 0 and first is not None else self._posterior(code, y, phi)
            psi = posterior.mean if noise is None else posterior.sample(noise[t].to(y.device))
            code = block.layer(DenseMap(psi)).code
            run.signals.append(decoder.apply(code))
            run.codes.append(code)
            run.posteriors.append(posterior)
            run.dictionaries.append(psi)
        return run


def _split(measured: Measurement, size: int) -> list[Measurement]:
    """`size` samples at a time."""
    every = torch.arange(len(measured.y), device=measured.y.device)
    return [measured.select(index) for index in torch.split(every, size)]


def gaussian_log_likelihood(signal: Tensor, mean: Tensor, deviation: Tensor | float) -> Tensor:
    """log N(signal | mean, δ²I), circular where complex. [batch, n], δ a scalar -> [batch]."""
    spread = signal.real.new_ones(1, 1, 1) * deviation
    return Gaussian(mean[:, None], spread).log_density(signal[:, None])


def _ridge(codes: Tensor, signals: Tensor) -> Tensor:
    """D with DX ≈ S by least squares, the ridge chosen on the last quarter. [samples, b], [samples, n] -> [n, b]."""
    precise = torch.complex128 if codes.is_complex() else torch.float64
    x, s = codes.to(precise), signals.to(precise)
    cut = len(x) - len(x) // 4
    power = float(x.abs().square().mean())
    identity = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)

    def fit(count: int, ridge: float) -> Tensor:
        gram = x[:count].mH @ x[:count] + ridge * power * count * identity
        return solve_hermitian(gram[None], (x[:count].mH @ s[:count])[None])[0].mT

    def error(ridge: float) -> float:
        return float((x[cut:] @ fit(cut, ridge).mT - s[cut:]).abs().square().sum())

    return fit(len(x), min(_RIDGES, key=error)).to(codes.dtype)
