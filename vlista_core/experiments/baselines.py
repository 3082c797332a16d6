"""The rows of the image tables that learn no weights: ISTA on fixed dictionaries, BCS, and the best linear estimate.

Their settings are those with the best SSIM on validation images. Grids grow until no choice sits at an edge; iterations of
ISTA are capped at `COUNTS[-1]`. A row says what was tried, what was chosen, and whether that lies inside.
"""

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
from vlista_core.solvers import BCS, ISTA, TunedLasso, tune_lasso, widen
from vlista_core.solvers.selection import COUNTS
from vlista_core.study import Row
from vlista_core.study.measuring import finite
from vlista_core.tensorfile import Json

COVARIANCE_IMAGES, SPARSE_IMAGES = 20_000, 2000
_SPARSE_ATOMS = 256
_CHUNK = 25
_LEAST_NOISE = 1e-6
"""Of the mean power of a measurement: what stands in for noise where there is none."""
_WORTH = 1e-4
"""SSIM that is not worth a wider grid or more iterations."""
STANDSTILL = 1e-7
"""Relative change at which ISTA stops: close to rounding, for what moves slowly may still have far to go."""
_FLOORS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""Noise floors of BCS that are tried first: shares of the power of y, so that from 1 on all of it is noise."""
_ISTA_IMAGES, _BCS_IMAGES = 32, 12
"""Validation images of a search."""
_AFFORDABLE = 1.6e12
"""Entries of ΦΨ times iterations times images of a test run of ISTA: some five minutes on one core."""


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
    """ISTA on a fixed dictionary. Its step is 1/‖ΦΨ‖² of each image; it starts from zero, which is the mean image."""
    solver = ISTA(dictionary=BASES[basis](problem, seed), tolerance=STANDSTILL, formed=basis != "canonical")
    figure = partial(negative_ssim, problem)
    found = tune_lasso(solver, problem, figure, worth=_WORTH, counts=COUNTS, count=_ISTA_IMAGES, seed=seed)
    return found.solver, {**told(found, lambda score: -score), "validation_samples": _ISTA_IMAGES}


def told(found: TunedLasso, figure: Callable[[float], float]) -> Row:
    """A search for a row: what was chosen, whether it lies inside, and (penalty, iterations, figure) of all that was tried."""
    return {
        "penalty": found.solver.penalty,
        "iterations": found.solver.iterations,
        "inside": {"penalty": found.penalty_inside, "iterations": found.iterations_inside},
        "tried": [[penalty, count, finite(figure(score), 4)] for penalty, count, score in found.tried],
    }


def make_bcs(problem: ImageProblem, seed: int) -> Fitted:
    """BCS on the basis, canonical or wavelet, and with the noise floor that validation images prefer."""
    batch = problem.sample(_BCS_IMAGES, seed=seed, split="validation")

    def score(basis: LinearMap, floor: float) -> float:
        estimate = BCS(dictionary=basis, noise_floor=floor).estimate(batch.y, batch.phi, batch.noise_var)
        return negative_ssim(problem, estimate.signal, batch.signal)

    bases = {name: BASES[name](problem, seed) for name in ("canonical", "wavelet")}
    found = {name: widen(partial(score, basis), _FLOORS, worth=_WORTH) for name, basis in bases.items()}
    best = min(found, key=lambda name: found[name].scores[found[name].value])
    tried: list[Json] = [
        [name, floor, finite(-value, 4)] for name, each in found.items() for floor, value in sorted(each.scores.items())
    ]
    return BCS(dictionary=bases[best], noise_floor=found[best].value), {
        "basis": best, "noise_floor": found[best].value, "inside": {"noise_floor": found[best].inside}, "tried": tried,
        "validation_samples": _BCS_IMAGES,
    }  # fmt: skip


def affordable_images(estimator: Estimator, problem: ImageProblem, wanted: int) -> int:
    """Test images for an estimator: `wanted`, or so many hundreds fewer that ISTA takes some minutes; at least a hundred."""
    if not isinstance(estimator, ISTA):
        return wanted
    atoms = problem.signal_length if estimator.dictionary is None else estimator.dictionary.shape[1]
    each = estimator.iterations * problem.measurements * atoms
    return min(wanted, max(1, int(_AFFORDABLE / each / 100)) * 100)


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
