"""How each row of the image tables is made: networks by training here, the others in `baselines`.

What the paper leaves open and we chose, for all rows alike: images in [0, 1] less the mean training image; fresh training draws
for ever; estimates cut to [0, 1]. Networks are trained by one of two recipes. That of the paper is in `paper_recipe`. Ours:
networks learn from SSIM and squared error together, `image_loss` (the anchored VLISTA, after a start of that kind, from its
ELBO); learned dictionaries start at the scaled principal directions of training images; 16 or 32 images of a batch share a Φ;
the rate falls along a cosine over a fixed number of steps; the weights with the best SSIM on validation images are kept.
"""

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vlista_core.data.image_problem import ImageProblem
from vlista_core.dictionaries import (
    LearnedDictionary,
    principal_directions,
    scaled_principal,
)
from vlista_core.experiments import paper_recipe, recipes
from vlista_core.experiments.baselines import make_bcs, make_ista, make_lmmse, training_signals
from vlista_core.experiments.image_loss import negative_ssim, train
from vlista_core.experiments.recipes import FROM, Fitted, Recipe, started
from vlista_core.models import ADLISTA, ALISTA, DLISTA, LISTA, NALISTA, VLISTA, UnfoldedModel
from vlista_core.models.base import inverse_softplus, store_matrix
from vlista_core.models.fixed_dictionary import analytic_weights

LAYERS = 3
ANALYTIC_LAYERS = {"alista": LAYERS, "nalista": LAYERS, "alista-12": 12, "nalista-12": 12}
"""Of ALISTA and NALISTA as the paper has them, and of ours: with two numbers per layer, more layers cost little."""
START_IMAGES = 20_000
_STEPS, _LEVELS = (0.01, 0.03, 0.1, 0.2, 0.4, 0.7, 1.0), (0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 1000.0)
"""Steps, and thresholds in units of the mean of such a step, that NALISTA may start with."""


class _Whitened(NamedTuple):
    """How A-DLISTA on whitened measurements starts and learns; chosen on validation images, by data set and m."""

    shrinkage: float
    """What is added to the powers of R, in units of their mean: a larger R in weak directions is gentler there."""
    rate: float
    """The learning rate. Whitening amplifies weak directions, so that a large step there spoils much."""
    scaled: bool = False
    """Whether atoms are learned in units of their norms."""

    @classmethod
    def chosen(cls, problem: ImageProblem) -> "_Whitened":
        match problem.data.name, problem.measurements:
            case "mnist", 1 | 10 | 100:
                return cls(0.0, 4e-4)
            case "mnist", 300:
                return cls(0.1, 3e-4)
            case "cifar10", 300 | 500:
                return cls(0.0, 5e-5, scaled=True)
        return cls(0.0, 3e-5)


def fit(model: str, recipe: str | None, problem: ImageProblem, seed: int, weights: Path) -> Fitted:
    """The estimator called `model`, ready for test images, and how it was made. weights: see `recipes.fit`.

    recipe: "paper" or "ours" for a network, None for what learns no weights. A network of the paper's recipe learns from Φ of
    their own for every image, one of ours from as many as its recipe says.
    """
    if recipe is None:
        return SOLVERS[model](problem, seed)
    if recipe == "paper":
        made, start = paper_recipe.recipe_for(model, problem), partial(paper_recipe.build, model)
        return recipes.fit(made, start, problem, seed, weights, paper_recipe.train)
    ours, shared = OURS[model], replace(problem, sharing=OURS[model].sharing)
    return recipes.fit(ours, partial(build, model), shared, seed, weights, train, lambda validation: -validation)


def recipes_of(model: str) -> tuple[str | None, ...]:
    """The recipes by which a model can be made."""
    if model in SOLVERS:
        return (None,)
    known = {"paper": paper_recipe.NETWORKS, "ours": OURS}
    found = tuple(recipe for recipe, networks in known.items() if model in networks)
    if not found:
        every = (*SOLVERS, *paper_recipe.NETWORKS, *OURS)
        raise ValueError(f"unknown model {model!r}; known are {', '.join(dict.fromkeys(every))}")
    return found


def build(name: str, problem: ImageProblem, seed: int) -> UnfoldedModel:
    """The network called `name`, started and untrained.

    The adaptive A-DLISTA works on whitened measurements; with Ψ = R^½ for a dictionary it starts as the best linear estimate.
    ALISTA and NALISTA work in the principal directions, in which images are sparsest, with weights for the one Φ.
    """
    n, m, generator = problem.signal_length, problem.measurements, torch.Generator().manual_seed(seed)
    model: UnfoldedModel
    match name:
        case "lista" if problem.fixed_phi_seed is None:
            model = LISTA(n, n, layers=LAYERS)
            store_matrix(model.encoder, denoising_start(problem, seed).mT.contiguous())
        case "lista":
            model = LISTA(n, n, layers=LAYERS, measurements=m)
            store_matrix(model.decoder, _start(problem, seed).matrix)
        case "dlista":
            model = DLISTA(_start(problem, seed), layers=LAYERS)
        case "a-dlista":
            model = ADLISTA(_start(problem, seed), layers=LAYERS, augmentation="paper", generator=generator)
        case "a-dlista-adaptive":
            (directions, power), chosen = _principal(problem, seed), _Whitened.chosen(problem)
            root = directions * (power + chosen.shrinkage * power.mean()).sqrt()
            psi = LearnedDictionary(root, scaled=chosen.scaled)
            model = ADLISTA(psi, layers=LAYERS, covariance=root @ root.mT, generator=generator)
        case "alista" | "alista-12":
            weights, directions = _analytic(problem, seed)
            model = ALISTA(weights, layers=ANALYTIC_LAYERS[name], dictionary=directions)
        case "nalista" | "nalista-12":
            return _nalista(problem, seed, generator, ANALYTIC_LAYERS[name])
        case "vlista-anchored":
            return _vlista(problem, seed, generator)
        case _:
            raise ValueError(f"unknown network {name!r}; known are {', '.join(OURS)}")
    return started(model, problem, seed)


