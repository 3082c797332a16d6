"""What a receiver knows of the effective channel: h_hat and err_var of every estimator, of Sionna's and of the bounds."""

from collections.abc import Callable

import torch
from torch import Tensor

from chanest.bounds.base import chunks
from chanest.bounds.genie import GenieAngles
from chanest.channels.sionna_backend import global_state_kept
from chanest.frontend import BeamformingMap
from chanest.link.blocks import Blocks, Link, front_end, split_streams
from chanest.link.setup import REFERENCES
from chanest.sionna import EstimatorBlock
from chanest.weights import get_estimator
from vlista_core.gaussian import condition
from vlista_core.tensorfile import Json

with global_state_kept():
    from sionna.phy.ofdm import LMMSEChannelEstimator, LSChannelEstimator

Receiver = Callable[[Blocks], tuple[Tensor, Tensor]]
"""h_hat and err_var over the grid, as Sionna's estimators give them: [batch, 1, N_RF, 1, streams, symbols, subcarriers]."""
_TRAINING_DRAWS = 2000
_DIVERGED = 1e6


def receiver(name: str, link: Link, validation: list[Blocks]) -> tuple[Receiver, dict[str, Json]]:
    """The receiver `name` of a link, and what the validation blocks, of the SNR it is for, have told of its errors."""
    if name == "sionna-ls":
        return _sionna(LSChannelEstimator(link.grid, interpolation_type="nn")), {}
    if name == "sionna-lmmse":
        return _sionna(_sionna_lmmse(link)), {}
    if name == "perfect":
        return lambda blocks: (over_grid(link, blocks.effective), torch.zeros(())), {}
    if name in REFERENCES:
        genie = GenieAngles(link.problem)
        return lambda blocks: _genie(genie, link, blocks), {}
    return _estimator(name, link, validation)


def _estimator(name: str, link: Link, validation: list[Blocks]) -> tuple[Receiver, dict[str, Json]]:
    """One whose variance is scaled to its errors on the validation blocks or, where it has none, is the size of these."""
    block = EstimatorBlock(link.grid, get_estimator(name, link.problem, substitute=False), pilots=link.pilots)

    def beams(blocks: Blocks) -> tuple[Tensor, Tensor, Tensor | None]:
        phi = blocks.training.phi
        assert isinstance(phi, BeamformingMap)
        return torch.tensor(blocks.no), phi.transmit, phi.weights

    found = [block.through_data_beams(blocks.y, *beams(blocks)) for blocks in validation]
    g_hat, truth = torch.cat([g_hat for g_hat, _ in found]), torch.cat([blocks.effective for blocks in validation])
    error = float((usable(g_hat) - truth).abs().square().mean(dtype=torch.float64))
    variances = [variance for _, variance in found if variance is not None]
    if variances:
        block.scale = error / float(torch.cat(variances).mean(dtype=torch.float64))
    else:
        block.err_var = error
    facts: dict[str, Json] = {"scale": block.scale if variances else None, "err_var": block.err_var}
    return lambda blocks: block(blocks.y, *beams(blocks)), facts


def _genie(genie: GenieAngles, link: Link, blocks: Blocks) -> tuple[Tensor, Tensor]:
    """The posterior mean of G = Ph and its variance over the grid where R, the angles' covariance, is known."""
    found = []
    for truth in chunks(blocks.training, genie.problem):
        probes = blocks.probes.select(truth.index).cast(truth.signal.dtype)
        posterior = condition(genie.prior(truth.rays), truth.measured, probes)
        found.append((posterior.mean, posterior.variance))
    dtype = blocks.y.dtype
    mean, variance = (torch.cat(parts) for parts in zip(*found, strict=True))
    g_hat, err_var = (split_streams(part, blocks.probes) for part in (mean.to(dtype), variance.to(dtype.to_real())))
    return over_grid(link, g_hat), over_grid(link, err_var)


def _sionna(block: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Receiver:
    return lambda blocks: block(blocks.y, torch.tensor(blocks.no))


def _sionna_lmmse(link: Link) -> LMMSEChannelEstimator:
    """Sionna's LMMSE over time, frequency and receive chains, with the covariances of G on training draws.

    In time and frequency the channel is constant, so that its covariance is its power times ones.
    """
    batch = link.problem.sample(_TRAINING_DRAWS, seed=0, split="train")
    _, probes = front_end(batch.phi, link.setup.streams)
    seen = split_streams(probes.apply(batch.signal), probes).flatten(0, 1)
    space = seen.mT @ seen.conj() / len(seen)
    power = space.diagonal().real.mean()
    time, frequency = (power * torch.ones(size, size, dtype=seen.dtype) for size in _grid_size(link))
    with global_state_kept():
        return LMMSEChannelEstimator(link.grid, time, frequency, space, order="f-t-s")


def usable(g_hat: Tensor) -> Tensor:
    """Estimates with zeros in place of what has diverged: a receiver that has none."""
    return torch.where(g_hat.abs() < _DIVERGED, g_hat, torch.zeros_like(g_hat))


def over_grid(link: Link, values: Tensor) -> Tensor:
    """What holds for the whole block, in Sionna's shape. [batch, streams, N_RF] -> [batch, 1, N_RF, 1, streams, …]."""
    return values.mT[:, None, :, None, :, None, None].expand(-1, -1, -1, -1, -1, *_grid_size(link))


def _grid_size(link: Link) -> tuple[int, int]:
    return link.grid.num_ofdm_symbols, link.grid.fft_size
