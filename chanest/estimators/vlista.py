"""VLISTA as a channel estimator: it can say how sure it is."""

from typing import cast

import torch
from torch import Tensor

from chanest.bases import power
from chanest.bases.draws import PooledDraws
from chanest.bases.estimator import ChannelEstimator
from chanest.bases.unfolded import UnfoldedEstimator, starting_dictionary
from chanest.estimators.a_dlista_adaptive import LAYERS, AdaptiveADLISTAEstimator
from chanest.fit import Fit
from chanest.networks.kronecker_vlista import KroneckerVLISTA
from chanest.problem import ChannelProblem
from chanest.uncertainty.estimate import ChannelEstimate, independent, of_samples
from vlista_core.estimate import Estimate
from vlista_core.linops import LinearMap
from vlista_core.problems import Batch

_SETTLED = 256
"""Training draws from which δ² gets its start."""


class VLISTAEstimator(UnfoldedEstimator):
    """VLISTA with a posterior over the factors of the Kronecker dictionary of every sample and layer."""

    name = "vlista"
    summary = "VLISTA: a posterior over each measurement's dictionary; gives a variance and samples where asked"
    exported_as = ("pt2",)
    half_precision = True
    begins_with = "a-dlista-adaptive"
    _begun: tuple[AdaptiveADLISTAEstimator, ...] = ()
    """What `begin_with` was given; in a tuple, so that it is no part of this module."""
    batch_size = 48
    learning_rate = 1e-3
    scalar_rate = 3e-3
    figure = ("validation_loss", "nats an entry")

    @classmethod
    def network_for(cls, problem: ChannelProblem) -> KroneckerVLISTA:
        return KroneckerVLISTA(starting_dictionary(problem), layers=LAYERS)

    def begin_with(self, other: ChannelEstimator) -> None:
        if isinstance(other, AdaptiveADLISTAEstimator) and other.configuration() == self._plain().configuration():
            self._begun = (other,)

    def start(self, problem: ChannelProblem, draws: PooledDraws, plan: Fit) -> str:
        """From `a-dlista-adaptive`: the one that was given where it fits, else one trained with half of the budget."""
        if self._begun:
            plain, words = self._begun[0], f"weights of {self.begins_with}"
        else:
            plain, words = self._plain(), f"{self.begins_with} with half of the budget"
            plain.fit(problem, plan.part(0.5))
        self.network.load_state_dict(plain.network.state_dict(), strict=False)
        cast(KroneckerVLISTA, self.network).settle(draws.sample(_SETTLED, seed=plan.seed, split="train"))
        return words

    def _plain(self) -> AdaptiveADLISTAEstimator:
        """An `a-dlista-adaptive` of the same size, untrained."""
        return AdaptiveADLISTAEstimator(self.signal_length, cast(KroneckerVLISTA, self.network).plain())

    def training_loss(self, batch: Batch, *, generator: torch.Generator) -> Tensor:
        """-ELBO."""
        return self.network.training_loss(batch, generator=generator)

    @torch.no_grad()
    def validation_figure(self, signal: Tensor, batch: Batch) -> float:
        """-ELBO of draws that are the same in every validation: the NMSE knows nothing of deviations and variances."""
        return float(self.training_loss(batch, generator=torch.Generator(batch.y.device).manual_seed(0)))

    def estimate(
        self,
        y: Tensor,
        phi: LinearMap | Tensor,
        noise_var: Tensor | float | None = None,
        *,
        n_samples: int = 0,
        seed: int = 0,
    ) -> ChannelEstimate:
        """With n_samples = S: mean, variance and samples of S reconstructions, each with dictionaries of its own.

        A draw is a function of (seed, draw, layer). The variance is then the network's own, that of the draws, how sure it is
        of its dictionaries, plus the likelihood's δ². S = 0 takes the mean dictionaries; its own variance is δ², and
        `variance` that of the calibration where there is one.
        """
        if n_samples == 0:
            return super().estimate(y, phi, noise_var)
        measured = self.checked(y, phi, noise_var)
        with torch.no_grad():
            unit = self.unit(measured)
            seen = self.within_training(measured if unit is None else power.in_unit(measured, unit))
            samples, variance = cast(KroneckerVLISTA, self.network).draws(seen, n_samples=n_samples, seed=seed)
        if unit is not None:
            samples, variance = unit[:, None] * samples, unit.square()[:, None] * variance

        def spread(probes: LinearMap | None) -> Tensor:
            return of_samples(samples, probes) + independent(variance, probes)

        return ChannelEstimate(Estimate(samples.mean(0), samples=samples), spread)
