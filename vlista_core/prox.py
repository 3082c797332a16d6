"""Thresholds and shrinkage, real and complex, with finite gradients everywhere."""

from typing import Any

import torch
from torch import Tensor


def soft_threshold(u: Tensor, threshold: Tensor) -> Tensor:
    """η_θ(u) = u/|u| · max(|u| - θ, 0). u: [batch, b]; threshold: broadcastable, real and non-negative."""
    if not u.is_complex():
        return u - torch.clamp(u, -threshold, threshold)
    shrunk: Tensor = _ComplexShrinkage.apply(u, threshold)  # type: ignore[no-untyped-call]
    return shrunk


def squared_modulus(values: Tensor) -> Tensor:
    """|.|² without the root that the modulus of a complex number takes, nor the quotient of its gradient."""
    return values.real.square() + values.imag.square() if values.is_complex() else values.square()


class _ComplexShrinkage(torch.autograd.Function):
    """u·(1 - θ/|u|)₊ with its gradient in real arithmetic: four times faster than through the modulus."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, threshold: Tensor) -> Tensor:
        modulus = u.abs()
        share = torch.relu(modulus - threshold) / modulus.clamp_min(torch.finfo(modulus.dtype).tiny)
        ctx.save_for_backward(u, modulus, share)
        ctx.threshold_shape = threshold.shape
        return u * share

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        """With e = u/|u| and the radial part r = Re(ē g) of the gradient g: share·g + (1 - share)·r·e, and -r for θ."""
        u, modulus, share = ctx.saved_tensors
        pairs, gradient = torch.view_as_real(u.resolve_conj()), torch.view_as_real(gradients[0].resolve_conj())
        unit = pairs / modulus.clamp_min(torch.finfo(modulus.dtype).tiny)[..., None]
        radial = torch.where(share > 0, (unit * gradient).sum(-1), torch.zeros_like(share))
        moved = share[..., None] * gradient + ((1.0 - share) * radial)[..., None] * unit
        return torch.view_as_complex(moved), (-radial).sum_to_size(ctx.threshold_shape)


def hard_threshold(u: Tensor, keep: int) -> Tensor:
    """The `keep` entries of largest modulus of each sample, the others zero. u: [batch, b]."""
    index = u.abs().topk(keep, dim=1).indices
    return torch.zeros_like(u).scatter(1, index, u.gather(1, index))


def soft_threshold_with_selection(u: Tensor, threshold: Tensor, fraction: Tensor | float) -> Tensor:
    """Soft threshold that leaves the largest entries unshrunk: the top `fraction` of each sample, if above the threshold.

    The support selection of LISTA-CPSS. u: [batch, b]; threshold: [batch or 1, b or 1]; fraction in [0, 1], a float or
    [batch, 1]. The choice of entries has no gradient.
    """
    modulus = u.abs().detach()
    b = u.shape[1]
    if isinstance(fraction, float):
        keep = min(max(round(fraction * b), 0), b)
        if keep == 0:
            return soft_threshold(u, threshold)
        cut = modulus.kthvalue(b - keep + 1, dim=1, keepdim=True).values
        selected = (modulus >= cut) & (modulus > threshold)
    else:
        wanted = (fraction.clamp(0, 1) * b).round().long()
        cut = modulus.sort(dim=1, descending=True).values.gather(1, (wanted - 1).clamp_min(0))
        selected = (modulus >= cut) & (modulus > threshold) & (wanted > 0)
    return torch.where(selected, u, soft_threshold(u, threshold))


def bernoulli_gauss(r: Tensor, noise: Tensor, activity: Tensor, power: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """MMSE estimate of x from r = x + N(0, noise), x ~ (1 - activity) δ₀ + activity N(0, power).

    r: [batch, b]; the rest broadcastable, real; circular Gaussians where r is complex.
    Returns the posterior mean [batch, b], variance [batch, b] and probability of being non-zero [batch, b].
    """
    half = 1.0 if r.is_complex() else 0.5
    total = power + noise
    log_odds = (
        torch.log(activity)
        - torch.log1p(-activity)
        + half * torch.log(noise / total)
        + half * r.abs().square() * (power / (noise * total))
    )
    active = torch.sigmoid(log_odds)
    gain = power / total
    mean = active * gain * r
    second_moment = active * (gain * noise + (gain * r.abs()).square())
    variance = (second_moment - mean.abs().square()).clamp_min(0)
    return mean, variance, active
