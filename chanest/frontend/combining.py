"""What a combiner does to noise: σ² W_tᴴW_t, and the combiner after which it is white."""

import torch
from torch import Tensor


def whitened_weights(weights: Tensor, factor: Tensor) -> Tensor:
    """W L⁻ᴴ, after which noise is white: [..., N_r, N_RF]; X Lᴴ = W is a triangular system.

    factor: L, the lower Cholesky factor of WᴴW: [..., N_RF, N_RF].
    """
    white: Tensor = torch.linalg.solve_triangular(factor.mH, weights, upper=True, left=False)
    return white
