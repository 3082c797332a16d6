"""Gaussian mixture of channels (Koller et al. 2022): the LMMSE estimates of all components, weighted by their posterior."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, Self

import torch
from torch import Tensor, nn

from chanest.arrays import Array
from chanest.bases.family import FamilyEstimator
from chanest.bases.site import learn_site, validated
from chanest.covariances.families import FLOOR, KroneckerComponents, LagComponents, angular_cells
from chanest.covariances.lags import BeamView, LagCovariance, has_lags
from chanest.fit import Clock, Fit
from chanest.problem import ChannelProblem
from chanest.recordings import Recordings
from vlista_core.estimate import Estimate, Measurement
from vlista_core.gaussian import Posterior, condition
from vlista_core.linops import LinearMap
from vlista_core.tensorfile import Json

Structure = Literal["toeplitz", "kronecker"]

COMPONENTS = 64
_LARGEST_TOEPLITZ = 512
_CHUNK_ENTRIES = 2**20
_BLOCK = 2000
_ITERATIONS = 12
_VALIDATED = 100
_LIKELY = 4
"""Components that variances take into account."""


class GMM(FamilyEstimator):
    """h ~ Σ_k π_k CN(0, R_k), fitted by EM; ĥ = Σ_k p(k | y) R_kΦᴴ(ΦR_kΦᴴ + σ²I)⁻¹y. One factorisation per component.

    R_k is block Toeplitz (any covariance that uniform arrays can have, with few numbers) or, for large arrays, T_k ⊗ S_k.
    """

    name = "gmm"
    summary = "mixture of Gaussians fitted on channels, posterior-weighted LMMSE"
    exported_as = ("pt2",)
    needs_fit = True
    learns_from_pilots = True
    half_precision = True
    narrowband = True
    mode_by_mode = True

    def __init__(self, rx: Array, tx: Array, *, structure: Structure, components: int = COMPONENTS) -> None:
        super().__init__(rx.ports * tx.ports)
        self.structure, self.arrays = structure, (rx, tx)
        kind: type[LagComponents | KroneckerComponents]
        kind = LagComponents if structure == "toeplitz" else KroneckerComponents
        self.components = kind(rx, tx, components)
        self.log_prior: Tensor = nn.Buffer(torch.full((components,), -math.log(components)))

    @classmethod
    def build(cls, problem: ChannelProblem) -> Self:
        small = problem.signal_length <= _LARGEST_TOEPLITZ and has_lags(problem)
        return cls(*problem.arrays, structure="toeplitz" if small else "kronecker")

    def chunk(self, measured: Measurement) -> int:
        return _CHUNK_ENTRIES // (len(self.log_prior) * self.signal_length)

    def log_prior_weights(self) -> Tensor:
        return self.log_prior

    def infer(self, measured: Measurement) -> Estimate:
        found = [(posterior.log_evidence, posterior.mean) for posterior in self._posteriors(measured)]
        evidence, means = (torch.stack(each, 1) for each in zip(*found, strict=True))
        return _mixed((self.log_prior + evidence).softmax(1), means)

    def infer_given(self, measured: Measurement, log_weights: Tensor) -> Estimate:
        return _mixed(log_weights.exp(), torch.stack([each.mean for each in self._posteriors(measured)], 1))

    def log_weights(self, measured: Measurement) -> Tensor:
        return self._log_joint(measured).log_softmax(1)

    def log_likelihood(self, measured: Measurement) -> Tensor:
        """log p(y) without the constant -m log π: [batch]."""
        return self._log_joint(measured).logsumexp(1)

    def _log_joint(self, measured: Measurement) -> Tensor:
        """log p(k, y) without the constant: [batch, components]."""
        return self.log_prior + torch.stack([each.log_evidence for each in self._posteriors(measured)], 1)

    def _posteriors(self, measured: Measurement) -> Iterator[Posterior]:
        """The channel given y and each component, one after another."""
        members = self.components.covariances()
        if isinstance(members, LagCovariance):
            members = replace(members, view=BeamView(members.layout, measured.phi))
        for member in members.members():
            yield condition(member, measured)

    def spread_given(
        self, measured: Measurement, found: Estimate, log_weights: Tensor, probes: LinearMap | None
    ) -> Tensor:
        """Σ_k p_k (variance of component k + |ĥ_k - ĥ|²), over the few components that have a chance."""
        chances, likely = log_weights.topk(min(_LIKELY, len(self.log_prior)))
        signal = found.signal if probes is None else probes.apply(found.signal)
        members, total = self.components.covariances(), torch.zeros((), device=measured.y.device)
        for chance, k in zip(chances.softmax(1).unbind(1), likely.unbind(1), strict=True):
            component = condition(members.select(k), measured, probes)
            total = total + chance[:, None] * (component.variance + (component.mean - signal).abs().square())
        return total

    def fit(self, problem: ChannelProblem, plan: Fit) -> dict[str, Json]:
        """EM on training channels, from k-means on their angular power; ends after the budget or a few rounds."""
        clock = Clock(plan)
        count = max(2 * len(self.log_prior), min(problem.scenario.data.train, int(100 * plan.size)))
        blocks = plan.telling(0.0, 0.2).blocks(count, _BLOCK, "channels")
        channels = torch.cat(
            [problem.channels(len(block), seed=plan.seed, split="train", start=block.start) for block in blocks]
        )
        labels = angular_cells(channels, *self.arrays, len(self.log_prior), plan.seed)
        done = 0
        for done in range(1, _ITERATIONS + 1):
            self._maximise(channels, labels)
            labels = self._best_components(channels)
            clock.tick()
            plan.report(min(1.0, 0.2 + 0.8 * max(clock.share(), done / _ITERATIONS)), f"EM round {done}")
            if clock.share() >= 1.0:
                break
        self._maximise(channels, labels)
        facts: dict[str, Json] = {"channels": count, "rounds": done, "structure": self.structure}
        return {**facts, **self.validation(problem, plan, _VALIDATED)}

    def fit_from_pilots(self, recordings: Recordings, plan: Fit) -> dict[str, Json]:
        """EM on recordings: their classes by evidence, the covariances of classes by the recordings they have."""
        if not isinstance(self.components, LagComponents):
            raise ValueError(
                f"gmm learns channels of at most {_LARGEST_TOEPLITZ} entries from pilots, got {recordings.signal_length}"
            )
        site = learn_site(recordings, len(self.log_prior), plan)
        self.components.tables, self.log_prior = site.family.tables(), site.family.log_prior
        self.reconfigure(components=len(site.family))
        self.components.tables[:, self.components.layout.own, self.components.layout.shape[1] // 2] += FLOOR / 2
        facts: dict[str, Json] = {**site.facts, "structure": self.structure}
        return {**facts, **validated(recordings, self.log_likelihood, plan, _VALIDATED)}

    def _maximise(self, channels: Tensor, labels: Tensor) -> None:
        """Weights and covariances from the channels of each component; one without channels keeps the ensemble's."""
        size = len(self.log_prior)
        count = torch.bincount(labels, minlength=size).float()
        self.log_prior = ((count + 1.0) / (count + 1.0).sum()).log()
        for k in range(size):
            own = channels[labels == k]
            self.components.estimate(k, own if len(own) > 1 else channels[:_BLOCK])

    def _best_components(self, channels: Tensor) -> Tensor:
        """The most probable component of every channel: [channels]. In this many dimensions the others have no share."""
        blocks, members = torch.split(channels, _BLOCK), range(len(self.log_prior))
        density = [torch.cat([self.components.log_density(k, part) for part in blocks]) for k in members]
        return (self.log_prior[:, None] + torch.stack(density)).argmax(0)


def _mixed(weights: Tensor, means: Tensor) -> Estimate:
    """Σ_k p_k ĥ_k. weights: [batch, components], means: [batch, components, n]."""
    return Estimate((weights.to(means.dtype)[:, None, :] @ means)[:, 0])
