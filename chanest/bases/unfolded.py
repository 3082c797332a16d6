"""A network of vlista_core as a channel estimator: one for the whole SNR range of its scenario."""

import math
import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from chanest.bases import power
from chanest.bases.draws import PooledDraws
from chanest.bases.estimator import ChannelEstimator
from chanest.dictionaries import KroneckerMap, LearnedKronecker
from chanest.fit import Fit
from chanest.problem import ChannelProblem
from vlista_core.estimate import Estimate, Measurement
from vlista_core.linops import LinearMap, ScaledMap
from vlista_core.models.base import UnfoldedModel
from vlista_core.problems import Batch
from vlista_core.progress import listening
from vlista_core.prox import squared_modulus
from vlista_core.tensorfile import Json
from vlista_core.training import Trainer

GROUP = 16
"""Samples of like SNR over which the training loss takes one NMSE."""

_LEAST_NOISE = 1e-4
"""σ² that a network is told at the least, relative to E|h|² as y shows it: no training goes to such a noise."""
_START_SAMPLES = 64
_VALIDATION_SAMPLES = (64, 512)
_LEAST_ENERGY = 1e-30
_OVERSAMPLING = 1.5
_LEAST_ATOMS = 16
_SURVEYED = 256


class UnfoldedEstimator(ChannelEstimator):
    """Wraps `network`. It is trained on the mean, over groups of samples of like SNR, of the NMSE in dB.

    The mean squared error over all SNRs would be that of the lowest; the mean of each sample's own NMSE in dB would give up
    on the samples that fail, which a ratio of sums counts most.
    """

    needs_fit = True
    mode_by_mode = True
    loudest = 10.0
    batch_size: ClassVar[int] = 64
    learning_rate: ClassVar[float] = 4e-3
    """Of dictionaries, or of all where the network has no groups of its own."""
    scalar_rate: ClassVar[float] = 5e-3
    """Of what the network trains at a rate of its own: scalars, augmentation, posterior."""
    one_size: ClassVar[bool] = False
    """Whether Φ is scaled to the spectral norm that is usual in its scenario, and y with it. What has no norm of Φ to go by in
    its steps needs that: they are too long, and diverge, where a Φ with more pilots is larger than those it learned from."""
    figure: ClassVar[tuple[str, str]] = ("validation_nmse_db", "dB")
    """The name and the unit of `validation_figure`."""

    def __init__(self, signal_length: int, network: UnfoldedModel, norm: float | None = None) -> None:
        """norm: the spectral norm that Φ is scaled to; None takes Φ as it comes."""
        super().__init__(signal_length)
        self.network, self.forms_product, self.norm = network, network.forms_product, norm

    @classmethod
    @abstractmethod
    def network_for(cls, problem: ChannelProblem) -> UnfoldedModel:
        """The network for a problem, not trained."""

    @classmethod
    def build(cls, problem: ChannelProblem) -> Self:
        return cls(problem.signal_length, cls.network_for(problem), usual_norm(problem) if cls.one_size else None)

    def fit(self, problem: ChannelProblem, plan: Fit) -> dict[str, Json]:
        """Start from training draws in the middle of the SNR range, then train on all of it for the rest of the budget."""
        started = time.perf_counter()
        plan.report(0.0, "training channels")
        draws = PooledDraws.within(problem, plan)
        start = self.start(problem, draws, plan)
        spent = 0.0 if plan.steps is not None else min(0.8, (time.perf_counter() - started) / plan.seconds)

        def tell(share: float, loss: float, validation: float, speed: float) -> None:
            words = "training" if math.isnan(validation) else f"validation {validation:.1f} {self.figure[1]}"
            plan.report(spent + (1.0 - spent) * min(1.0, share), words)

        fewest, most = _VALIDATION_SAMPLES
        trainer = Trainer(
            batch_size=self.batch_size,
            steps=plan.steps,
            seconds=(1.0 - spent) * plan.seconds if plan.steps is None else None,
            learning_rate=self.learning_rate,
            schedule="cosine",
            warmup=0.02,
            clip_norm=1.0,
            validate_every=100,
            validation_samples=max(fewest, min(most, round(plan.size))),
            metric=self.validation_figure,
            accelerator=plan.device,
        )
        with listening(tell):
            result = trainer.fit(self, draws, seed=plan.seed)
        return {
            "steps": result.steps,
            "seconds": round(time.perf_counter() - started, 1),
            self.figure[0]: result.best_validation,
            "snr_db": list(problem.scenario.snr_db),
            "batch_size": self.batch_size,
            "learning_rates": [self.learning_rate, self.scalar_rate],
            "training_channels": len(draws.channels),
            "start": start,
        }

    def start(self, problem: ChannelProblem, draws: PooledDraws, plan: Fit) -> str:
        """Give the network a good start before it is trained; returns a few words on which."""
        middle = sum(problem.scenario.snr_db) / 2
        self.start_from(draws.sample(_START_SAMPLES, seed=plan.seed, split="train", snr_db=middle))
        return "the best of a grid on training draws"

    def start_from(self, batch: Batch) -> None:
        """Let the network start from the best of a grid on training data."""
        sized = self.sized(Measurement(batch.y, batch.phi, batch.noise_var))
        self.network.start_from(Batch(batch.signal, sized.y, sized.phi, sized.noise_var))

    def training_loss(self, batch: Batch, *, generator: torch.Generator) -> Tensor:
        """Mean of the groups' NMSE in dB, after the last layer."""
        return grouped_nmse_db(self.infer(Measurement(batch.y, batch.phi, batch.noise_var)).signal, batch).mean()

    def validation_figure(self, signal: Tensor, batch: Batch) -> float:
        """What the weights that are kept have least of on validation draws. signal: the estimate, [batch, n]."""
        return float(grouped_nmse_db(signal, batch).mean())

    def parameter_groups(self) -> list[dict[str, object]]:
        """Those of the network, at our rates."""
        own: Callable[[], list[dict[str, object]]] | None = getattr(self.network, "parameter_groups", None)
        if own is None:
            return [{"name": "network", "params": list(self.network.parameters())}]
        return [{**group, "lr": self.scalar_rate} if "lr" in group else group for group in own()]

    def infer(self, measured: Measurement) -> Estimate:
        known = self.sized(self.within_training(measured))
        out: Estimate = self.network(known.y, known.phi, known.noise_var)
        return out

    def sized(self, measured: Measurement) -> Measurement:
        """The same measurement with a Φ of the usual size: the channel stays as it is, y and the noise change with Φ."""
        if self.norm is None:
            return measured
        size = measured.phi.spectral_norm().expand(measured.y.shape[0])
        scale = torch.where(size > 0, self.norm / torch.where(size > 0, size, 1.0), 1.0)
        noise_var = scale.square() * measured.noise_var
        return Measurement(scale[:, None] * measured.y, ScaledMap(measured.phi, scale), noise_var)

    @staticmethod
    def within_training(measured: Measurement) -> Measurement:
        """The measurement with no less noise than a network may be told."""
        shown, _ = power.shown_power(measured)
        return replace(measured, noise_var=measured.noise_var.maximum(_LEAST_NOISE * shown))

    def checked(self, y: Tensor, phi: LinearMap | Tensor, noise_var: Tensor | float | None) -> Measurement:
        measured = super().checked(y, phi, noise_var)
        if y.dtype != self.network.dtype:
            raise ValueError(f"y must have the network's dtype {self.network.dtype}, got {y.dtype}")
        return measured


