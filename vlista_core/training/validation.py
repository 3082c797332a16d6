"""The validation figure by which the best weights are kept: smaller is better."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from vlista_core.estimate import Estimator
from vlista_core.problems import Batch

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Metric = Callable[[Tensor, Batch], float]
"""(estimated signal [batch, n], the batch) -> a figure to be minimised, averaged over the samples."""

_FLOOR = 1e-30


@torch.no_grad()
def validate(model: nn.Module, batches: Iterable[Batch], metric: Metric | None, fabric: Fabric) -> float:
    """The figure over the batches of all processes, in full precision; NaN where it is not finite.

    Without a metric it is the NMSE in dB as a ratio of sums, Σ‖ŝ - s‖² / Σ‖s‖².
    """
    if not isinstance(model, Estimator):
        raise ValueError(f"model must be an Estimator to be validated, got {type(model).__name__}")
    sums = torch.zeros(2, dtype=torch.float64)
    model.eval()
    for batch in batches:
        moved = batch.to(fabric.device)
        signal = model.estimate(moved.y, moved.phi, moved.noise_var).signal
        if metric is None:
            error, energy = (signal - moved.signal).abs(), moved.signal.abs()
            pair = float(error.double().square().sum()), float(energy.double().square().sum())
        else:
            pair = len(batch) * float(metric(signal, moved)), float(len(batch))
        sums += torch.tensor(pair, dtype=torch.float64)
    model.train()
    total = fabric.all_reduce(sums.to(fabric.device), reduce_op="sum")
    ratio = float(total[0] / total[1])
    if not math.isfinite(ratio):
        return math.nan
    return ratio if metric is not None else 10.0 * math.log10(max(ratio, _FLOOR))
