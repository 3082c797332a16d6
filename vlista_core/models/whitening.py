"""Measurements with what is known of them beforehand taken out: y ~ (0, C) becomes L⁻¹y ~ (0, I), C = ΦRΦᴴ + σ²I = LLᴴ.

Random measurements of images or channels are anything but equally informative, and gradient steps crawl where they are not.
With R = ΨΨᴴ one whole step from zero, Ψ(L⁻¹ΦΨ)ᴴL⁻¹y = RΦᴴC⁻¹y, is already the linear MMSE estimate.
"""

import torch
from torch import Tensor

from vlista_core.estimate import Measurement
from vlista_core.gaussian import DenseCovariance, condition
from vlista_core.linops import DenseMap, GroupedMap, LinearMap

_FLOOR = 1e-4
"""Of the mean power of a measurement: the least noise that is assumed."""


@torch.no_grad()
def whiten(measured: Measurement, covariance: Tensor) -> Measurement:
    """L⁻¹y, L⁻¹Φ and the mean variance of L⁻¹n. covariance: R of the signals, [n, n].

    A Φ that samples share stays shared where their noise is the same too.
    """
    y, noise_var = measured.y, measured.noise_var
    distinct, members = measured.phi.distinct()
    matrix = distinct.materialize()
    groups = noise_var.reshape(len(matrix), -1)
    if not noise_var.is_meta and bool((groups != groups[:, :1]).any()):
        matrix, members, groups = measured.phi.materialize().expand(len(y), -1, -1), 1, noise_var[:, None]
    rows = y.reshape(len(matrix), -1, y.shape[1])
    first = Measurement(rows[:, 0], DenseMap(matrix), groups[:, 0])
    posterior = condition(DenseCovariance(covariance[None]), first, floor=_FLOOR)
    white, rows = posterior.whiten(matrix), posterior.whiten(rows.mT).mT
    noise = groups
    if not noise_var.is_meta and bool((noise_var > 0).any()):
        identity = torch.eye(y.shape[1], dtype=y.dtype, device=y.device)
        noise = groups * posterior.whiten(identity.expand_as(posterior.factor)).abs().square().mean(1).sum(
            1, keepdim=True
        )
    phi: LinearMap = GroupedMap(white.contiguous(), members) if members > 1 else DenseMap(white.contiguous())
    if measured.phi.batch is None and len(white) == 1:
        phi = DenseMap(white[0])
    return Measurement(rows.reshape(y.shape), phi, noise.reshape(-1))