class BeamspaceEstimator(UnfoldedEstimator):
    """A network made for the canonical basis, which therefore sees ΦΨ and the code: Ψ is the angular grid, and stays it."""

    def __init__(self, signal_length: int, network: UnfoldedModel, grid: LearnedKronecker) -> None:
        super().__init__(signal_length, network)
        self.grid = grid.requires_grad_(False)

    @classmethod
    def build(cls, problem: ChannelProblem) -> Self:
        return cls(problem.signal_length, cls.network_for(problem), LearnedKronecker(problem.dictionary()))

    def start_from(self, batch: Batch) -> None:
        grid = self.grid.frozen()
        super().start_from(Batch(grid.adjoint(batch.signal), batch.y, batch.phi @ grid, batch.noise_var))

    def infer(self, measured: Measurement) -> Estimate:
        grid = self.grid.frozen()
        code = super().infer(Measurement(measured.y, measured.phi @ grid, measured.noise_var)).signal
        return Estimate(grid.apply(code), code)


def starting_dictionary(problem: ChannelProblem) -> LearnedKronecker:
    """The atoms of a fine angular grid at which the scenario's training channels have most power, scaled by its fourth root.

    A factor for N antennas gets N atoms, or 16 where there are as many. The scale of an atom sets its step and threshold
    relative to the others': half way between treating all angles alike and trusting the average power of each.
    """
    grid = problem.dictionary(oversampling=_OVERSAMPLING)
    code = grid.adjoint(problem.channels(_SURVEYED, seed=0, split="train"))
    power = squared_modulus(code).mean(0).reshape([factor.shape[1] for factor in grid.factors])
    chosen = []
    for axis, factor in enumerate(grid.factors):
        others = [dim for dim in range(power.ndim) if dim != axis]
        marginal = power.mean(others)
        strongest = marginal.argsort(descending=True)[: max(len(factor), _LEAST_ATOMS)].sort().values
        kept = marginal[strongest]
        chosen.append(factor[:, strongest] * (kept / kept.mean()) ** 0.25)
    *delay, tx, rx = chosen
    return LearnedKronecker(KroneckerMap(rx, tx, delay[0] if delay else None))


def usual_norm(problem: ChannelProblem) -> float:
    """The mean spectral norm of Φ over training draws."""
    return float(problem.beams(_START_SAMPLES, seed=0, split="train").spectral_norm().mean())


def grouped_nmse_db(signal: Tensor, batch: Batch) -> Tensor:
    """NMSE in dB, as a ratio of sums, of each group of samples of like SNR. signal: [batch, n] -> [groups]."""
    order = batch.noise_var.argsort()
    error = squared_modulus(signal - batch.signal).sum(1)[order]
    energy = squared_modulus(batch.signal).sum(1)[order]
    ratios = [e.sum() / p.sum() for e, p in zip(torch.split(error, GROUP), torch.split(energy, GROUP), strict=True)]
    return 10.0 * torch.log10(torch.stack(ratios) + _LEAST_ENERGY)
