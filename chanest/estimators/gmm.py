"""Gaussian mixture of channels (Koller et al. 2022): the LMMSE estimates of all components, weighted by their posterior."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import torch
from torch import Tensor

from chanest.arrays import Array
from chanest.estimators.base import Fit, array_configuration, array_from
from chanest.estimators.codebook import k_means
from chanest.estimators.family import FamilyEstimator
from chanest.estimators.linear import is_toeplitz, with_noise
from chanest.estimators.mixtures import KroneckerComponents, ToeplitzComponents
from chanest.estimators.spread import gaussian
from vlista_core.checkpoint import register_model
from vlista_core.estimate import Estimate, Measurement
from vlista_core.linalg import cholesky
from vlista_core.linops import LinearMap
from vlista_core.metrics import nmse_db
from vlista_core.tensorfile import Json

if TYPE_CHECKING:
    from chanest.problem import ChannelProblem

Structure = Literal["toeplitz", "kronecker"]

COMPONENTS = 64
_LARGEST_TOEPLITZ = 512
_CHUNK_ENTRIES = 2**20
_BLOCK = 2000
_ITERATIONS = 12
_LIKELY = 4
"""Components that variances take into account."""
_SNRS_DB = (0.0, 10.0, 20.0)


@register_model
class GMM(FamilyEstimator):
    """h ~ Σ_k π_k CN(0, R_k), fitted by EM; ĥ = Σ_k p(k | y) R_kΦᴴ(ΦR_kΦᴴ + σ²I)⁻¹y. One factorisation a component.

    R_k is block Toeplitz (any covariance that uniform arrays can have, with few numbers) or, for large arrays, T_k ⊗ S_k.
    """

    name = "gmm"
    summary = "mixture of Gaussians fitted on channels, posterior-weighted LMMSE"
    needs_fit = True
    half_precision = True

    def __init__(self, rx: Array, tx: Array, *, structure: Structure, components: int = COMPONENTS) -> None:
        super().__init__(rx.ports * tx.ports)
        self.structure, self.arrays = structure, (rx, tx)
        kind = ToeplitzComponents if structure == "toeplitz" else KroneckerComponents
        self.components = kind(rx, tx, components)
        self.log_prior: Tensor
        self.register_buffer("log_prior", torch.full((components,), -math.log(components)))

    @classmethod
    def build(cls, problem: ChannelProblem) -> Self:
        if problem.subcarriers > 1:
            raise ValueError(
                f"{cls.name} is for one subcarrier so far; {problem.scenario.name} has {problem.subcarriers}"
            )
        small = problem.signal_length <= _LARGEST_TOEPLITZ and is_toeplitz(problem)
        return cls(*problem.arrays, structure="toeplitz" if small else "kronecker")

    def chunk(self, measured: Measurement) -> int:
        return _CHUNK_ENTRIES // (len(self.log_prior) * self.signal_length)

    def log_prior_weights(self) -> Tensor:
        return self.log_prior

    def infer(self, measured: Measurement) -> Estimate:
        evidence, gradients = self._evidence(measured)
        return self._mixed(evidence.log_softmax(1), gradients)

    def log_weights(self, measured: Measurement) -> Tensor:
        return self._evidence(measured)[0].log_softmax(1)

    def log_likelihood(self, measured: Measurement) -> Tensor:
        """log p(y) without the constant -m log π: [batch]."""
        return self._evidence(measured)[0].logsumexp(1)

    def infer_given(self, measured: Measurement, log_weights: Tensor) -> Estimate:
        return self._mixed(log_weights, self._evidence(measured)[1])

    def _mixed(self, log_weights: Tensor, gradients: Tensor) -> Estimate:
        """Σ_k p_k R_k g_k. gradients: [batch, components, n]."""
        signal = torch.zeros_like(gradients[:, 0])
        for k, (weight, gradient) in enumerate(zip(log_weights.exp().unbind(1), gradients.unbind(1), strict=True)):
            signal = signal + self.components.times(k, weight[:, None] * gradient)
        return Estimate(signal)

    def _evidence(self, measured: Measurement) -> tuple[Tensor, Tensor]:
        """log p(k, y) without the constant: [batch, components], and Φᴴ(ΦR_kΦᴴ + σ²I)⁻¹y: [batch, components, n]."""
        gradients, evidence = [], []
        view: Any = self.components.view(measured.phi)
        for k, log_prior in enumerate(self.log_prior):
            factor = cholesky(with_noise(self.components.seen(k, view), measured.noise_var))
            weights = torch.cholesky_solve(measured.y[..., None], factor)[..., 0]
            fit = (measured.y.conj() * weights).sum(1).real
            log_volume = 2 * factor.diagonal(dim1=1, dim2=2).real.log().sum(1)
            evidence.append(log_prior - fit - log_volume)
            gradients.append(measured.phi.adjoint(weights))
        return torch.stack(evidence, 1), torch.stack(gradients, 1)

    def spread_given(
        self, measured: Measurement, found: Estimate, log_weights: Tensor, probes: LinearMap | None
    ) -> Tensor:
        """Σ_k p_k (variance of component k + |ĥ_k - ĥ|²), over the few components that have a chance."""
        chances, likely = log_weights.topk(min(_LIKELY, len(self.log_prior)))
        signal = found.signal if probes is None else probes.apply(found.signal)
        total = torch.zeros((), device=measured.y.device)
        for chance, k in zip(chances.softmax(1).unbind(1), likely.unbind(1), strict=True):
            mean, variance = gaussian(self.components.matrices(k), measured, probes)
            total = total + chance[:, None] * (variance + (mean - signal).abs().square())
        return total

    def fit(self, problem: ChannelProblem, plan: Fit) -> dict[str, Json]:
        """EM on training channels, from k-means on their angular power; ends after the budget or a few rounds."""
        begin = time.monotonic()
        count = max(2 * len(self.log_prior), min(problem.scenario.data.train, int(100 * plan.seconds)))
        blocks = []
        for first in range(0, count, _BLOCK):
            size = min(_BLOCK, count - first)
            blocks.append(problem.channels(size, seed=plan.seed, split="train", start=first))
            plan.report(0.2 * (first + size) / count, "channels")
        channels = torch.cat(blocks)
        labels = self._first_labels(channels, plan.seed)
        done = 0
        for done in range(1, _ITERATIONS + 1):
            self._maximise(channels, labels)
            labels = self._best_components(channels)
            share = (time.monotonic() - begin) / plan.seconds
            plan.report(min(1.0, 0.2 + 0.8 * max(share, done / _ITERATIONS)), f"EM round {done}")
            if share > 1.0:
                break
        self._maximise(channels, labels)
        scores: list[Json] = []
        for snr in _SNRS_DB:
            batch = problem.sample(100, seed=plan.seed, split="validation", snr_db=snr)
            scores.append(nmse_db(self.estimate(batch.y, batch.phi, batch.noise_var).signal, batch.signal))
        facts: dict[str, Json] = {"channels": count, "rounds": done, "structure": self.structure}
        return {**facts, "validation_snr_db": list(_SNRS_DB), "validation_nmse_db": scores}

    def _first_labels(self, channels: Tensor, seed: int) -> Tensor:
        """Cells of the angular amplitudes, on a grid twice as fine as the transmit array's own."""
        rx, tx = self.arrays
        shape = (len(tx.slants) * tx.columns, tx.rows, len(rx.slants) * rx.columns, rx.rows)
        sizes = (2 * shape[0], 2 * shape[1], *shape[2:])
        amplitude = torch.cat(
            [
                torch.fft.fftn(part.reshape(-1, *shape), s=sizes, dim=(1, 2, 3, 4)).abs().flatten(1)
                for part in torch.split(channels, _BLOCK)
            ]
        )
        amplitude = amplitude / amplitude.square().sum(1, keepdim=True).sqrt()
        return k_means(amplitude, len(self.log_prior), seed)[0]

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
        best = torch.full((len(channels),), -math.inf)
        labels = torch.zeros(len(channels), dtype=torch.int64)
        for k, log_prior in enumerate(self.log_prior):
            value = torch.cat([self.components.log_density(k, part) for part in torch.split(channels, _BLOCK)])
            better = value + log_prior > best
            labels[better] = k
            best = torch.where(better, value + log_prior, best)
        return labels

    def configuration(self) -> dict[str, Json]:
        rx, tx = (array_configuration(array) for array in self.arrays)
        sizes: dict[str, Json] = {"signal_length": self.signal_length, "components": len(self.log_prior)}
        return {**sizes, "rx": rx, "tx": tx, "structure": self.structure}

    @classmethod
    def from_configuration(cls, configuration: dict[str, Json]) -> Self:
        rx, tx = array_from(configuration["rx"]), array_from(configuration["tx"])
        structure = cast(Structure, configuration["structure"])
        return cls(rx, tx, structure=structure, components=cast(int, configuration["components"]))
