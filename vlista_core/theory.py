"""The paper's proposition on DLISTA: when a layer has no false positives, and how far it can be from the truth.

With A = ΦΨ_t, the true dictionary Ψ_o, y = ΦΨ_o x_* without noise, S the support of x_*, and x_0 = 0:

    μ̃ = max_{i≠j} |a_iᴴa_j|,    μ̃₂ = max_{i,j} |a_iᴴ(Φ(Ψ_t - Ψ_o))_j|,    δ(γ) = max_i |1 - γ‖a_i‖²|
    (1) γ_t(μ̃‖x_* - x_{t-1}‖₁ + μ̃₂‖x_*‖₁) ≤ θ_t for all t  ⇒  supp(x_t) ⊆ S
    (2) and then ‖x_t - x_*‖₁ ≤ (δ(γ_t) + γ_t μ̃(|S| - 1))‖x_{t-1} - x_*‖₁ + γ_t μ̃₂|S|‖x_*‖₁ + |S|θ_t.

Both hold for complex numbers too, with the threshold on the modulus.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vlista_core.linops import IdentityMap, LinearMap, as_map
from vlista_core.models.layer import Layer, Unrolled
from vlista_core.problems import Batch

_BLOCK_BYTES = 64 * 2**20


@dataclass(frozen=True)
class LayerCheck:
    """Both sides of the proposition at one layer, each [batch]."""

    condition: Tensor
    """Whether inequality (1) holds at this layer: bool."""
    assumed: Tensor
    """Whether it holds at this layer and at all before it, which is what the proposition assumes: bool."""
    threshold_bound: Tensor
    """The left side of (1), the least θ_t that meets it."""
    threshold: Tensor
    false_positives: Tensor
    """How many entries of x_t outside of S are not zero: integer."""
    error: Tensor
    """‖x_t - x_*‖₁, the left side of (2)."""
    bound: Tensor
    """The right side of (2), given ‖x_{t-1} - x_*‖₁ as it was."""


def coherence(phi: LinearMap | Tensor, psi: LinearMap | Tensor) -> Tensor:
    """μ̃ of every sample: [batch], or [1] where all is shared. phi: Φ (m×n), psi: Ψ (n×b).

    The definition compares all columns of ΦΨ, so that product is formed, for some samples at a time; of the b×b products of
    its columns only a block is ever held.
    """
    return _largest_product(as_map(phi) @ as_map(psi), None)


def mismatch_coherence(phi: LinearMap | Tensor, psi: LinearMap | Tensor, truth: LinearMap | Tensor) -> Tensor:
    """μ̃₂ of every sample: [batch], or [1] where all is shared. truth: Ψ_o (n×b). Memory as for `coherence`."""
    phi, psi, truth = as_map(phi), as_map(psi), as_map(truth)
    if psi.shape != truth.shape:
        raise ValueError(f"truth must have the shape {psi.shape} of psi, got {truth.shape}")
    return _largest_product(phi @ psi, phi @ truth)


def deviation(step: Tensor | float, phi: LinearMap | Tensor, psi: LinearMap | Tensor) -> Tensor:
    """δ(γ) of every sample: [batch], or [1] where all is shared. step: γ, a float, [] or [batch]."""
    power = (as_map(phi) @ as_map(psi)).column_norms().square()
    return (1.0 - torch.as_tensor(step, dtype=power.dtype, device=power.device)[..., None] * power).abs().amax(-1)


def threshold_bound(step: Tensor, coherence: Tensor, mismatch: Tensor, error_l1: Tensor, truth_l1: Tensor) -> Tensor:
    """The least θ_t of (1): γ(μ̃‖x_* - x_{t-1}‖₁ + μ̃₂‖x_*‖₁). All [batch] or broadcastable."""
    return step * (coherence * error_l1 + mismatch * truth_l1)


@torch.no_grad()
def check_layers(
    layers: Sequence[Layer],
    phi: LinearMap | Tensor,
    truth_code: Tensor,
    truth_dictionary: LinearMap | Tensor | None = None,
) -> tuple[LayerCheck, ...]:
    """Both sides of the proposition along a run from x_0 = 0 on y = ΦΨ_o x_*.

    truth_code: x_* [batch, b]; truth_dictionary: Ψ_o (n×b), None is the canonical one.
    """
    phi = as_map(phi)
    canonical = IdentityMap(phi.shape[1], phi.dtype, phi.device)
    truth = canonical if truth_dictionary is None else as_map(truth_dictionary)
    if truth_code.ndim != 2 or truth_code.shape[1] != truth.shape[1]:
        raise ValueError(f"truth_code must have shape [batch, {truth.shape[1]}], got {[*truth_code.shape]}")
    size, support = len(truth_code), truth_code != 0
    nonzeros, truth_l1 = support.sum(1), truth_code.abs().sum(1)
    before, assumed = truth_l1, torch.ones_like(truth_l1, dtype=torch.bool)
    checks = []
    for layer in layers:
        step, threshold = layer.step.expand(size), layer.threshold.expand(size)
        mu, mu_2 = coherence(phi, layer.dictionary), mismatch_coherence(phi, layer.dictionary, truth)
        least = threshold_bound(step, mu, mu_2, before, truth_l1)
        assumed = assumed & (least <= threshold)
        false_positives = ((layer.code != 0) & ~support).sum(1)
        error = (layer.code - truth_code).abs().sum(1)
        contraction = deviation(step, phi, layer.dictionary) + step * mu * (nonzeros - 1).clamp_min(0)
        bound = contraction * before + nonzeros * (step * mu_2 * truth_l1 + threshold)
        checks.append(LayerCheck(least <= threshold, assumed, least, threshold, false_positives, error, bound))
        before = error
    return tuple(checks)


@torch.no_grad()
def check_proposition(
    model: Unrolled, batch: Batch, truth_dictionary: LinearMap | Tensor | None = None
) -> tuple[LayerCheck, ...]:
    """Both sides of the proposition at every layer of a model's run on a noiseless batch.

    truth_dictionary: Ψ_o (n×b), None is the canonical one, for which the signal is the code where the batch has none.
    The proposition is about x_t = η(x_{t-1} + γ(ΦΨ)ᴴ(y - ΦΨx_{t-1})): DLISTA, and A-DLISTA with the paper's augmentation. The
    adaptive one also remembers the last residual, so that for it the two sides are figures and not a theorem.
    """
    if bool((batch.noise_var > 0).any()):
        raise ValueError(
            f"batch must be noiseless, as the proposition assumes; got noise_var up to {float(batch.noise_var.max()):g}"
        )
    code = batch.signal if batch.code is None and truth_dictionary is None else batch.code
    if code is None:
        raise ValueError("batch must have a code, because a truth_dictionary is given; got None")
    return check_layers(model.unroll(batch.y, batch.phi, batch.noise_var), batch.phi, code, truth_dictionary)


def _largest_product(a: LinearMap, truth: LinearMap | None) -> Tensor:
    """max |a_iᴴd_j|: [batch or 1], over all i, j for D = A - truth, or over i ≠ j for D = A where truth is None.

    The matrices of some samples at a time, and of the products a block of columns i: each of about `_BLOCK_BYTES`.
    """
    m, atoms = a.shape
    batch = a.batch or (None if truth is None else truth.batch) or 1
    largest = []
    for some in torch.arange(batch, device=a.device).split(max(1, _BLOCK_BYTES // (m * atoms * a.dtype.itemsize))):
        left = a.select(some).materialize()
        right = left if truth is None else left - truth.select(some).materialize()
        found = left.real.new_zeros(len(right))
        width = max(1, _BLOCK_BYTES // (len(right) * atoms * a.dtype.itemsize))
        for start in range(0, atoms, width):
            products = (left[:, :, start : start + width].mH @ right).abs()
            if truth is None:
                products.diagonal(offset=start, dim1=1, dim2=2).zero_()
            found = torch.maximum(found, products.amax((1, 2)))
        largest.append(found)
    return torch.cat(largest)
