"""The paper's recipe, as far as it is printed, and what we chose where it is silent.

Printed: mean squared error on s; Adam, 1e-2 for the reconstruction, 1e-3 for the augmentation, 1e-3 for all of VLISTA; weight
decay 5e-4; batches of 128; a tenth of the rates whenever the loss stops improving; a Φ of its own for every sample; three
layers; the paper's augmentation; the mean of VLISTA's posterior from its network alone; its ELBO with a weight of 1e-3 on the
divergences; dictionaries drawn from the posterior at inference.

Ours: the mean of the squared error is over images, not over their pixels too. Adam does not mind the factor n, but it adds the
weight decay to the gradients before it scales them: divided by n they are smaller than the decay, which then decides alone, and
DLISTA ends below LISTA (docs/notes/what-a-dlista-adapts-to.md). LISTA, of whose training nothing is printed, learns at 1e-3:
at 1e-2 its free matrices are noise after a few steps. Dictionaries start as Gaussian matrices with atoms of unit norm on
average, steps and thresholds at the best of a grid on training images (`start_from`); fresh draws for ever; a plateau is
`PATIENCE` validations without a new best, and training ends at the one after the second drop, or at a cap that the row names;
the weights with the best validation loss are kept. DLISTA's steps and thresholds count as reconstruction; A-DLISTA starts at
theirs, averaged over the layers (`start_beside`). VLISTA: one draw of the dictionaries per sample and step, δ such that doubt
may be a tenth of the squared error with which training starts, the conditional prior evaluated for one sample in sixteen. The
printed parameters come to a width of 32 of that prior; ours is 8: evaluated rarely, a wide one teaches the posterior little but
noise; evaluated often, it takes most of the time.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from vlista_core.data.image_problem import ImageProblem
from vlista_core.dictionaries import LearnedDictionary
from vlista_core.estimate import Estimate, Estimator
from vlista_core.experiments.recipes import Metric, Recipe, started
from vlista_core.linops import LinearMap
from vlista_core.models import ADLISTA, DLISTA, LISTA, VLISTA, UnfoldedModel
from vlista_core.models.augmentation import PaperAugmentation
from vlista_core.models.distributions import Gaussian
from vlista_core.problems import Batch
from vlista_core.study import Row
from vlista_core.training import Trainer, TrainingResult

LAYERS = 3
RECONSTRUCTION, AUGMENTATION, VARIATIONAL, WEIGHT_DECAY = 1e-2, 1e-3, 1e-3, 5e-4
FREE = 1e-3
"""Rate of LISTA."""
PATIENCE, DROPS = 4, 2
PRIOR_SHARE = 16
DOUBT = 0.1
"""Of VLISTA: the share of the error that its doubt may be, which sets δ."""
CAPS = {"lista": (2000, 800, 400), "dlista": (2000, 1000, 400), "a-dlista": (2000, 400, 80), "vlista": (80, 20, 10)}
"""Most steps, by network: at half size, at full size, and there with more than `_MANY` measurements."""
_MANY = 100
_SELDOM, _OFTEN, _FEW = 50, 10, 100
"""Steps between validations, so that plateaus of all networks are as long; the second where steps are at most the third."""
NETWORKS = (*CAPS, "vlista-constant")
PRIOR_WIDTH = 8
"""Of VLISTA's conditional prior."""
_ENTRIES = 2**20
"""Of the dictionaries of a slice of VLISTA's batches: a few megabytes, which stay in cache."""
_TWO = 2
"""Samples that it takes to vary."""
_SPREAD_IMAGES = 64
"""Validation images from which VLISTA takes what its doubt does not explain."""
_HALF = 400
"""Pixels up to which an image counts as one of half size."""


def recipe_for(name: str, problem: ImageProblem) -> "PaperRecipe":
    """The paper's recipe for one of its networks."""
    name, large = name.removesuffix("-constant"), problem.signal_length > _HALF
    cap = CAPS[name][large + (large and problem.measurements > _MANY)]
    if name != "vlista":
        return PaperRecipe(cap, validate_every=_SELDOM if cap > _FEW else _OFTEN)
    dictionaries = 128 * problem.signal_length**2
    slices = min(128, 2 ** math.ceil(math.log2(max(1.0, dictionaries / _ENTRIES))))
    return PaperRecipe(cap, slices=slices, validate_every=_OFTEN, validation_samples=64)


