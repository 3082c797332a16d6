"""The network of `atom-lmmse`, the power of every atom for each sample, and how it learns.

What a channel's atoms can have for powers is a family: profiles p_1 … p_K, k-means of those that training channels have. The
network sees how much of y falls on each profile and answers with a mixture of them, so that the whole angular spectrum has a
say in the step and the shrinkage of every single atom.

Training channels come with their rays, so the powers p* of the atoms given the clusters are known. The network first
learns their mean given y, which needs no gradient through a solve: E[p*/p + log p] is least for p = E[p* | y]. Then dictionary,
profiles and network learn from the NMSE of the estimate itself.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from chanest.bases.chunks import in_chunks
from chanest.bases.draws import PooledDraws
from chanest.bases.unfolded import grouped_nmse_db
from chanest.channels.rays import Rays
from chanest.channels.source import ChannelSource
from chanest.covariances.directions import DirectionCovariance, Directions, SeenDirections, distinct, ray_phases
from chanest.covariances.families import k_means
from chanest.covariances.rays import Means, cluster_products
from chanest.fit import Clock, Fit
from chanest.networks.weighing import WeighingNetwork, descend, log_powers
from chanest.problem import ChannelProblem
from vlista_core.estimate import Measurement
from vlista_core.gaussian import condition
from vlista_core.problems import Batch
from vlista_core.tensorfile import Json

if TYPE_CHECKING:
    from chanest.estimators.atom_lmmse import AtomLMMSE

SPECTRA, SCALARS = 2, 2
"""Angular spectra that the network sees, and numbers of the sample besides."""
_SHARPNESS = 40.0
"""A ray counts for the atoms near it, as exp(40·cos²) of the angle between their steering vectors."""
_FLOOR = 0.01, 0.006
"""What an atom has at least: parts of its own mean power and of that of all."""
_LOWEST, _LEVEL = -13.0, 0.051
"""Of the logarithms of powers in a file, from 2·10⁻⁶ to one."""
_BATCH = 256
_SURVEYED, _RAYS = 1000, 60_000
_POOLING, _COLLECTING, _PREDICTING = 0.1, 0.25, 0.45
"""Shares of the budget after which there are enough channels, enough draws, and the powers are predicted well enough."""
_MOST_CHANNELS, _MOST_DRAWS = 2**27, 2**30
"""Entries of the powers of channels, and of the spectra of draws, that are kept."""
_RATES = 1e-3, 3e-4
_STANDARD, _VALIDATED = 1024, 300


class PowerNetwork(WeighingNetwork):
    """Weights of the profiles from the powers that y has on each of them; powers are the mixture by these weights."""

    def __init__(self, atoms: int, profiles: int, hidden: int, generator: torch.Generator) -> None:
        super().__init__(SPECTRA * profiles + SCALARS, hidden, profiles, generator)
        self.free: nn.Parameter | None = None
        """The profiles as logarithms while they are learned; afterwards they are rounded to `levels`."""
        self.levels: Tensor = nn.Buffer(torch.zeros(profiles, atoms, dtype=torch.uint8))

    def forward(self, spectra: list[Tensor], scalars: list[Tensor]) -> Tensor:
        """spectra: powers of the atoms, [batch, atoms] each; scalars: positive, [batch] each -> powers, [batch, atoms]."""
        profiles = self.profiles()
        hidden = self.standardised(_features(profiles, spectra, scalars))
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
    def look_at(self, spectra: list[Tensor], scalars: list[Tensor]) -> None:
        """Standardise the inputs by samples of them."""
        self.standardise(_features(self.profiles(), spectra, scalars))

    @torch.no_grad()
    def settle(self) -> None:
        """Round the learned profiles to what a file holds: a byte per atom, steps of 5 % of its power."""
        if self.free is not None:
            self.levels = ((self.free - _LOWEST) / _LEVEL).round().clamp(0, 255).to(torch.uint8)
            self.free = None


def floor(mean: Tensor) -> Tensor:
    """The least power of each atom, from the mean powers: [atoms]."""
    own, common = _FLOOR
    return own * mean + common * mean.mean()


def atom_powers(source: ChannelSource, rays: Rays, directions: Directions) -> Tensor:
    """The powers of the atoms given the clusters of each sample: [batch, atoms]. A ray counts for the atoms near it."""

    def means(atoms: Tensor) -> Means:
        def near(steering: Tensor) -> Tensor:
            cosine = (steering @ atoms.conj()).abs() / len(atoms)
            return (_SHARPNESS * cosine.square()).softmax(3).mean(2)

        return near

    return cluster_products(source, rays, means(directions.rx), means(directions.tx)).mT.flatten(1)


def _features(profiles: Tensor, spectra: list[Tensor], scalars: list[Tensor]) -> Tensor:
    """Logarithms of the power on each profile, and of the scalars: [batch, SPECTRA·K + SCALARS]."""
    shares = (profiles / profiles.sum(1, keepdim=True)).mT
    return log_powers([*(spectrum @ shares for spectrum in spectra), *(scalar[:, None] for scalar in scalars)])


def fit_powers(estimator: "AtomLMMSE", problem: ChannelProblem, plan: Fit) -> dict[str, Json]:
    """Fit within the budget; leaves `estimator` trained and says what was done."""
    training = PowerTraining(estimator, problem, plan)
    predicted = training.run(training.prediction_loss, until=_PREDICTING, rate=_RATES[0], words="powers")
    steps = training.run(training.estimation_loss, until=1.0, rate=_RATES[1], words="training")
    estimator.network.settle()
    estimator.eval()
    facts: dict[str, Json] = {
        "channels": len(training.powers),
        "draws": len(training.channels),
        "steps": [predicted, steps],
        "batch_size": _BATCH,
        "rates": list(_RATES),
    }
    return {**facts, **estimator.validation(problem, plan, _VALIDATED)}


class PowerTraining:
    """The stages of a fit and what they share: the clock, the pool of channels and the powers of their atoms.

    A new one has chosen the directions, drawn the pool, started the network and collected what it sees of draws.
    """

    def __init__(self, estimator: "AtomLMMSE", problem: ChannelProblem, plan: Fit) -> None:
        self.estimator, self.problem, self.plan = estimator, problem, plan
        self.clock, self.drawn = Clock(plan), 0
        self.generator = torch.Generator().manual_seed(plan.seed)
        self._choose_directions()
        self._pool()
        self._collect()

    @torch.no_grad()
    def _choose_directions(self) -> None:
        """k-means of the directions of training rays, each counting by its power."""
        estimator, source = self.estimator, self.problem.source
        factors = source.factors(self.problem.rays(range(_SURVEYED), seed=self.plan.seed, split="train"))
        power = factors.gains.abs().square().sum((1, 2)).flatten()
        some = torch.multinomial(power.double(), _RAYS, replacement=True, generator=self.generator)
        ends = zip(ray_phases(factors, estimator.layout), (estimator.departing, estimator.arriving), strict=True)
        for phases, parameter in ends:
            found, _ = distinct(phases[some], len(parameter), self.plan.seed)
            parameter.copy_(found[torch.arange(len(parameter)) % len(found)])
        self.clock.report("directions")

    @torch.no_grad()
    def _pool(self) -> None:
        """Training channels after the surveyed ones, the powers p* of their atoms, and where the network starts."""
        estimator, source = self.estimator, self.problem.source
        fixed = Directions.of(estimator.departing.detach(), estimator.arriving.detach(), estimator.layout)
        self.draws, self.powers = PooledDraws.with_rays(
            self.problem,
            self.clock,
            lambda rays: atom_powers(source, rays, fixed).half(),
            first=_SURVEYED,
            until=_POOLING,
            most=_MOST_CHANNELS // estimator.mean_powers.numel(),
        )
        known = self.powers[:20_000].float()
        self.floor = floor(known.mean(0))
        estimator.mean_powers.copy_((known.mean(0) + self.floor).log())
        estimator.network.start(known, self.plan.seed)

    @torch.no_grad()
    def _collect(self) -> None:
        """What the network sees of draws: spectra [draws, 2, atoms], scalars [draws, 2]; and which channels they have."""

        def seen(number: int) -> tuple[Tensor, Tensor, Tensor]:
            index, batch = self._drawn()
            noisy = self._noisy(batch)
            spectra = torch.stack(self._looked(noisy), 1).bfloat16()
            return spectra, torch.stack(self.estimator.scalars(noisy), 1), index

        most = _MOST_DRAWS // (2 * self.estimator.mean_powers.numel())
        self.spectra, self.scalars, self.channels = self.clock.gather(seen, "draws", until=_COLLECTING, most=most)
        self.estimator.network.look_at(*self._inputs(torch.arange(min(_STANDARD, len(self.channels)))))

    def _inputs(self, some: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """The arguments of the network for some of the draws."""
        return list(self.spectra[some].float().unbind(1)), list(self.scalars[some].unbind(1))

    def prediction_loss(self) -> Tensor:
        """p*/p - log(p*/p) - 1 on some of the draws that were collected, the mean over atoms and samples."""
        some = torch.randint(len(self.channels), (_BATCH,), generator=self.generator)
        predicted: Tensor = self.estimator.network(*self._inputs(some))
        ratio = (self.powers[self.channels[some]].float() + self.floor) / predicted
        return (ratio - ratio.log() - 1.0).mean()

    def estimation_loss(self) -> Tensor:
        """`error` of fresh draws from the pool."""
        return self.error(self._drawn()[1])

    def error(self, batch: Batch) -> Tensor:
        """NMSE in dB of the estimate of a batch, the mean over groups of like SNR.

        Where u solves C(p)u = y, so does u + C⁻¹(y - C(p)u), which has the right gradient with C⁻¹ and the u in it held fixed:
        products with Φ and Ψ alone are differentiated, no factorisation.
        """
        estimator, noisy = self.estimator, self._noisy(batch)
        psi, phi = estimator.directions, noisy.phi
        powers = estimator.powers(noisy, *self._looked(noisy))
        with torch.no_grad():
            posterior = condition(DirectionCovariance(powers, estimator.directions), noisy)
            held = posterior.whitened
        again = phi.apply(psi.apply(powers * psi.adjoint(phi.adjoint(held)))) + noisy.noise_var[:, None] * held
        whitened = held + posterior.solve(noisy.y - again)
        signal = psi.apply(estimator.code(DirectionCovariance(powers, psi), phi.adjoint(whitened)))
        return grouped_nmse_db(signal, batch).mean()

    def run(self, loss: Callable[[], Tensor], *, until: float, rate: float, words: str) -> int:
        """Adam on all parameters until that share of the budget is gone; returns the number of steps."""
        optimizer = torch.optim.Adam(self.estimator.parameters(), rate)
        return descend(optimizer, loss, self.clock, words, until=until, longest_gradient=1.0)

    def _drawn(self) -> tuple[Tensor, Batch]:
        """The next draws from the pool, and which channels they have."""
        self.drawn += _BATCH
        return self.draws.pairs(_BATCH, seed=self.plan.seed, start=self.drawn)

    @torch.no_grad()
    def _looked(self, noisy: Measurement) -> list[Tensor]:
        """What the first layer sees, in chunks small enough to stay in cache."""
        estimator = self.estimator
        chunks = in_chunks(noisy, estimator.chunk(noisy))
        parts = [estimator.look(some, SeenDirections(estimator.directions, some.phi)) for some, _ in chunks]
        return [torch.cat(spectra) for spectra in zip(*parts, strict=True)]

    def _noisy(self, batch: Batch) -> Measurement:
        return self.estimator.with_misfit(Measurement(batch.y, batch.phi, batch.noise_var))