def _principal(problem: ImageProblem, seed: int) -> tuple[Tensor, Tensor]:
    """Principal directions of training images [n, n] and their powers [n]."""
    return principal_directions(training_signals(problem, seed, START_IMAGES))


def _start(problem: ImageProblem, seed: int) -> LearnedDictionary:
    """Where dictionaries start: [n, n]."""
    return LearnedDictionary(scaled_principal(training_signals(problem, seed, START_IMAGES)).matrix)


def denoising_start(problem: ImageProblem, seed: int) -> Tensor:
    """Ψ: [n, n] with which LISTA starts as the best linear estimate from Φᵀy alone, Σ_k(I - ΨᵀΨ)^k Ψᵀ(Φᵀy) over the layers.

    In direction i of power p_i, Φᵀy has power (1 + 1/m)p_i + Σp/m for Gaussian Φ, so the best gain is p_i over that; T steps
    of ISTA have the gain 1 - (1 - ψ_i²)^T.
    """
    directions, power = _principal(problem, seed)
    m = problem.measurements
    gain = power / ((1.0 + 1.0 / m) * power + power.sum() / m)
    return directions * torch.sqrt(1.0 - (1.0 - gain) ** (1.0 / LAYERS))


def _analytic(problem: ImageProblem, seed: int) -> tuple[Tensor, Tensor]:
    """Analytic weights [m, n] for the one Φ of a problem, and the principal directions [n, n]."""
    if problem.fixed_phi is None:
        raise ValueError("ALISTA and NALISTA are for one Φ here; their weights are made for it")
    directions, _ = _principal(problem, seed)
    return analytic_weights((problem.fixed_phi @ directions).double()).float(), directions


def _nalista(problem: ImageProblem, seed: int, generator: torch.Generator, layers: int) -> NALISTA:
    """NALISTA that starts from the best of a grid of constant steps and thresholds; images are not as sparse as it expects."""
    weights, directions = _analytic(problem, seed)
    model = NALISTA(weights, layers=layers, dictionary=directions, generator=generator)
    started(model, problem, seed)
    batch = problem.sample(256, seed=seed, split="train", start=FROM)

    @torch.no_grad()
    def error(start: tuple[float, float]) -> float:
        step, level = start
        model.head.bias.copy_(torch.tensor([inverse_softplus(step), inverse_softplus(level * step)]))
        return negative_ssim(problem, model(batch.y, batch.phi, batch.noise_var).signal, batch.signal)

    error(min(itertools.product(_STEPS, _LEVELS), key=error))
    return model


def _vlista(problem: ImageProblem, seed: int, generator: torch.Generator) -> VLISTA:
    """VLISTA whose decoder and augmentation are first trained as A-DLISTA with one dictionary for all layers.

    That is VLISTA without doubt about its dictionary, at a hundredth of the price of a step. Ours deviates from the paper's in
    its posterior, centred on the decoder, in the adaptive augmentation, and in a narrow prior.
    """
    first = torch.Generator().manual_seed(seed)
    sure = ADLISTA(_start(problem, seed), layers=LAYERS, augmentation="adaptive", generator=first)
    decoder = started(sure, problem, seed).dictionaries[0]
    assert isinstance(decoder, LearnedDictionary)
    sure.dictionaries = nn.ModuleList([decoder] * LAYERS)
    train(sure, replace(problem, sharing=WARM.sharing), WARM, seed)
    model = VLISTA(
        LearnedDictionary(decoder.matrix), problem.measurements, layers=LAYERS, augmentation="adaptive", anchored=True,
        prior_width=2, deviation=0.005, generator=generator,
    )  # fmt: skip
    model.augmentation.load_state_dict(sure.augmentation.state_dict())
    return model


WARM: Recipe[ImageProblem] = Recipe(200, 5e-4, validations=4)
"""How what VLISTA starts from is trained."""
SOLVERS: dict[str, Callable[[ImageProblem, int], Fitted]] = {
    "canonical": partial(make_ista, "canonical"),
    "wavelet": partial(make_ista, "wavelet"),
    "spca": partial(make_ista, "spca"),
    "bcs": make_bcs,
    "lmmse": make_lmmse,
}
"""Rows that learn no weights: (problem, seed) -> the estimator and how it was made."""
OURS: dict[str, Recipe[ImageProblem]] = {
    "lista": Recipe(200, 2e-4, validations=10),
    "alista": Recipe(40, 2e-3, validations=6),
    "alista-12": Recipe(40, 2e-3, validations=6),
    "nalista": Recipe(60, 2e-4, validations=6),
    "nalista-12": Recipe(60, 2e-4, validations=6),
    "dlista": Recipe(500, 5e-4, validations=10),
    "a-dlista": Recipe(500, 5e-4, validations=10),
    "a-dlista-adaptive": Recipe(
        300, lambda problem: _Whitened.chosen(problem).rate, sharing=32, validations=30, validation_samples=128
    ),
    "vlista-anchored": Recipe(60, 2e-4, batch_size=32, validations=6, validation_samples=64, own_loss=True, slices=4),
}
"""Networks by our recipe: 1 - SSIM + 5·(squared error), dictionaries that start at principal directions, some Φ shared."""
