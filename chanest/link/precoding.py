"""Data through beams that are chosen from what the receiver knows of the channel, and the rate that comes of it.

The transmitter is told of the estimate without loss (reciprocity, or feedback that costs nothing). It has two phase shifters
per antenna and stream, as coarse as those of the training, and a digital part behind them.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from chanest.bounds.base import chunks
from chanest.bounds.genie import GenieAngles
from chanest.frontend import BeamformingMap
from chanest.link.blocks import Blocks, Link, over_grid, split_streams
from chanest.sionna import variance_through
from chanest.weights import get_estimator
from vlista_core.estimate import Estimator, Measurement
from vlista_core.gaussian import WhiteCovariance, condition
from vlista_core.linalg import solve_hermitian
from vlista_core.linops import DenseMap
from vlista_core.prox import squared_modulus
from vlista_core.tensorfile import Json

Sender = Callable[[Blocks], tuple[Blocks, Tensor, Tensor]]
"""Blocks -> the same blocks through chosen beams, and h_hat and err_var of these over the grid."""


class Known(NamedTuple):
    """What a receiver knows of vec(H) from the training."""

    signal: Tensor
    """[batch, n]."""
    variance: Tensor | None
    """Of the entries: [batch, n]; None where it knows none."""
    through: Callable[[BeamformingMap], Tensor | None]
    """The variance of PH for beams P: [batch, p]."""


def sender(
    name: str, link: Link, validation: list[Blocks], estimator: Estimator | None = None
) -> tuple[Sender, dict[str, Json]]:
    """The link with beams chosen by the receiver `name`, and what the validation blocks have told of its errors.

    The variance is scaled as that of a link with trained beams. estimator: in place of the one of that name.
    """
    know = _knowledge(name, link, estimator)
    exact = name in ("perfect", GenieAngles.name)
    found = [] if exact else [_through_chosen(link, blocks, know(blocks)) for blocks in validation]
    scale, size = 1.0, 0.0
    if found:
        error = torch.cat([squared_modulus(g_hat - sent.effective).flatten() for sent, g_hat, _ in found]).double()
        size = float(error.mean())
        variances = [variance for *_, variance in found if variance is not None]
        if variances:
            scale = size / float(torch.cat(variances).mean(dtype=torch.float64))

    def send(blocks: Blocks) -> tuple[Blocks, Tensor, Tensor]:
        sent, g_hat, variance = _through_chosen(link, blocks, know(blocks))
        err_var = torch.full_like(g_hat.real, size) if variance is None else scale * variance
        return sent, over_grid(link, g_hat), over_grid(link, err_var)

    told: dict[str, Json] = {} if exact else {"scale": scale, "err_var": size}
    return send, told


def hybrid_beams(channel: Tensor, variance: Tensor | None, streams: int, *, bits: int) -> Tensor:
    """F = F_RF F_BB, columns of unit norm, for the strongest directions of E[HᴴH]: [batch, N_t, streams].

    channel: Ĥ, [batch, N_r, N_t]; variance: of its entries; bits: of each phase shifter. The sum of two phase shifters has any
    amplitude: a = ½|a_max|(e^{j(θ + δ)} + e^{j(θ - δ)}). What their steps leave over is mended by F_BB, by least squares.
    """
    power = channel.mH @ channel
    if variance is not None:
        power = power + torch.diag_embed(variance.sum(1)).to(power)
    _, directions = torch.linalg.eigh(power)
    wanted = directions[:, :, -streams:].flip(2)
    amplitude = wanted.abs()
    turn = torch.arccos((amplitude / amplitude.amax(1, keepdim=True)).clamp(0.0, 1.0))
    phases = torch.cat([wanted.angle() + turn, wanted.angle() - turn], 2)
    step = 2 * math.pi / 2**bits
    shifters = torch.polar(torch.ones_like(phases), step * (phases / step).round())
    digital = solve_hermitian(_regular(shifters.mH @ shifters), shifters.mH @ wanted)
    beams: Tensor = torch.nn.functional.normalize(shifters @ digital, dim=1)
    return beams


def rate(h_hat: Tensor, err_var: Tensor, blocks: Blocks, carries_data: Tensor) -> Tensor:
    """Bits per resource element that the streams behind the LMMSE equaliser carry, pilots' share paid: [batch].

    For each stream the generalised mutual information of Gaussian symbols with a decoder that believes in the estimate. The
    equaliser gives z = bx + n, which the decoder takes for ax + CN(0, v): log2(1 + |a|²/v), and by how much E|z|² and the mean
    of |z - ax|² are off from |a|² + v and v. It is log2(1 + SINR) where the estimate is right, and less where it is not.
    Shapes as Sionna's; carries_data: [symbols, subcarriers] bool.
    """

    def at_data(values: Tensor) -> Tensor:
        """[batch, 1, N_RF, 1, streams, symbols, subcarriers] -> [batch, elements, N_RF, streams]."""
        return values.expand(blocks.truth.shape)[:, 0, :, 0][..., carries_data].permute(0, 3, 1, 2)

    channel, told, truth = at_data(h_hat), at_data(err_var).real, at_data(blocks.truth)
    noise = told.sum(3) + blocks.no
    weights = _equaliser(channel, noise)
    size = squared_modulus(weights)
    believed, crossed = weights.mH @ channel, weights.mH @ truth
    gain, rest = _own_and_others(believed)
    taken = rest + (size * noise[..., None]).sum(2)
    _, interference = _own_and_others(crossed)
    present = interference + blocks.no * size.sum(2)
    off = squared_modulus((crossed - believed).diagonal(dim1=2, dim2=3))
    arrived = squared_modulus(crossed.diagonal(dim1=2, dim2=3)) + present
    least = torch.finfo(taken.dtype).tiny
    belief = (arrived / (taken + gain).clamp_min(least) - (off + present) / taken.clamp_min(least)) / math.log(2.0)
    carried = torch.log2(1.0 + gain / taken.clamp_min(least)) + belief
    return carried.sum(1).clamp_min(0.0).sum(1) / carries_data.numel()


def _equaliser(channel: Tensor, noise: Tensor) -> Tensor:
    """W with Wᴴy the LMMSE estimate of streams of power one: [..., N_RF, streams]. noise: of each chain, [..., N_RF]."""
    chains, streams = channel.shape[-2:]
    deviation = noise.sqrt()[..., None]
    white = DenseMap((channel / deviation).reshape(-1, chains, streams))
    prior = WhiteCovariance(white.matrix.new_ones(1), streams)
    nothing, one = white.matrix.new_zeros(len(white.matrix), chains), noise.new_ones(len(white.matrix))
    posterior = condition(prior, Measurement(nothing, white, one))
    return (posterior.precision @ white.matrix).reshape(channel.shape) / deviation


def _own_and_others(crossed: Tensor) -> tuple[Tensor, Tensor]:
    """What each stream gets of itself and of the others. crossed: [batch, elements, streams, streams]."""
    power = squared_modulus(crossed)
    own = power.diagonal(dim1=2, dim2=3)
    return own, power.sum(3) - own


def _through_chosen(link: Link, blocks: Blocks, known: Known) -> tuple[Blocks, Tensor, Tensor | None]:
    """The blocks through beams chosen from what is known, Ĝ and its variance: [batch, streams, N_r] each."""
    setup, antennas = link.setup, link.problem.arrays[0].ports

    def matrices(values: Tensor | None) -> Tensor | None:
        return None if values is None else values.reshape(len(values), -1, antennas).mT

    channel = matrices(torch.nan_to_num(known.signal))
    assert channel is not None
    bits = setup.scenario.frontend.bits
    beams = hybrid_beams(channel, matrices(known.variance), setup.streams, bits=bits)
    sent = link.through(blocks, beams)
    assert sent.probes is not None
    variance = known.through(sent.probes)
    g_hat = split_streams(sent.probes.apply(known.signal), sent.probes)
    return sent, g_hat, None if variance is None else split_streams(variance, sent.probes)


def _knowledge(name: str, link: Link, estimator: Estimator | None) -> Callable[[Blocks], Known]:
    if name == "perfect":
        return lambda blocks: _certain(blocks.training.signal)
    if name == GenieAngles.name:
        genie = GenieAngles(link.problem)
        return lambda blocks: _of_genie(genie, blocks)
    chosen = get_estimator(name, link.problem, substitute=False) if estimator is None else estimator

    def estimated(blocks: Blocks) -> Known:
        training = blocks.training
        found = chosen.estimate(training.y, training.phi, training.noise_var)
        return Known(found.signal, found.variance, lambda probes: variance_through(found, probes))

    return estimated


def _certain(signal: Tensor) -> Known:
    return Known(signal, None, lambda probes: torch.zeros_like(probes.apply(signal).real))


def _of_genie(genie: GenieAngles, blocks: Blocks) -> Known:
    """The posterior where R, the angles' covariance, is known."""
    truths = list(chunks(blocks.training, genie.problem))
    dtype = blocks.y.dtype
    found = [condition(genie.prior(truth.rays), truth.measured) for truth in truths]

    def through(probes: BeamformingMap) -> Tensor:
        each = [
            condition(genie.prior(truth.rays), truth.measured, probes.select(truth.index).cast(truth.signal.dtype))
            for truth in truths
        ]
        return torch.cat([posterior.variance for posterior in each]).to(dtype.to_real())

    mean = torch.cat([posterior.mean for posterior in found]).to(dtype)
    return Known(mean, torch.cat([posterior.variance for posterior in found]).to(dtype.to_real()), through)


def _regular(gram: Tensor) -> Tensor:
    """A Gram matrix whose columns may coincide, as those of coarse phase shifters do."""
    least = 1e-4 * gram.diagonal(dim1=1, dim2=2).real.mean(1)
    identity = torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device)
    return gram + least[:, None, None] * identity
