"""What a receiver knows of the effective channel: h_hat and err_var of every estimator, of Sionna's and of the bounds."""

from collections.abc import Callable

import torch
from torch import Tensor

from chanest.bounds.base import chunks
from chanest.bounds.genie import GenieAngles
from chanest.channels.sionna_backend import global_state_kept
from chanest.frontend import BeamformingMap
from chanest.link.blocks import Blocks, Link, front_end, grid_size, over_grid, split_streams
from chanest.link.interpolation import LMMSEInterpolation
from chanest.link.setup import REFERENCES
from chanest.link.slots import covariances
from chanest.sionna import EstimatorBlock
from chanest.weights import get_estimator
from vlista_core.estimate import Estimator
from vlista_core.gaussian import condition
from vlista_core.tensorfile import Json

with global_state_kept():
    from sionna.phy.ofdm import LMMSEChannelEstimator, LSChannelEstimator

Receiver = Callable[[Blocks], tuple[Tensor, Tensor]]
"""h_hat and err_var over the grid, as Sionna's estimators give them: [batch, 1, N_RF, 1, streams, symbols, subcarriers]."""
_TRAINING_DRAWS = 2000
_TRAINING_SLOTS = 1000
_ORDERS, _ORDER_BLOCKS = ("t-f-s", "f-t-s", "s-t-f", "s-f-t"), 8
_LARGE, _TRAINING_ENTRIES = 2**18, 2**27
"""Entries of a slot from which on covariances are those of fewer slots, and antennas, whose errors differ once they are
filtered, are the last axis in any order."""
_DIVERGED = 1e6


def receiver(
    name: str, link: Link, validation: list[Blocks], estimator: Estimator | None = None
) -> tuple[Receiver, dict[str, Json]]:
    """The receiver `name` of a link, and what the validation blocks, of the SNR it is for, have told of its errors.

    estimator: in place of the one of that name with its weights.
    """
    if name == "sionna-ls":
        return _sionna(LSChannelEstimator(link.grid, interpolation_type="nn")), {}
    if name == "sionna-linear":
        return _sionna(LSChannelEstimator(link.grid, interpolation_type="lin")), {}
    if name == "sionna-lmmse":
        return _sionna_lmmse(link, validation)
    if name == "perfect":
        return lambda blocks: (blocks.truth, torch.zeros(())), {}
    if name in REFERENCES:
        genie = GenieAngles(link.problem)
        return lambda blocks: _genie(genie, link, blocks), {}
    chosen = get_estimator(name, link.problem, substitute=False) if estimator is None else estimator
    return _estimator(chosen, link, validation)


def _estimator(estimator: Estimator, link: Link, validation: list[Blocks]) -> tuple[Receiver, dict[str, Json]]:
    """One whose variance is scaled to its errors on the validation blocks or, where it has none, is the size of these."""
    pilots = 0 if link.setup.over_slots else link.pilots
    block = EstimatorBlock(link.grid, estimator, pilots=pilots)

    def beams(blocks: Blocks) -> tuple[Tensor, Tensor, Tensor | None]:
        phi = blocks.training.phi
        assert isinstance(phi, BeamformingMap)
        return torch.tensor(blocks.no), phi.transmit, phi.weights

    def over_slot(blocks: Blocks) -> tuple[Tensor, Tensor | None]:
        h_hat, err_var = block(blocks.y, torch.tensor(blocks.no))
        return h_hat, err_var

    def over_block(blocks: Blocks) -> tuple[Tensor, Tensor | None]:
        return block.through_data_beams(blocks.y, *beams(blocks))

    error = told = 0.0
    count, knows = 0, True
    for blocks in validation:
        h_hat, variance = (over_block if pilots else over_slot)(blocks)
        truth = blocks.effective if pilots else blocks.truth
        error += float((usable(h_hat) - truth).abs().square().sum(dtype=torch.float64))
        count += truth.numel()
        knows = knows and variance is not None
        told += 0.0 if variance is None else float(variance.sum(dtype=torch.float64))
    if knows:
        block.scale = error / told
    else:
        block.err_var = error / count
    facts: dict[str, Json] = {"scale": block.scale if knows else None, "err_var": block.err_var}
    return lambda blocks: block(blocks.y, *beams(blocks)) if pilots else block(blocks.y, torch.tensor(blocks.no)), facts


def _genie(genie: GenieAngles, link: Link, blocks: Blocks) -> tuple[Tensor, Tensor]:
    """The posterior mean of G = Ph and its variance over the grid where R, the angles' covariance, is known."""
    found, beams = [], blocks.probes
    assert beams is not None
    for truth in chunks(blocks.training, genie.problem):
        probes = beams.select(truth.index).cast(truth.signal.dtype)
        posterior = condition(genie.prior(truth.rays), truth.measured, probes)
        found.append((posterior.mean, posterior.variance))
    dtype = blocks.y.dtype
    mean, variance = (torch.cat(parts) for parts in zip(*found, strict=True))
    g_hat, err_var = (split_streams(part, beams) for part in (mean.to(dtype), variance.to(dtype.to_real())))
    return over_grid(link, g_hat), over_grid(link, err_var)


def _sionna(block: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Receiver:
    return lambda blocks: block(blocks.y, torch.tensor(blocks.no))


def _sionna_lmmse(link: Link, validation: list[Blocks]) -> tuple[Receiver, dict[str, Json]]:
    """Sionna's LMMSE over time, frequency and receive chains, with covariances of training draws.

    Over slots the axes are taken in the order that is best on the validation blocks; a flat channel has no such.
    """
    if not link.setup.over_slots:
        return _sionna(_lmmse(link, *_flat_covariances(link), "f-t-s")), {}
    large = link.problem.signal_length > _LARGE
    known = covariances(link, _TRAINING_ENTRIES // link.problem.signal_length if large else _TRAINING_SLOTS)
    blocks, some = validation[0], slice(_ORDER_BLOCKS)
    tried: dict[str, tuple[float, LMMSEInterpolation]] = {}
    for order in _ORDERS[: 2 if large else None]:
        made = LMMSEInterpolation(link.setup.layout, *known, order=order, no=blocks.no)
        wrong = made(blocks.y[some])[0] - blocks.truth[some]
        tried[order] = float(wrong.abs().square().mean(dtype=torch.float64)), made
    best = min(tried, key=lambda order: tried[order][0])
    return lambda blocks: tried[best][1](blocks.y), {"order": best}


def _flat_covariances(link: Link) -> tuple[Tensor, Tensor, Tensor]:
    """Of G along time, frequency and receive chains: a flat and constant channel has its power times ones along two."""
    batch = link.problem.sample(_TRAINING_DRAWS, seed=0, split="train")
    _, probes = front_end(batch.phi, link.setup.streams)
    seen = split_streams(probes.apply(batch.signal), probes).flatten(0, 1)
    space = seen.mT @ seen.conj() / len(seen)
    power = space.diagonal().real.mean()
    time, frequency = (power * torch.ones(size, size, dtype=seen.dtype) for size in grid_size(link))
    return time, frequency, space


def _lmmse(link: Link, time: Tensor, frequency: Tensor, space: Tensor, order: str) -> LMMSEChannelEstimator:
    with global_state_kept():
        return LMMSEChannelEstimator(link.grid, time, frequency, space, order=order)


def usable(g_hat: Tensor) -> Tensor:
    """Estimates with zeros in place of what has diverged: a receiver that has none."""
    return torch.where(g_hat.abs() < _DIVERGED, g_hat, torch.zeros_like(g_hat))
