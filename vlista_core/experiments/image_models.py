"""How each row of the image tables is made: solvers by grid search on validation images, networks by training.

Budgets are in steps, so that a figure depends on the seed alone. What the paper leaves open and we chose, for all rows alike:
images in [0, 1] less the mean training image; fresh training draws for ever; estimates cut to [0, 1].
Learned dictionaries start at the scaled principal directions of training images.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import torch
from torch import Tensor, nn

from vlista_core import checkpoint
from vlista_core.data.image_problem import ImageProblem
from vlista_core.data.image_set import ImageData
from vlista_core.dictionaries import (
    LearnedDictionary,
    canonical,
    principal_directions,
    scaled_principal,
    sparse_pca,
    wavelet,
)
from vlista_core.estimate import Estimator
from vlista_core.files import read_json, write_json
from vlista_core.linops import LinearMap
from vlista_core.metrics import ssim
from vlista_core.models import ADLISTA, ALISTA, DLISTA, LISTA, NALISTA, VLISTA, UnfoldedModel
from vlista_core.models.analytic import analytic_weights
from vlista_core.models.augmentation import Kind
from vlista_core.models.pairs import store_matrix
from vlista_core.problems import Batch
from vlista_core.solvers import BCS, ISTA, select_hyperparameters
from vlista_core.solvers.selection import Value
from vlista_core.tensorfile import Json
from vlista_core.training import Trainer
from vlista_core.training.result import TrainingResult

LAYERS = 3
ANALYTIC_LAYERS = 12
"""Of ALISTA and NALISTA, which have two numbers a layer."""
_CALIBRATION = 10**8
"""Index of the training draws that a start is calibrated on; training never comes that far."""
_START_IMAGES = 20_000
_PENALTIES: tuple[Value, ...] = (0.001, 0.003, 0.01, 0.03, 0.1)
_ITERATIONS: tuple[Value, ...] = (10, 30, 100)
_SPARSE_IMAGES, _SPARSE_ATOMS = 2000, 256

Build = Callable[[ImageProblem, int], UnfoldedModel]
"""(problem, seed) -> a network that is calibrated and untrained."""


@dataclass(frozen=True)
class Recipe:
    """How a network is trained."""

    build: Build
    steps: int
    rate: float
    batch_size: int = 128
    sharing: int = 16
    """Training images in a row that share a Φ."""
    validations: int = 20
    validation_images: int = 256


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


def fit(model: str, problem: ImageProblem, seed: int, weights: Path) -> tuple[Estimator, dict[str, Json]]:
    """The estimator called `model`, ready for test images, and how it was made.

    weights: a file that keeps a trained network, and gives it back in place of a second training; how it was trained is in
    a file beside it.
    """
    made = MODELS[model]
    if not isinstance(made, Recipe):
        return made(problem, seed)
    beside = weights.with_suffix(".json")
    if weights.is_file():
        return _loaded(weights), read_json(beside) if beside.is_file() else {}
    start = time.perf_counter()
    network = made.build(problem, seed)
    before = time.perf_counter() - start
    result = train(network, problem, made, seed, weights.with_suffix(".resume.safetensors"))
    details: dict[str, Json] = {
        "steps": result.steps,
        "batch_size": made.batch_size,
        "learning_rate": made.rate,
        "train_seconds": round(before + result.seconds, 1),
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "history": [[r.step, round(before + r.seconds, 1), round(-r.validation, 4)] for r in result.history],
    }
    write_json(beside, details)
    checkpoint.save(network, weights)
    return network, details


def _loaded(weights: Path) -> Estimator:
    model = checkpoint.load(weights)
    if not isinstance(model, UnfoldedModel):
        raise ValueError(f"{weights} must hold an unfolded network, got {type(model).__name__}")
    return model


def train(model: nn.Module, problem: ImageProblem, recipe: Recipe, seed: int, resume: Path | None) -> TrainingResult:
    """Train by the recipe, the weights with the best SSIM on validation images kept."""

    def metric(signal: Tensor, batch: Batch) -> float:
        return -float(ssim(problem.images(signal), problem.images(batch.signal)).mean())

    trainer = Trainer(
        steps=recipe.steps,
        batch_size=recipe.batch_size,
        learning_rate=recipe.rate,
        schedule="cosine",
        warmup=0.02,
        clip_norm=1.0,
        validation_samples=recipe.validation_images,
        validate_every=max(1, recipe.steps // recipe.validations),
        metric=metric,
    )
    result = trainer.fit(model, problem, seed=seed, checkpoint=resume, resume=resume is not None)
    if resume is not None:
        resume.unlink(missing_ok=True)
    return result


def _calibration(problem: ImageProblem, seed: int) -> Batch:
    return problem.sample(256, seed=seed, split="train", start=_CALIBRATION)


def _training_images(problem: ImageProblem, seed: int, count: int = _START_IMAGES) -> Tensor:
    """Signals of training draws: [count, n]."""
    return problem.signals(range(_CALIBRATION, _CALIBRATION + count), seed=seed, split="train")


def _start(problem: ImageProblem, seed: int) -> Tensor:
    """Where dictionaries start: [n, n]."""
    return scaled_principal(_training_images(problem, seed)).matrix


def _lista(problem: ImageProblem, seed: int) -> UnfoldedModel:
    n = problem.signal_length
    if problem.fixed_phi_seed is None:
        model = LISTA(n, n, layers=LAYERS)
        store_matrix(model.encoder, _denoising_start(problem, seed).mT.contiguous())
    else:
        model = LISTA(n, n, layers=LAYERS, measurements=problem.measurements)
        store_matrix(model.decoder, _start(problem, seed))
    model.calibrate(_calibration(problem, seed))
    return model


def _denoising_start(problem: ImageProblem, seed: int) -> Tensor:
    """Ψ: [n, n] with which LISTA starts as the best linear estimate from Φᵀy alone, Σ_k(I - ΨᵀΨ)^k Ψᵀ(Φᵀy) over the layers.

    In direction i of power p_i, Φᵀy has power (1 + 1/m)p_i + Σp/m for Gaussian Φ, so the best gain is p_i over that; T steps
    of ISTA have the gain 1 - (1 - ψ_i²)^T.
    """
    directions, power = principal_directions(_training_images(problem, seed))
    m = problem.measurements
    gain = power / ((1.0 + 1.0 / m) * power + power.sum() / m)
    return directions * torch.sqrt(1.0 - (1.0 - gain) ** (1.0 / LAYERS))


def _dlista(problem: ImageProblem, seed: int) -> UnfoldedModel:
    model = DLISTA(LearnedDictionary(_start(problem, seed)), layers=LAYERS)
    model.calibrate(_calibration(problem, seed))
    return model


def _adlista(problem: ImageProblem, seed: int, kind: Kind) -> ADLISTA:
    generator = torch.Generator().manual_seed(seed)
    model = ADLISTA(LearnedDictionary(_start(problem, seed)), layers=LAYERS, augmentation=kind, generator=generator)
    model.calibrate(_calibration(problem, seed))
    return model


def _vlista(problem: ImageProblem, seed: int) -> UnfoldedModel:
    """VLISTA whose decoder and augmentation are first trained as A-DLISTA with one dictionary for all layers.

    That is VLISTA without doubt about its dictionary, at a hundredth of the price of a step. Ours deviates from the paper's in
    its posterior, centred on the decoder, in the adaptive augmentation, and in a narrow prior.
    """
    sure = _adlista(problem, seed, "adaptive")
    sure.dictionaries = nn.ModuleList([sure.dictionaries[0]] * LAYERS)
    sure.calibrate(_calibration(problem, seed))
    train(sure, replace(problem, sharing=_WARM.sharing), _WARM, seed, None)
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
    dictionary, _ = principal_directions(_training_images(problem, seed))
    return dictionary, analytic_weights((problem.fixed_phi @ dictionary).double()).float()


def _alista(problem: ImageProblem, seed: int) -> UnfoldedModel:
    dictionary, weights = _fixed_system(problem, seed)
    model = ALISTA(weights, layers=ANALYTIC_LAYERS, dictionary=dictionary, loss="mse")
    model.calibrate(_calibration(problem, seed))
    return model


def _nalista(problem: ImageProblem, seed: int) -> UnfoldedModel:
    dictionary, weights = _fixed_system(problem, seed)
    generator = torch.Generator().manual_seed(seed)
    model = NALISTA(weights, layers=ANALYTIC_LAYERS, dictionary=dictionary, loss="mse", generator=generator)
    model.calibrate(_calibration(problem, seed))
    return model


def _solver(problem: ImageProblem, seed: int, dictionary: Callable[[ImageProblem, int], LinearMap]) -> _Made:
    """ISTA on a fixed dictionary, its penalty and number of iterations those with the best SSIM on validation images.

    Its step is 1/‖ΦΨ‖² as it is for large Gaussian Φ, ‖Φ‖ ≈ 1 + √(n/m).
    """
    psi = dictionary(problem, seed)
    norm = (1.0 + math.sqrt(problem.signal_length / problem.measurements)) * float(psi.spectral_norm())
    grid: dict[str, tuple[Value, ...]] = {
        "dictionary": (psi,), "step": (norm**-2,), "penalty": _PENALTIES, "iterations": _ITERATIONS
    }  # fmt: skip
    found = select_hyperparameters(ISTA, grid, problem, partial(_negative_ssim, problem), count=32, seed=seed)
    best = found.scores[0][0]
    return found.solver, {"penalty": float(str(best["penalty"])), "iterations": int(str(best["iterations"]))}


def _bcs(problem: ImageProblem, seed: int) -> _Made:
    """BCS on the basis, canonical or wavelet, that validation images prefer; its noise floor is a hundredth of E|y|²."""
    bases = {"canonical": _canonical(problem, seed), "wavelet": _wavelet(problem, seed)}
    grid: dict[str, tuple[Value, ...]] = {"dictionary": tuple(bases.values()), "noise_floor": (1e-2,)}
    found = select_hyperparameters(BCS, grid, problem, partial(_negative_ssim, problem), count=12, seed=seed)
    best = found.scores[0][0]["dictionary"]
    return found.solver, {"basis": next(name for name, basis in bases.items() if basis is best)}


def _negative_ssim(problem: ImageProblem, estimate: Tensor, signal: Tensor) -> float:
    return -float(ssim(problem.images(estimate), problem.images(signal)).mean())


def _canonical(problem: ImageProblem, seed: int) -> LinearMap:
    return canonical(problem.signal_length)


def _wavelet(problem: ImageProblem, seed: int) -> LinearMap:
    return wavelet(*problem.side)


def _sparse_pca(problem: ImageProblem, seed: int) -> LinearMap:
    return _sparse_components(problem.data, seed)


@lru_cache(maxsize=1)
def _sparse_components(data: ImageData, seed: int) -> LinearMap:
    """The same for every number of measurements, and slow to find."""
    images = _training_images(ImageProblem(data=data, rows=1, centred=True), seed, _SPARSE_IMAGES)
    return sparse_pca(images, min(_SPARSE_ATOMS, images.shape[1] // 2), iterations=5, seed=seed)


_DEAR: dict[str, int] = {"validations": 4, "validation_images": 64}
"""For networks that form a matrix for every image."""
_WARM = Recipe(partial(_adlista, kind="adaptive"), 200, 5e-4, validations=4)
_Made = tuple[Estimator, dict[str, Json]]
MODELS: dict[str, Recipe | Callable[[ImageProblem, int], _Made]] = {
    "canonical": partial(_solver, dictionary=_canonical),
    "wavelet": partial(_solver, dictionary=_wavelet),
    "spca": partial(_solver, dictionary=_sparse_pca),
    "lista": Recipe(_lista, 200, 2e-4, validations=10),
    "alista": Recipe(_alista, 40, 2e-3, validations=6),
    "nalista": Recipe(_nalista, 60, 2e-4, validations=6),
    "dlista": Recipe(_dlista, 400, 5e-4, validations=10),
    "a-dlista": Recipe(partial(_adlista, kind="paper"), 120, 5e-4, sharing=64, **_DEAR),
    "a-dlista-adaptive": Recipe(partial(_adlista, kind="adaptive"), 400, 5e-4, validations=10),
    "bcs": _bcs,
    "vlista": Recipe(_vlista, 12, 2e-4, batch_size=8, sharing=8, **_DEAR),
}
"""Every row of the tables."""