@dataclass(frozen=True)
class PaperRecipe(Recipe[ImageProblem]):
    """The paper's recipe with at most `steps` steps."""

    rate: float = RECONSTRUCTION
    sharing: int = 1
    validate_every: int = _SELDOM
    until_plateau: bool = True
    """End at the plateau after the last drop; otherwise all steps are done."""

    def trainer(self, problem: ImageProblem, *, warmup: float = 0.0, metric: Metric | None = None) -> Trainer:
        return Trainer(
            steps=self.steps, batch_size=self.batch_size, schedule="plateau", patience=PATIENCE, drops=DROPS,
            until_plateau=self.until_plateau, learning_rate=RECONSTRUCTION, weight_decay=WEIGHT_DECAY, metric=metric,
            validation_samples=self.validation_samples, validate_every=self.validate_every, slices=self.slices,
            accelerator=str(problem.device),
        )  # fmt: skip

    def told(self, problem: ImageProblem) -> Row:
        return {
            "name": "paper", "sharing": self.sharing, "validate_every": self.validate_every,
            "validation_samples": self.validation_samples, "patience": PATIENCE, "drops": DROPS, "cap": self.steps,
            **({"prior_width": PRIOR_WIDTH, "doubt": DOUBT} if self.slices > 1 else {}),
        }  # fmt: skip


class PaperTraining(nn.Module, Estimator):
    """A network with its own loss, which is the paper's, and the paper's rates."""

    def __init__(self, network: UnfoldedModel) -> None:
        super().__init__()
        self.network = network

    def estimate(self, y: Tensor, phi: LinearMap | Tensor, noise_var: Tensor | float) -> Estimate:
        return self.network.estimate(y, phi, noise_var)

    def training_loss(self, batch: Batch, *, generator: torch.Generator) -> Tensor:
        """VLISTA's is that of an image; the squared error of the others is divided by n, which is taken back here."""
        loss = self.network.training_loss(batch, generator=generator)
        return loss if isinstance(self.network, VLISTA) else loss * batch.signal.shape[1]

    def parameter_groups(self) -> list[dict[str, object]]:
        if isinstance(self.network, VLISTA):
            return [{"name": "all", "params": list(self.network.parameters()), "lr": VARIATIONAL}]
        if isinstance(self.network, LISTA):
            return [{"name": "all", "params": list(self.network.parameters()), "lr": FREE}]
        named = list(self.network.named_parameters())
        apart = [value for name, value in named if name.startswith("augmentation.")]
        rest = [value for name, value in named if not name.startswith("augmentation.")]
        groups: list[dict[str, object]] = [
            {"name": "reconstruction", "params": rest, "lr": RECONSTRUCTION},
            {"name": "augmentation", "params": apart, "lr": AUGMENTATION},
        ]
        return [group for group in groups if group["params"]]


class NegativeElbo:
    """-ELBO of validation images with the same draws every time: what `Trainer` minimises for VLISTA.

    `details`, as a row keeps them: since they were last read, the mean log likelihood and divergence of each layer, and the
    `Deviations` of the posterior.
    """

    def __init__(self, network: VLISTA) -> None:
        self.network = network
        self._parts: list[tuple[int, dict[str, Tensor]]] = []
        self._deviations = Deviations(network.layers)

    @torch.no_grad()
    def __call__(self, signal: Tensor, batch: Batch) -> float:
        network = self.network
        noise = network.draw_noise(len(batch), torch.Generator(batch.y.device).manual_seed(0))
        run = network.run(batch.y, batch.phi, batch.noise_var, noise)
        likelihoods = torch.stack([each.mean() for each in network.log_likelihoods(run, batch.signal)])
        divergences = torch.stack([each.mean() for each in network.divergences(run)])
        self._parts.append((len(batch), {"log_likelihood": likelihoods, "divergence": divergences}))
        self._deviations.add(run.posteriors)
        return -float(likelihoods.sum() - network.divergence_weight * divergences.sum())

    @property
    def details(self) -> dict[str, list[float]]:
        parts, self._parts = self._parts, []
        found, self._deviations = self._deviations.summary(), Deviations(self.network.layers)
        total = sum(count for count, _ in parts)
        for key in parts[0][1] if parts else ():
            found[key] = torch.stack([count * each[key] for count, each in parts]).sum(0) / total
        return {key: [float(f"{number:.5g}") for number in value.tolist()] for key, value in found.items()}


