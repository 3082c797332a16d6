"""VLISTA as a channel estimator: it can say how sure it is."""

from functools import partial
from typing import cast

import torch
from torch import Tensor

from chanest.bases.draws import PooledDraws
from chanest.bases.estimator import ChannelEstimator
from chanest.bases.unfolded import UnfoldedEstimator, starting_dictionary
from chanest.estimators.a_dlista_adaptive import LAYERS, AdaptiveADLISTAEstimator
from chanest.fit import Fit
from chanest.networks.kronecker_vlista import KroneckerVLISTA
from chanest.problem import ChannelProblem
from chanest.uncertainty.estimate import ChannelEstimate, of_samples
from vlista_core.linops import LinearMap
from vlista_core.problems import Batch


class VLISTAEstimator(UnfoldedEstimator):
    """VLISTA with a posterior over the factors of the Kronecker dictionary of every sample and layer."""

    name = "vlista"
    summary = "VLISTA: a posterior over each measurement's dictionary; gives a variance and samples where asked"
    half_precision = True
    begins_with = "a-dlista-adaptive"
    _begun: tuple[AdaptiveADLISTAEstimator, ...] = ()
    """What `begin_with` was given; in a tuple, so that it is no part of this module."""
    batch_size = 48
    learning_rate = 1e-3
    scalar_rate = 3e-3

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
        return words

    def _plain(self) -> AdaptiveADLISTAEstimator:
        """An `a-dlista-adaptive` of the same size, untrained."""
        return AdaptiveADLISTAEstimator(self.signal_length, cast(KroneckerVLISTA, self.network).plain())

    def training_loss(self, batch: Batch, *, generator: torch.Generator) -> Tensor:
        """-ELBO."""
        return self.network.training_loss(batch, generator=generator)

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

        A draw is a function of (seed, draw, layer). The variance is then that of the draws: how sure the network is of its
        dictionaries, far less than how far off it is. S = 0 takes the mean dictionaries and the variance of the calibration.
        """
        if n_samples == 0:
            return super().estimate(y, phi, noise_var)
        measured = self.within_training(self.checked(y, phi, noise_var))
        with torch.no_grad():
            found = cast(KroneckerVLISTA, self.network).sampled(measured, n_samples=n_samples, seed=seed)
        return ChannelEstimate(found, partial(of_samples, cast(Tensor, found.samples)))
