"""The classical rows of the image tables: solvers on fixed dictionaries, chosen on validation images, and a linear filter."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial

import torch
from torch import Tensor

from vlista_core.data.image_problem import ImageProblem
from vlista_core.data.image_set import ImageData
from vlista_core.dictionaries import sparse_pca, wavelet
from vlista_core.estimate import Estimate, Estimator, Measurement
from vlista_core.experiments.image_loss import negative_ssim
from vlista_core.experiments.recipes import FROM, Fitted
from vlista_core.gaussian import DenseCovariance, condition
from vlista_core.linops import IdentityMap, LinearMap
from vlista_core.solvers import BCS, ISTA, select_hyperparameters
from vlista_core.solvers.selection import Value

_PENALTIES: tuple[Value, ...] = (0.001, 0.003, 0.01, 0.03, 0.1)
_ITERATIONS: tuple[Value, ...] = (10, 30, 100)
SPARSE_IMAGES, _SPARSE_ATOMS = 2000, 256
COVARIANCE_IMAGES = 20_000
_CHUNK = 25
_LEAST_NOISE = 1e-6
"""Of the mean power of a measurement: what stands in for noise where there is none."""


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


def make_ista(problem: ImageProblem, seed: int, dictionary: Callable[[ImageProblem, int], LinearMap]) -> Fitted:
    """ISTA on a fixed dictionary, its penalty and number of iterations those with the best SSIM on validation images.

    Its step is 1/‖ΦΨ‖² as it is for large Gaussian Φ, ‖Φ‖ ≈ 1 + √(n/m).
    """
    psi = dictionary(problem, seed)
    norm = (1.0 + math.sqrt(problem.signal_length / problem.measurements)) * float(psi.spectral_norm())
    grid: dict[str, tuple[Value, ...]] = {
        "dictionary": (psi,), "step": (norm**-2,), "penalty": _PENALTIES, "iterations": _ITERATIONS
    }  # fmt: skip
    found = select_hyperparameters(ISTA, grid, problem, partial(negative_ssim, problem), count=32, seed=seed)
    best = found.scores[0][0]
    return found.solver, {"penalty": float(str(best["penalty"])), "iterations": int(str(best["iterations"]))}


def make_bcs(problem: ImageProblem, seed: int) -> Fitted:
    """BCS on the basis, canonical or wavelet, that validation images prefer; its noise floor is a hundredth of E|y|²."""
    bases = {"canonical": canonical_basis(problem, seed), "wavelet": wavelet_basis(problem, seed)}
    grid: dict[str, tuple[Value, ...]] = {"dictionary": tuple(bases.values()), "noise_floor": (1e-2,)}
    found = select_hyperparameters(BCS, grid, problem, partial(negative_ssim, problem), count=12, seed=seed)
    best = found.scores[0][0]["dictionary"]
    return found.solver, {"basis": next(name for name, basis in bases.items() if basis is best)}


def canonical_basis(problem: ImageProblem, seed: int) -> LinearMap:
    return IdentityMap(problem.signal_length)


def wavelet_basis(problem: ImageProblem, seed: int) -> LinearMap:
    return wavelet(*problem.side)


def sparse_pca_basis(problem: ImageProblem, seed: int) -> LinearMap:
    return _sparse_components(problem.data, seed)


@lru_cache(maxsize=1)
def _sparse_components(data: ImageData, seed: int) -> LinearMap:
    """The same for every number of measurements, and slow to find."""
    images = training_signals(ImageProblem(data=data, rows=1, centred=True), seed, SPARSE_IMAGES)
    return sparse_pca(images, min(_SPARSE_ATOMS, images.shape[1] // 2), iterations=5, seed=seed)