class Deviations:
    """Of Gaussian posteriors, layer by layer: how large their deviations are, and how much they vary.

    Samples may come one by one: what is kept are sums over samples, of each entry.
    """

    def __init__(self, layers: int) -> None:
        self._count = 0
        self._sums: list[Tensor] = [torch.zeros(())] * layers
        self._squares: list[Tensor] = [torch.zeros(())] * layers
        self._over_entries = torch.zeros(layers)

    def add(self, posteriors: Sequence[object]) -> None:
        """One posterior for each layer, of as many samples each."""
        for layer, posterior in enumerate(posteriors):
            assert isinstance(posterior, Gaussian)
            values = posterior.deviation.expand(posterior.centre.shape).cpu().double()
            self._sums[layer] = self._sums[layer] + values.sum(0)
            self._squares[layer] = self._squares[layer] + values.square().sum(0)
            self._over_entries[layer] += float((values.std((1, 2)) / values.mean((1, 2))).sum())
            count = len(values)
        self._count += count

    def summary(self) -> dict[str, Tensor]:
        """[layers] each: the mean deviation, and its coefficients of variation; empty where there were not two samples.

        Over samples: of an entry, then averaged over the entries. Over entries: of a sample, then averaged over the samples.
        """
        count = self._count
        if count < _TWO:
            return {}
        means = [each / count for each in self._sums]
        spreads = [
            ((square - count * mean.square()).clamp_min(0.0) / (count - 1)).sqrt()
            for square, mean in zip(self._squares, means, strict=True)
        ]
        varied = [(spread / mean).mean() for spread, mean in zip(spreads, means, strict=True)]
        return {
            "deviation": torch.stack([mean.mean() for mean in means]),
            "over_samples": torch.stack(varied),
            "over_entries": self._over_entries / count,
        }


def build(name: str, problem: ImageProblem, seed: int) -> UnfoldedModel:
    """The paper's network called `name`, started and untrained."""
    n, m, generator = problem.signal_length, problem.measurements, torch.Generator().manual_seed(seed)
    fixed = None if problem.fixed_phi_seed is None else m
    psi = LearnedDictionary.random(n, n, generator=generator)
    model: UnfoldedModel
    match name:
        case "lista":
            model = LISTA(n, n, layers=LAYERS, measurements=fixed)
        case "dlista":
            model = DLISTA(psi, layers=LAYERS)
        case "a-dlista":
            adaptive = ADLISTA(psi, layers=LAYERS, augmentation="paper", generator=generator)
            return start_beside(adaptive, started(DLISTA(psi, layers=LAYERS), problem, seed))
        case "vlista" | "vlista-constant":
            model = VLISTA(
                psi, m, layers=LAYERS, doubt=DOUBT, prior_width=PRIOR_WIDTH,
                prior_share=PRIOR_SHARE, constant=name == "vlista-constant", generator=generator,
            )  # fmt: skip
        case _:
            raise ValueError(f"the paper's recipe has no network {name!r}")
    return started(model, problem, seed)


@torch.no_grad()
def start_beside(network: ADLISTA, plain: DLISTA) -> ADLISTA:
    """Start the paper's augmentation at the steps and thresholds of `plain`, their geometric means over its layers.

    The grid of `ADLISTA.start_from` asks what the untrained network does best; with random dictionaries that is next to nothing
    anywhere, and it takes thresholds so small that learning starts slowly (docs/notes/what-a-dlista-adapts-to.md).
    """
    augmentation = network.augmentation
    assert isinstance(augmentation, PaperAugmentation)
    steps, thresholds = zip(*plain.scalars(torch.zeros(1)), strict=True)
    augmentation.start(*(float(torch.stack(values).log().mean().exp()) for values in (steps, thresholds)))
    return network


def train(
    network: UnfoldedModel, problem: ImageProblem, recipe: Recipe[ImageProblem], seed: int, resume: Path | None = None
) -> TrainingResult:
    """Train by the recipe; the weights with the best validation loss are kept."""
    metric = NegativeElbo(network) if isinstance(network, VLISTA) else None
    trainer = recipe.trainer(problem, metric=metric)
    result = trainer.fit(PaperTraining(network), problem, seed=seed, checkpoint=resume, resume=resume is not None)
    if isinstance(network, VLISTA):
        network.fit_spread(problem.sample(_SPREAD_IMAGES, seed=seed, split="validation"))
    return result
