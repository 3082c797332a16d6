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
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from chanest.dictionaries import KroneckerMap, LearnedKronecker
from vlista_core.checkpoint import register_model
from vlista_core.estimate import Estimate, Measurement
from vlista_core.linalg import solve_hermitian
from vlista_core.linops import LinearMap
from vlista_core.models import ADLISTA
from vlista_core.models.augmentation import initialise
from vlista_core.models.base import matrix_parameter
from vlista_core.models.distributions import FAMILIES, DictionaryDistribution, Gaussian, standard_gaussian
from vlista_core.models.dlista import LikelihoodBlock
from vlista_core.models.layer import Layer
from vlista_core.models.vlista import Elbo
from vlista_core.problems import Batch, check_count
from vlista_core.prox import squared_modulus

Noise = list[list[Tensor]]
"""Standard normal draws for each layer and factor, each [batch or 1, N_i, G_i]."""
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
            columns = (phi @ first).column_norms().square().expand(len(y), -1)
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
        power = power.reshape(len(power), *self.atoms)
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
            raw = self.raw(hidden).reshape(len(hidden), self.family.RAW_MAPS, -1) + self.slopes[t] @ own
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
            shape = [len(part), *(1 for _ in self.rows)]
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
