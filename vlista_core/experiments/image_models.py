"""How each row of the image tables is made: solvers by grid search on validation images, networks by training.

What the paper leaves open and we chose, for all rows alike:
images in [0, 1] less the mean training image; fresh training draws for ever; estimates cut to [0, 1]; networks learn from SSIM
and squared error together (VLISTA, after a start of that kind, from its ELBO), where the paper has squared error alone.
Learned dictionaries start at the scaled principal directions of training images.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vlista_core.data.image_problem import ImageProblem
from vlista_core.data.image_set import ImageData
from vlista_core.dictionaries import (
    LearnedDictionary,
    principal_directions,
    scaled_principal,
    sparse_pca,
    wavelet,
)
from vlista_core.estimate import Estimate, Estimator, Measurement
from vlista_core.experiments import recipes
from vlista_core.experiments.image_loss import negative_ssim, train
from vlista_core.experiments.recipes import FROM, Fitted, Made, Recipe, started
from vlista_core.gaussian import DenseCovariance, condition
from vlista_core.linops import IdentityMap, LinearMap
from vlista_core.models import ADLISTA, ALISTA, DLISTA, LISTA, NALISTA, VLISTA, UnfoldedModel
from vlista_core.models.base import inverse_softplus, store_matrix
from vlista_core.models.fixed_dictionary import analytic_weights
from vlista_core.solvers import BCS, ISTA, select_hyperparameters
from vlista_core.solvers.selection import Value

LAYERS = 3
ANALYTIC_LAYERS = 12
"""Of ALISTA and NALISTA, which have two numbers per layer."""
START_IMAGES, COVARIANCE_IMAGES, SPARSE_IMAGES = 20_000, 20_000, 2000
_SPARSE_ATOMS = 256
_STEPS, _LEVELS = (0.01, 0.03, 0.1, 0.2, 0.4, 0.7, 1.0), (0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 1000.0)
"""Steps, and thresholds in units of the mean of such a step, that NALISTA may start with."""
_CHUNK = 25
_LEAST_NOISE = 1e-6
"""Of the mean power of a measurement: what stands in for noise where there is none."""


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


def fit(model: str, problem: ImageProblem, seed: int, weights: Path) -> Fitted:
    """The estimator called `model`, ready for test images, and how it was made. weights: see `recipes.fit`."""
    return recipes.fit(
        MODELS[model], partial(build, model), problem, seed, weights, train, lambda validation: -validation
    )


def training_signals(problem: ImageProblem, seed: int, count: int) -> Tensor:
    """Signals of training draws: [count, n]."""
    return problem.signals(range(FROM, FROM + count), seed=seed, split="train")


class LinearMMSE(Estimator):
    """ŝ = CΦᵀ(ΦCΦᵀ + σ²I)⁻¹y with the covariance C of training images and the actual Φ: the best linear estimate.

    The paper does not have it. It knows no sparsity and learns nothing, but it inverts a matrix for every image.
    """

    def __init__(self, covariance: Tensor) -> None:
        """covariance: [n, n]."""
        self.covariance = covariance

    def estimate(self, y: Tensor, phi: LinearMap | Tensor, noise_var: Tensor | float) -> Estimate:
        measured, prior = Measurement.checked(y, phi, noise_var), DenseCovariance(self.covariance[None])
        parts = (measured.select(some) for some in torch.split(torch.arange(len(measured.y)), _CHUNK))
        return Estimate(torch.cat([condition(prior, part, floor=_LEAST_NOISE).mean for part in parts]))


def make_lmmse(problem: ImageProblem, seed: int) -> Fitted:
    signals = training_signals(problem, seed, COVARIANCE_IMAGES)
    return LinearMMSE(signals.mT @ signals / len(signals)), {}


def make_ista(basis: str, problem: ImageProblem, seed: int) -> Fitted:
    """ISTA on a fixed dictionary, its penalty and number of iterations those with the best SSIM on validation images.

    Its step is 1/‖ΦΨ‖² as it is for large Gaussian Φ, ‖Φ‖ ≈ 1 + √(n/m).
    """
    psi = BASES[basis](problem, seed)
    norm = (1.0 + math.sqrt(problem.signal_length / problem.measurements)) * float(psi.spectral_norm())
    grid: dict[str, tuple[Value, ...]] = {
        "dictionary": (psi,), "step": (norm**-2,), "penalty": (0.001, 0.003, 0.01, 0.03, 0.1), "iterations": (10, 30, 100)
    }  # fmt: skip
    found = select_hyperparameters(ISTA, grid, problem, partial(negative_ssim, problem), count=32, seed=seed)
    return found.solver, {"penalty": found.solver.penalty, "iterations": found.solver.iterations}


def make_bcs(problem: ImageProblem, seed: int) -> Fitted:
    """BCS on the basis, canonical or wavelet, that validation images prefer; its noise floor is a hundredth of E|y|²."""
    bases = {name: BASES[name](problem, seed) for name in ("canonical", "wavelet")}
    grid: dict[str, tuple[Value, ...]] = {"dictionary": tuple(bases.values()), "noise_floor": (1e-2,)}
    found = select_hyperparameters(BCS, grid, problem, partial(negative_ssim, problem), count=12, seed=seed)
    return found.solver, {"basis": next(name for name, basis in bases.items() if basis is found.solver.dictionary)}


@lru_cache(maxsize=1)
def _sparse_components(data: ImageData, seed: int) -> LinearMap:
    """The same for every number of measurements, and slow to find."""
    images = training_signals(ImageProblem(data=data, rows=1, centred=True), seed, SPARSE_IMAGES)
    return sparse_pca(images, min(_SPARSE_ATOMS, images.shape[1] // 2), iterations=5, seed=seed)


BASES: dict[str, Callable[[ImageProblem, int], LinearMap]] = {
    "canonical": lambda problem, seed: IdentityMap(problem.signal_length),
    "wavelet": lambda problem, seed: wavelet(*problem.side),
    "spca": lambda problem, seed: _sparse_components(problem.data, seed),
}


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
        case "alista":
            weights, directions = _analytic(problem, seed)
            model = ALISTA(weights, layers=ANALYTIC_LAYERS, dictionary=directions)
        case "nalista":
            return _nalista(problem, seed, generator)
        case "vlista":
            return _vlista(problem, seed, generator)
        case _:
            raise ValueError(f"unknown network {name!r}; known are {', '.join(MODELS)}")
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


def _nalista(problem: ImageProblem, seed: int, generator: torch.Generator) -> NALISTA:
    """NALISTA that starts from the best of a grid of constant steps and thresholds; images are not as sparse as it expects."""
    weights, directions = _analytic(problem, seed)
    model = NALISTA(weights, layers=ANALYTIC_LAYERS, dictionary=directions, generator=generator)
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
MODELS: dict[str, Made[ImageProblem]] = {
    "canonical": partial(make_ista, "canonical"),
    "wavelet": partial(make_ista, "wavelet"),
    "spca": partial(make_ista, "spca"),
    "lista": Recipe(200, 2e-4, validations=10),
    "alista": Recipe(40, 2e-3, validations=6),
    "nalista": Recipe(60, 2e-4, validations=6),
    "dlista": Recipe(500, 5e-4, validations=10),
    "a-dlista": Recipe(120, 5e-4, sharing=64, validations=4, validation_samples=64),
    "a-dlista-adaptive": Recipe(
        300, lambda problem: _Whitened.chosen(problem).rate, sharing=32, validations=30, validation_samples=128
    ),
    "bcs": make_bcs,
    "lmmse": make_lmmse,
    "vlista": Recipe(12, 2e-4, batch_size=8, sharing=8, validations=4, validation_samples=64, own_loss=True),
}
"""Every row of the tables."""
