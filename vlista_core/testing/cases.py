"""What the checks of estimators run on: a named way to build one, and data to try it on."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from vlista_core.estimate import Estimate, Estimator
from vlista_core.linops import DenseMap, LinearMap
from vlista_core.problems import Batch


def sparse_batch(
    dtype: torch.dtype, *, batch: int = 6, m: int = 24, n: int = 40, seed: int = 0, dictionary: LinearMap | None = None
) -> Batch:
    """A small problem with a Φ for each sample: a code with four non-zeros, canonical unless a dictionary is given; 30 dB."""
    generator = torch.Generator().manual_seed(seed)
    phi = torch.randn(batch, m, n, dtype=dtype, generator=generator) / math.sqrt(m)
    code = torch.zeros(batch, n if dictionary is None else dictionary.shape[1], dtype=dtype)
    for row in code:
        row[torch.randperm(code.shape[1], generator=generator)[:4]] = (
            torch.randn(4, dtype=dtype, generator=generator) + 2
        )
    signal = code if dictionary is None else dictionary.apply(code)
    noise_var = 1e-3 * 16 / m
    noise = math.sqrt(noise_var) * torch.randn(batch, m, dtype=dtype, generator=generator)
    y = torch.einsum("bmn,bn->bm", phi, signal) + noise
    return Batch(signal, y, DenseMap(phi), torch.full((batch,), noise_var, dtype=signal.real.dtype))


@dataclass(frozen=True)
class EstimatorCase:
    """A named way to build an estimator for a dtype and device, the same each time, and the data to try it on."""

    name: str
    make: Callable[[torch.dtype, torch.device], Estimator]
    sample: Callable[[torch.dtype], Batch] = sparse_batch
    ignores_phi: str = ""
    """Why the method never looks at Φ, where it does not: one made for a single Φ may have learned it."""
    no_bound: str = ""
    """Why the error may exceed that of an estimate of zero where Φ sees little: a network may have steps for another Φ."""

    def run(
        self,
        batch: Batch,
        *,
        y: Tensor | None = None,
        phi: LinearMap | Tensor | None = None,
        noise_var: Tensor | float | None = None,
    ) -> Estimate:
        """The estimate of a batch, with y, Φ or the noise replaced."""
        estimator = self.make(batch.y.dtype, batch.y.device)
        return estimator.estimate(
            batch.y if y is None else y,
            batch.phi if phi is None else phi,
            batch.noise_var if noise_var is None else noise_var,
        )
