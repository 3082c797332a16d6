"""How `atom-lmmse` learns: a dictionary from rays, the network from the atoms' powers, then all of it from the error it makes.

Training channels come with their rays, so the powers p* of the atoms given the clusters are known. The network first
learns their mean given y, which needs no gradient through a solve: E[p*/p + log p] is least for p = E[p* | y]. Then dictionary,
profiles and network learn from the NMSE of the estimate itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from chanest.bases.draws import BEAMS, PooledDraws
from chanest.bases.estimator import in_chunks
from chanest.bases.unfolded import grouped_nmse_db
from chanest.covariances import DirectionCovariance, Directions
from chanest.covariances.directions import SeenDirections, distinct, ray_phases
from chanest.fit import Clock, Fit
from chanest.networks.powers import atom_powers, floor
from vlista_core.estimate import Measurement
from vlista_core.gaussian import condition
from vlista_core.problems import Batch
from vlista_core.tensorfile import Json

if TYPE_CHECKING:
    from chanest.estimators.atom_lmmse import AtomLMMSE
    from chanest.problem import ChannelProblem

_BLOCK, _BATCH = 500, 256
_SURVEYED, _RAYS = 1000, 60_000
_POOLING, _COLLECTING, _PREDICTING = 0.1, 0.25, 0.45
"""Shares of the budget after which there are enough channels, enough draws, and the powers are predicted well enough."""
_MOST_CHANNELS, _MOST_DRAWS = 2**27, 2**30
"""Entries of the powers of channels, and of the spectra of draws, that are kept."""
_RATES = 1e-3, 3e-4
_STANDARD, _VALIDATED = 1024, 300
_SNRS_DB = (0.0, 10.0, 20.0)


def fit_powers(estimator: AtomLMMSE, problem: ChannelProblem, plan: Fit) -> dict[str, Json]:
    """Fit within the budget; leaves `estimator` trained and says what was done."""
    training = PowerTraining(estimator, problem, plan)
    training.choose_directions()
    training.pool()
    training.collect()
    predicted = training.run(training.prediction_loss, until=_PREDICTING, rate=_RATES[0], words="powers")
    steps = training.run(training.estimation_loss, until=1.0, rate=_RATES[1], words="training")
    estimator.network.settle()
    estimator.eval()
    scores = estimator.validation_nmse_db(problem, _SNRS_DB, _VALIDATED, plan.seed)
    facts: dict[str, Json] = {
        "channels": len(training.powers),
        "draws": len(training.seen.channels),
        "steps": [predicted, steps],
        "batch_size": _BATCH,
    }
    return {**facts, "rates": list(_RATES), "validation_snr_db": list(_SNRS_DB), "validation_nmse_db": scores}


class _Seen(NamedTuple):
    """Draws as the network sees them: spectra [draws, 2, atoms], scalars [draws, 2], and which channels they have."""

    spectra: Tensor
    scalars: Tensor
    channels: Tensor

    def inputs(self, some: Tensor | slice) -> tuple[list[Tensor], list[Tensor]]:
        """The arguments of the network for some of them."""
        return list(self.spectra[some].float().unbind(1)), list(self.scalars[some].unbind(1))


class PowerTraining:
    """The stages of a fit and what they share: the clock, the pool of channels and the powers of their atoms."""

    draws: PooledDraws
    powers: Tensor
    """p* of every channel of the pool, in half precision: [channels, atoms]."""
    floor: Tensor
    seen: _Seen

    def __init__(self, estimator: AtomLMMSE, problem: ChannelProblem, plan: Fit) -> None:
        self.estimator, self.problem, self.plan = estimator, problem, plan
        self.clock, self.drawn = Clock(plan), 0
        self.generator = torch.Generator().manual_seed(plan.seed)

    @torch.no_grad()
    def choose_directions(self) -> None:
        """k-means of the directions of training rays, each counting by its power."""
        estimator, source = self.estimator, self.problem.source
        factors = source.factors(source.rays(range(_SURVEYED), seed=self.plan.seed, split="train"))
        power = factors.gains.abs().square().sum((1, 2)).flatten()
        some = torch.multinomial(power.double(), _RAYS, replacement=True, generator=self.generator)
        ends = zip(ray_phases(factors, estimator.layout), (estimator.departing, estimator.arriving), strict=True)
        for phases, parameter in ends:
            found, _ = distinct(phases[some], len(parameter), self.plan.seed)
            parameter.copy_(found[torch.arange(len(parameter)) % len(found)])
        self.clock.report("directions")

    @torch.no_grad()
    def pool(self) -> None:
        """Training channels after the surveyed ones, the powers of their atoms, and where the network starts."""
        estimator, plan, source = self.estimator, self.plan, self.problem.source
        fixed = Directions(estimator.departing.detach(), estimator.arriving.detach(), estimator.layout)
        channels: list[Tensor] = []
        powers: list[Tensor] = []
        most = _MOST_CHANNELS // estimator.mean_powers.numel()
        while not channels or (self.clock.share() < _POOLING and _BLOCK * len(channels) < most):
            first = _SURVEYED + _BLOCK * len(channels)
            signal, rays = source.sample(_BLOCK, seed=plan.seed, split="train", start=first)
            channels.append(signal.mT.reshape(_BLOCK, -1))
            powers.append(atom_powers(source, rays, fixed).half())
            self.clock.tick()
            self.clock.report("channels")
        beams = self.problem.sample(BEAMS, seed=plan.seed, split="train").phi
        self.draws, self.powers = PooledDraws(self.problem, torch.cat(channels), beams), torch.cat(powers)
        known = self.powers[:20_000].float()
        self.floor = floor(known.mean(0))
        estimator.mean_powers.copy_((known.mean(0) + self.floor).log())
        estimator.network.start(known, plan.seed)

    @torch.no_grad()
    def collect(self) -> None:
        """What the network sees of draws from the pool, and which channels they have."""
        estimator = self.estimator
        spectra: list[Tensor] = []
        rest: list[Tensor] = []
        channels: list[Tensor] = []
        most = _MOST_DRAWS // (2 * estimator.mean_powers.numel())
        while not channels or (self.clock.share() < _COLLECTING and _BATCH * len(channels) < most):
            index, batch = self._drawn()
            noisy = self._noisy(batch)
            spectra.append(torch.stack(self._looked(noisy), 1).bfloat16())
            rest.append(torch.stack(estimator.scalars(noisy), 1))
            channels.append(index)
            self.clock.tick()
            self.clock.report("draws")
        self.seen = _Seen(torch.cat(spectra), torch.cat(rest), torch.cat(channels))
        estimator.network.standardise(*self.seen.inputs(slice(0, _STANDARD)))

    def prediction_loss(self) -> Tensor:
        """p*/p - log(p*/p) - 1 on some of the draws that were collected, the mean over atoms and samples."""
        some = torch.randint(len(self.seen.channels), (_BATCH,), generator=self.generator)
        predicted: Tensor = self.estimator.network(*self.seen.inputs(some))
        ratio = (self.powers[self.seen.channels[some]].float() + self.floor) / predicted
        return (ratio - ratio.log() - 1.0).mean()

    def estimation_loss(self) -> Tensor:
        """NMSE in dB, the mean over groups of like SNR.

        Where u solves C(p)u = y, so does u + C⁻¹(y - C(p)u), which has the right gradient with C⁻¹ and the u in it held fixed:
        products with Φ and Ψ alone are differentiated, no factorisation.
        """
        return self.error(self._drawn()[1])

    def error(self, batch: Batch) -> Tensor:
        """NMSE in dB of the estimate of a batch, the mean over groups of like SNR; see `estimation_loss` for its gradient."""
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

    def run(self, loss: Callable[[], Tensor], *, until: float, rate: float, words: str) -> int:
        """Adam with a cosine rate until that share of the budget is gone, a step at least; returns the number of steps."""
        optimizer = torch.optim.Adam(self.estimator.parameters(), rate)
        begin, steps = self.clock.share(), 0
        while steps == 0 or self.clock.share() < until:
            gone = min(1.0, (self.clock.share() - begin) / max(until - begin, 1e-9))
            optimizer.param_groups[0]["lr"] = (
                rate * (0.5 + 0.5 * math.cos(math.pi * gone)) * min(1.0, (steps + 1) / 100)
            )
            value = loss()
            optimizer.zero_grad()
            torch.autograd.backward(value)
            torch.nn.utils.clip_grad_norm_(self.estimator.parameters(), 1.0)
            optimizer.step()
            steps += 1
            self.clock.tick()
            if steps % 20 == 0:
                self.clock.report(f"{words} {float(value.detach()):.2f}")
        return steps
