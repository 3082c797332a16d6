"""What the networks share whose dictionary Ψ [n, b] is given: A = ΦΨ, its analytic weights, support selection, checks.

ALISTA's analytic weights W have the least generalised coherence with A: min ‖WᴴA‖_F² subject to w_iᴴa_i = 1 has the solution
w_i = (AAᴴ)⁻¹a_i / (a_iᴴ(AAᴴ)⁻¹a_i), one column per atom (Liu et al. 2019).
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from vlista_core.dictionaries import LearnedMap
from vlista_core.linalg import solve_semidefinite
from vlista_core.linops import DenseMap, IdentityMap, LinearMap
from vlista_core.models.base import Loss, UnfoldedModel
from vlista_core.prox import soft_threshold_with_selection

_SELECTION_STEP, _SELECTION_MOST = 0.012, 0.13


class FixedDictionaryNetwork(UnfoldedModel):
    """Layers on A = ΦΨ with a given Ψ: a matrix, a learned one, or None for the canonical one."""

    dictionary: Tensor | LearnedMap | None
    selection = False
    """Whether the largest entries of a layer stay unshrunk, as LISTA-CPSS has it."""

    def __init__(
        self,
        layers: int,
        dictionary: Tensor | LearnedMap | None,
        dtype: torch.dtype,
        *,
        made_for: Tensor | None = None,
        measurements: int | None = None,
        loss: Loss = "mse",
        early_weight: float = 0.0,
    ) -> None:
        """dictionary: [n, b]; made_for: weights [m, b] for one Φ, which fix m (or `measurements` does) and, without a
        dictionary, n."""
        measurements = measurements if made_for is None else made_for.shape[0]
        known = made_for.mT if dictionary is None and made_for is not None else dictionary
        length = None if known is None else known.shape[0]
        super().__init__(layers, dtype, measurements=measurements, length=length, loss=loss, early_weight=early_weight)
        if dictionary is not None and dictionary.dtype != dtype:
            raise ValueError(f"dictionary must have the model's dtype {dtype}, got {dictionary.dtype}")
        if isinstance(dictionary, LearnedMap):
            self.dictionary = dictionary
        else:
            self.hold("dictionary", dictionary)

    def system(self, phi: LinearMap) -> tuple[LinearMap, LinearMap]:
        """Ψ and A = ΦΨ, which is not formed."""
        if isinstance(self.dictionary, Tensor):
            psi: LinearMap = DenseMap(self.dictionary)
        elif self.dictionary is not None:
            psi = self.dictionary.frozen()
        else:
            psi = IdentityMap(phi.shape[1], phi.dtype, phi.device)
        return psi, phi @ psi

    def shrink(self, t: int, code: Tensor, threshold: Tensor) -> Tensor:
        """η^p of layer t = 0, 1, …, which may leave a share p_t of the entries unshrunk: 1.2 % more per layer, at most 13 %."""
        share = min(_SELECTION_STEP * (t + 1), _SELECTION_MOST) if self.selection else 0.0
        return soft_threshold_with_selection(code, threshold, share)


def analytic_weights(matrix: Tensor) -> Tensor:
    """W: [..., m, b] for A: [..., m, b]. Dead columns of A (see `LinearMap.column_norms`) get a zero weight."""
    whitened, gain = whitened_columns(matrix)
    return torch.where(gain > 0, whitened / gain.clamp_min(torch.finfo(gain.dtype).tiny), torch.zeros_like(whitened))


def whitened_columns(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """(AAᴴ)⁻¹A, the adjoint of A⁺: [..., m, b], and a_iᴴ(AAᴴ)⁻¹a_i: [..., 1, b]. W is their quotient.

    Both are zero for dead columns of A, and (AAᴴ)⁻¹ is a pseudo-inverse where rows of A depend on each other.
    """
    live = DenseMap(matrix).column_norms().reshape(*matrix.shape[:-2], 1, -1) > 0
    matrix = torch.where(live, matrix, 0)
    whitened = solve_semidefinite(matrix @ matrix.mH, matrix)
    return whitened, (matrix.conj() * whitened).sum(-2, keepdim=True).real


def averaged_weights(matrices: Iterable[Tensor]) -> Tensor:
    """The mean of W over several A, each [m, b]: what the paper gives ALISTA and NALISTA where Φ varies."""
    weights = [analytic_weights(matrix) for matrix in matrices]
    if not weights:
        raise ValueError("matrices must hold at least one matrix [m, b], got none")
    return torch.stack(weights).mean(0)


def weight_map(weights: Tensor | None, a: LinearMap) -> LinearMap:
    """W as a map; None computes the analytic weights of every sample, which needs the matrix A."""
    if weights is not None:
        return DenseMap(weights)
    matrix = analytic_weights(a.materialize())
    return DenseMap(matrix if a.batch is not None else matrix[0])


def fixed_product(matrix: Tensor, dictionary: Tensor | None, dtype: torch.dtype) -> Tensor:
    """A = ΦΨ: [m, b] of a model made for one Φ, or a ValueError where the two do not fit."""
    if matrix.ndim != 2 or matrix.dtype != dtype:
        raise ValueError(f"matrix must be {dtype} of shape [m, n], got {matrix.dtype} {[*matrix.shape]}")
    if dictionary is None:
        return matrix
    if dictionary.ndim != 2 or dictionary.dtype != dtype or dictionary.shape[0] != matrix.shape[1]:
        raise ValueError(
            f"dictionary must be {dtype} of shape [{matrix.shape[1]}, atoms] to match matrix, "
            f"got {dictionary.dtype} {[*dictionary.shape]}"
        )
    return matrix @ dictionary
