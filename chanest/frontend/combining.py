"""What a combiner does to noise, σ² W_tᴴW_t, and what makes it white: another combiner, or L⁻¹ of what it gave."""

import torch
from torch import Tensor


def whitened_weights(weights: Tensor, factor: Tensor) -> Tensor:
    """W L⁻ᴴ, after which noise is white: [..., N_r, N_RF]; X Lᴴ = W is a triangular system.

    factor: L, the lower Cholesky factor of WᴴW: [..., N_RF, N_RF].
    """
    white: Tensor = torch.linalg.solve_triangular(factor.mH, weights, upper=True, left=False)
    return white


def whitened_pilots(y: Tensor, factor: Tensor, *grid: int) -> Tensor:
    """L⁻¹y pilot by pilot: [batch, m] -> [batch, m].

    factor: L, broadcast over the pilots of a sample, [batch, …, N_RF, N_RF]; grid: how many there are along each axis.
    """
    pilots = y.reshape(y.shape[0], *grid, factor.shape[-1], 1)
    white: Tensor = torch.linalg.solve_triangular(factor, pilots, upper=False)
    return white.flatten(1)
