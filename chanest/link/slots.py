"""A link over slots: a channel that changes over time and frequency, streams that are antennas, pilots anywhere on the grid."""

import torch
from torch import Tensor

from chanest.channels.sionna_backend import global_state_kept
from chanest.frontend import GridMap
from chanest.link.blocks import Blocks, Link
from chanest.link.setup import LinkSetup
from chanest.problem import ChannelBatch
from vlista_core.draws import Split

with global_state_kept():
    from sionna.phy.ofdm import PilotPattern, ResourceGrid

_SPACING = 30e3
"""Hz; no block of this link asks for it."""
_BLOCK = 64
"""Training slots at once."""


class SlotLink(Link):
    """A block is a slot of the scenario: its pilots where the pattern has them, data of all antennas everywhere else."""

    def draw(self, count: int, *, seed: int, split: Split, start: int, snr_db: float) -> Blocks:
        """Blocks start … start + count - 1; each depends on (seed, split, index, snr_db) alone."""
        batch = self.problem.sample(count, seed=seed, split=split, start=start, snr_db=snr_db)
        phi = batch.phi
        assert isinstance(phi, GridMap)
        bits, noise = self._bits_and_noise(range(start, start + count), phi.antennas, seed=seed, split=split)
        no = 10 ** (-snr_db / 10)
        h = batch.signal.reshape(count, phi.snapshots, phi.subcarriers, -1, phi.antennas)
        y = torch.einsum("blftr,btlf->brlf", h, self._sent(bits)) + no**0.5 * noise
        measured = phi.collect(y.permute(0, 2, 3, 1))
        training = ChannelBatch(batch.signal, measured, phi, torch.full((count,), no), rays=batch.rays)
        truth = h.permute(0, 4, 3, 1, 2)[:, None, :, None]
        return Blocks(training, None, y[:, None], no, bits.to(y.real.dtype), truth)

    def _resource_grid(self) -> ResourceGrid:
        pilots = self.setup.layout
        reserved = pilots.reserved.expand(1, pilots.streams, -1, -1).contiguous()
        pattern = PilotPattern(reserved, pilots.values[:, pilots.reserved][None])
        return ResourceGrid(
            pilots.symbols, pilots.subcarriers, _SPACING, num_streams_per_tx=pilots.streams, pilot_pattern=pattern
        )


def link_of(setup: LinkSetup) -> Link:
    """The link of a setup: over slots where the scenario has such, flat otherwise."""
    return SlotLink(setup) if setup.over_slots else Link(setup)


def covariances(link: Link, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of training channels along time, frequency and receive antennas: E hhᴴ along each, the others averaged."""
    problem = link.problem
    totals = [torch.zeros((), dtype=torch.complex128)] * 3
    for start in range(0, count, _BLOCK):
        h = problem.channels(min(_BLOCK, count - start), seed=0, split="train", start=start)
        grid = h.reshape(len(h), problem.snapshots, problem.subcarriers, -1, problem.arrays[0].ports)
        for number, axis in enumerate((1, 2, 4)):
            rows = grid.movedim(axis, 0).flatten(1)
            totals[number] = totals[number] + rows @ rows.mH * (len(rows) / grid.numel() * len(h) / count)
    time, frequency, space = (total.to(problem.dtype) for total in totals)
    return time, frequency, space
