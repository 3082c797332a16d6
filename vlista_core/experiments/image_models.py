"""How each row of the image tables is made: solvers by grid search on validation images, networks by training.

What the paper leaves open and we chose, for all rows alike:
images in [0, 1] less the mean training image; fresh training draws for ever; estimates cut to [0, 1]; networks learn from SSIM
and squared error together (VLISTA, after a start of that kind, from its ELBO), where the paper has squared error alone.
Learned dictionaries start at the scaled principal directions of training images.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vlista_core.data.image_problem import ImageProblem
from vlista_core.data.image_set import ImageData
from vlista_core.dictionaries import LearnedDictionary, principal_directions, scaled_principal
from vlista_core.experiments.image_loss import negative_ssim, train
from vlista_core.experiments.image_solvers import (
    canonical_basis,
    make_bcs,
    make_ista,
    make_lmmse,
    sparse_pca_basis,
    training_signals,
    wavelet_basis,
)
from vlista_core.experiments.recipes import FROM, Fitted, Recipe, fit_network, started
from vlista_core.models import ADLISTA, ALISTA, DLISTA, LISTA, NALISTA, VLISTA, UnfoldedModel
from vlista_core.models.augmentation import Kind
from vlista_core.models.base import inverse_softplus, store_matrix
from vlista_core.models.fixed_dictionary import analytic_weights

LAYERS = 3
ANALYTIC_LAYERS = 12
"""Of ALISTA and NALISTA, which have two numbers per layer."""
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


_WHITENED = {
    ("mnist", 1): _Whitened(0.0, 4e-4),
    ("mnist", 10): _Whitened(0.0, 4e-4),
    ("mnist", 100): _Whitened(0.0, 4e-4),
    ("mnist", 300): _Whitened(0.1, 3e-4),
    ("cifar10", 300): _Whitened(0.0, 5e-5, scaled=True),
    ("cifar10", 500): _Whitened(0.0, 5e-5, scaled=True),
}
_WHITENED_ELSEWHERE = _Whitened(0.0, 3e-5)


def image_problem(data: ImageData, measurements: int, model: str, *, fixed_phi_seed: int | None = None) -> ImageProblem:
    """The problem that `model` is trained and tested on; its test draws are the same for all models."""
    made = MODELS[model]
    return ImageProblem(
        data=data,
        rows=measurements,
        centred=True,
        sharing=made.sharing if isinstance(made, Recipe) else 1,
        fixed_phi_seed=fixed_phi_seed,
    )


def fit(model: str, problem: ImageProblem, seed: int, weights: Path) -> Fitted:
    """The estimator called `model`, ready for test images, and how it was made. weights: see `fit_network`."""
    made = MODELS[model]
    if not isinstance(made, Recipe):
        return made(problem, seed)
    return fit_network(
        made, problem, seed, weights, lambda network, resume: train(network, problem, made, seed, resume), lambda x: -x
    )


def _start(problem: ImageProblem, seed: int) -> Tensor:
    """Where dictionaries start: [n, n]."""
    return scaled_principal(training_signals(problem, seed, START_IMAGES)).matrix


def _lista(problem: ImageProblem, seed: int) -> UnfoldedModel:
    n = problem.signal_length
    if problem.fixed_phi_seed is None:
        model = LISTA(n, n, layers=LAYERS)
        store_matrix(model.encoder, denoising_start(problem, seed).mT.contiguous())
    else:
        model = LISTA(n, n, layers=LAYERS, measurements=problem.measurements)
        store_matrix(model.decoder, _start(problem, seed))
    return started(model, problem, seed)


def denoising_start(problem: ImageProblem, seed: int) -> Tensor:
    """Ψ: [n, n] with which LISTA starts as the best linear estimate from Φᵀy alone, Σ_k(I - ΨᵀΨ)^k Ψᵀ(Φᵀy) over the layers.

    In direction i of power p_i, Φᵀy has power (1 + 1/m)p_i + Σp/m for Gaussian Φ, so the best gain is p_i over that; T steps
    of ISTA have the gain 1 - (1 - ψ_i²)^T.
    """
    directions, power = principal_directions(training_signals(problem, seed, START_IMAGES))
    m = problem.measurements
    gain = power / ((1.0 + 1.0 / m) * power + power.sum() / m)
    return directions * torch.sqrt(1.0 - (1.0 - gain) ** (1.0 / LAYERS))


def _dlista(problem: ImageProblem, seed: int) -> UnfoldedModel:
    return started(DLISTA(LearnedDictionary(_start(problem, seed)), layers=LAYERS), problem, seed)


def _adlista(problem: ImageProblem, seed: int, kind: Kind) -> ADLISTA:
    generator = torch.Generator().manual_seed(seed)
    model = ADLISTA(LearnedDictionary(_start(problem, seed)), layers=LAYERS, augmentation=kind, generator=generator)
    return started(model, problem, seed)


def _whitened_adlista(problem: ImageProblem, seed: int) -> ADLISTA:
    """A-DLISTA on whitened measurements; with Ψ = R^½ for a dictionary it starts as the best linear estimate."""
    directions, power = principal_directions(training_signals(problem, seed, START_IMAGES))
    chosen = _whitened(problem)
    psi = directions * (power + chosen.shrinkage * power.mean()).sqrt()
    model = ADLISTA(
        LearnedDictionary(psi, scaled=chosen.scaled),
        layers=LAYERS,
        covariance=psi @ psi.mT,
        generator=torch.Generator().manual_seed(seed),
    )
    return started(model, problem, seed)


def _whitened(problem: ImageProblem) -> _Whitened:
    return _WHITENED.get((problem.data.name, problem.measurements), _WHITENED_ELSEWHERE)


def _vlista(problem: ImageProblem, seed: int) -> UnfoldedModel:
    """VLISTA whose decoder and augmentation are first trained as A-DLISTA with one dictionary for all layers.

    That is VLISTA without doubt about its dictionary, at a hundredth of the price of a step. Ours deviates from the paper's in
    its posterior, centred on the decoder, in the adaptive augmentation, and in a narrow prior.
    """
    sure = _adlista(problem, seed, "adaptive")
    sure.dictionaries = nn.ModuleList([sure.dictionaries[0]] * LAYERS)
    train(sure, replace(problem, sharing=WARM.sharing), WARM, seed)
    decoder = sure.dictionaries[0]
    assert isinstance(decoder, LearnedDictionary)
    model = VLISTA(
        LearnedDictionary(decoder.matrix),
        problem.measurements,
        layers=LAYERS,
        augmentation="adaptive",
        anchored=True,
        prior_width=2,
        deviation=0.005,
        generator=torch.Generator().manual_seed(seed),
    )
    model.augmentation.load_state_dict(sure.augmentation.state_dict())
    return model


def _fixed_system(problem: ImageProblem, seed: int) -> tuple[Tensor, Tensor]:
    """Principal directions [n, n], in which images are sparsest, and analytic weights [m, n] for the one Φ of a problem."""
    if problem.fixed_phi is None:
        raise ValueError("ALISTA and NALISTA are for one Φ here; their weights are made for it")
    dictionary, _ = principal_directions(training_signals(problem, seed, START_IMAGES))
    return dictionary, analytic_weights((problem.fixed_phi @ dictionary).double()).float()


def _alista(problem: ImageProblem, seed: int) -> UnfoldedModel:
    dictionary, weights = _fixed_system(problem, seed)
    return started(ALISTA(weights, layers=ANALYTIC_LAYERS, dictionary=dictionary), problem, seed)


def _nalista(problem: ImageProblem, seed: int) -> UnfoldedModel:
    """NALISTA that starts from the best of a grid of constant steps and thresholds; images are not as sparse as it expects."""
    dictionary, weights = _fixed_system(problem, seed)
    generator = torch.Generator().manual_seed(seed)
    model = started(NALISTA(weights, layers=ANALYTIC_LAYERS, dictionary=dictionary, generator=generator), problem, seed)
    batch = problem.sample(256, seed=seed, split="train", start=FROM)

    @torch.no_grad()
    def error(start: tuple[float, float]) -> float:
        step, level = start
        model.head.bias.copy_(torch.tensor([inverse_softplus(step), inverse_softplus(level * step)]))
        return negative_ssim(problem, model(batch.y, batch.phi, batch.noise_var).signal, batch.signal)

    error(min(itertools.product(_STEPS, _LEVELS), key=error))
    return model


WARM: Recipe[ImageProblem] = Recipe(partial(_adlista, kind="adaptive"), 200, 5e-4, validations=4)
MODELS: dict[str, Recipe[ImageProblem] | Callable[[ImageProblem, int], Fitted]] = {
    "canonical": partial(make_ista, dictionary=canonical_basis),
    "wavelet": partial(make_ista, dictionary=wavelet_basis),
    "spca": partial(make_ista, dictionary=sparse_pca_basis),
    "lista": Recipe(_lista, 200, 2e-4, validations=10),
    "alista": Recipe(_alista, 40, 2e-3, validations=6),
    "nalista": Recipe(_nalista, 60, 2e-4, validations=6),
    "dlista": Recipe(_dlista, 500, 5e-4, validations=10),
    "a-dlista": Recipe(partial(_adlista, kind="paper"), 120, 5e-4, sharing=64, validations=4, validation_samples=64),
    "a-dlista-adaptive": Recipe(
        _whitened_adlista,
        300,
        lambda problem: _whitened(problem).rate,
        sharing=32,
        validations=30,
        validation_samples=128,
    ),
    "bcs": make_bcs,
    "lmmse": make_lmmse,
    "vlista": Recipe(_vlista, 12, 2e-4, batch_size=8, sharing=8, validations=4, validation_samples=64, own_loss=True),
}
"""Every row of the tables."""
