"""The joint last step of `universal` over many subcarriers: powers of delays and directions from those of delay modes.

Modes by themselves do not know that a path is coherent over them. Their powers of directions q_d say of each direction how it
is spread over the modes, which tells its delays: p_k(a) ≥ 0 with Σ_k |w_dk|² p_k(a) ≈ q_d(a), found by multiplicative steps
(Richardson 1972, Lucy 1974). One majorise–minimise step for the likelihood of y, with all modes and the exact C, mends what
that leaves open, p ← p·√(g/q), and the posterior mean is taken by one more factorisation.
"""

import math

import torch
from torch import Tensor

from chanest.covariances.angular import AngularGrid, GridView
from chanest.covariances.delay_angle import DelayAngleCovariance
from vlista_core.estimate import Measurement
from vlista_core.gaussian import Posterior, condition
from vlista_core.prox import squared_modulus

_OVERSAMPLING = 2
_SEEN, _STRONG = 0.3, 1e-3
"""What the modes must see of a delay at the least, and its power as a share of the most."""
_ROUNDS = 10
_LEAST, _LEAST_RATIO = 1e-12, 1e-4


def joint_posterior(inside: Measurement, modes: Tensor, powers: Tensor, grid: AngularGrid) -> Posterior:
    """The channel of one sample in its delay modes.

    inside: the measurement in the modes; modes: U, [S, D]; powers: of the atoms in each mode, [D, atoms].
    """
    responses = _responses(modes, powers.sum(1))
    prior = DelayAngleCovariance(responses[None], _over_delays(powers, squared_modulus(responses))[None], grid)
    return condition(_improved(prior, inside), inside)


def _responses(modes: Tensor, powers: Tensor) -> Tensor:
    """w_k = Uᴴd_k of the delays that may have power: [D, K]. powers: of the modes, [D]."""
    subcarriers = len(modes)
    points = _OVERSAMPLING * subcarriers
    turn = torch.outer(torch.arange(subcarriers), -2 * math.pi * torch.arange(points) / points).to(modes.real)
    responses: Tensor = modes.mH @ torch.polar(torch.ones_like(turn), turn).to(modes.dtype)
    seen = squared_modulus(responses)
    strength = powers @ seen
    return responses[:, (seen.sum(0) > _SEEN * subcarriers) & (strength > _STRONG * strength.max())]


def _over_delays(powers: Tensor, seen: Tensor) -> Tensor:
    """p_k of every atom from its powers in the modes: [D, atoms] and |w_dk|², [D, K] -> [K, atoms]."""
    weight = seen.sum(0)[:, None]
    found = seen.mT @ powers / weight
    for _ in range(_ROUNDS):
        found = found * (seen.mT @ (powers / (seen @ found).clamp_min(_LEAST))) / weight
    return found.clamp_min(_LEAST)


def _improved(prior: DelayAngleCovariance, inside: Measurement) -> DelayAngleCovariance:
    """After one step p ← p·√(g/q), of one sample."""
    posterior, (block, count) = condition(prior, inside), inside.phi.blocks()
    responses = prior.responses[0]
    late = responses.shape[1]
    view = GridView(prior.grid, block.select(torch.zeros(late, dtype=torch.int64, device=responses.device)))
    precision = (
        posterior.precision[0].reshape(count, block.shape[0], count, -1).transpose(1, 2).flatten(2).flatten(0, 1)
    )
    pairs = (responses.conj()[:, None] * responses[None]).flatten(0, 1)
    expected = view.forms((pairs.mT @ precision).reshape(late, block.shape[0], -1))
    asked = squared_modulus(view.matched(responses.mH @ posterior.whitened.reshape(count, -1)))
    ratio = asked / expected.clamp_min(_LEAST)
    powers = prior.powers * torch.where(expected > _LEAST, ratio, 1.0).clamp_min(_LEAST_RATIO).sqrt()
    return DelayAngleCovariance(prior.responses, powers, prior.grid)
