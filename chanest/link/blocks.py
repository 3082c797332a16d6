"""The transmit side: blocks of bits, their resource grids, and what arrives of them behind the front end."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from chanest.channels.sionna_backend import global_state_kept
from chanest.frontend import BeamformingMap
from chanest.link.setup import LinkSetup
from chanest.problem import ChannelBatch, ChannelProblem
from chanest.sionna import training_grid
from vlista_core.draws import Split, sample_generators
from vlista_core.linops import LinearMap

with global_state_kept():
    from sionna.phy.fec.ldpc import LDPC5GDecoder, LDPC5GEncoder
    from sionna.phy.mapping import Demapper, Mapper
    from sionna.phy.mimo import StreamManagement
    from sionna.phy.ofdm import LMMSEEqualizer, ResourceGrid, ResourceGridMapper


@dataclass(frozen=True)
class Blocks:
    """Blocks as the receiver gets them, and what is behind them."""

    training: ChannelBatch
    """vec(H), the T training measurements, Φ, noise and rays."""
    probes: BeamformingMap | None
    """P: vec(H) -> G of the data beams of a flat link, [streams·N_RF] rows; None where streams are antennas."""
    y: Tensor
    """The received grid: [batch, 1, N_RF, symbols, subcarriers]."""
    no: float
    bits: Tensor
    """Information bits of one codeword after the other: [batch, codewords·k]."""
    truth: Tensor
    """What perfect h_hat would be: [batch, 1, N_RF, 1, streams, symbols, subcarriers]."""

    @property
    def effective(self) -> Tensor:
        """G = WᴴHF of a flat link: [batch, streams, N_RF]."""
        assert self.probes is not None
        return split_streams(self.probes.apply(self.training.signal), self.probes)

    def __len__(self) -> int:
        return len(self.bits)


class Link:
    """Encoder, mapper and grid of a link, and the way back from estimates to bits. All of it is Sionna's.

    This one is flat, `chanest.link.slots` has the one over slots; `link_of` makes what a setup is for.
    """

    def __init__(self, setup: LinkSetup) -> None:
        self.setup = setup
        self.problem = ChannelProblem(setup.scenario)
        with global_state_kept():
            bits = setup.bits_per_symbol
            self.pilots = setup.scenario.frontend.pilots
            self.grid = self._resource_grid()
            self._encoder = LDPC5GEncoder(setup.information_bits, setup.coded_bits, num_bits_per_symbol=bits)
            self._decoder = LDPC5GDecoder(self._encoder)
            self._mapper = Mapper("qam", bits)
            self._demapper = Demapper("app", "qam", bits)
            self._to_grid = ResourceGridMapper(self.grid)
            self._equaliser = LMMSEEqualizer(self.grid, StreamManagement(np.array([[1]]), setup.sent_streams))

    def _resource_grid(self) -> ResourceGrid:
        setup = self.setup
        return training_grid(self.pilots, setup.streams, setup.data_symbols, setup.subcarriers)

    def draw(self, count: int, *, seed: int, split: Split, start: int, snr_db: float) -> Blocks:
        """Blocks start … start + count - 1; each depends on (seed, split, index, snr_db) alone."""
        batch = self.problem.sample(count, seed=seed, split=split, start=start, snr_db=snr_db)
        phi, probes = front_end(batch.phi, self.setup.streams)
        bits, noise = self._bits_and_noise(range(start, start + count), phi.chains, seed=seed, split=split)
        no = 10 ** (-snr_db / 10)
        y = self._received(bits, phi.apply(batch.signal), split_streams(probes.apply(batch.signal), probes))
        y = y + no**0.5 * noise[:, None]
        measured = y[:, 0, :, : self.pilots, 0].mT.flatten(1)
        training = ChannelBatch(batch.signal, measured, phi, torch.full((count,), no), rays=batch.rays)
        effective = split_streams(probes.apply(batch.signal), probes)
        return Blocks(training, probes, y, no, bits.to(y.real.dtype), over_grid(self, effective))

    def through(self, blocks: Blocks, beams: Tensor) -> Blocks:
        """The same training, bits and noise, with the data of a flat link through other beams: [batch, N_t, streams]."""
        probes = BeamformingMap.of(beams, antennas=self.problem.arrays[0].ports)
        effective = split_streams(probes.apply(blocks.training.signal), probes)
        sent = self._sent(blocks.bits)[:, :, self.pilots :]
        y = blocks.y.clone()
        y[:, 0, :, self.pilots :] += torch.einsum("bsc,bstf->bctf", effective - blocks.effective, sent)
        return replace(blocks, probes=probes, y=y, truth=over_grid(self, effective))

    @property
    def carries_data(self) -> Tensor:
        """Which resource elements do: [symbols, subcarriers] bool."""
        if self.setup.over_slots:
            return ~self.setup.layout.reserved
        return (torch.arange(self.grid.num_ofdm_symbols) >= self.pilots)[:, None].expand(grid_size(self))

    def _bits_and_noise(self, indices: range, chains: int, *, seed: int, split: Split) -> tuple[Tensor, Tensor]:
        """Of each block by itself: [batch, codewords·k], and noise of variance one, [batch, N_RF, symbols, subcarriers]."""
        generators = sample_generators(seed, split, indices, "link")
        held = self.setup.codewords * self.setup.information_bits
        bits = torch.stack([torch.randint(2, (held,), generator=each) for each in generators])
        shape = (chains, *grid_size(self))
        noise = torch.stack([torch.randn(shape, dtype=self.problem.dtype, generator=each) for each in generators])
        return bits, noise

    def _sent(self, bits: Tensor) -> Tensor:
        """The resource grids of these bits: [batch, streams, symbols, subcarriers]."""
        words = bits.reshape(len(bits) * self.setup.codewords, -1)
        symbols = self._mapper(self._encoder(words.to(self.problem.dtype.to_real())))
        sent: Tensor = self._to_grid(symbols.reshape(len(bits), 1, self.setup.sent_streams, -1))[:, 0]
        return sent

    def _received(self, bits: Tensor, trained: Tensor, effective: Tensor) -> Tensor:
        """What arrives without noise. The training symbols have their own beams; of them y = Φh is put in place.

        trained: Φh, [batch, T·N_RF]; effective: G, [batch, streams, N_RF].
        """
        y = torch.einsum("bsc,bstf->bctf", effective, self._sent(bits))
        y[:, :, : self.pilots, 0] = trained.reshape(len(bits), self.pilots, -1).mT
        return y[:, None]

    def decode(self, blocks: Blocks, h_hat: Tensor, err_var: Tensor) -> Tensor:
        """The information bits that a receiver with these estimates decides for: [batch, codewords·k]."""
        symbols, noise = self._equaliser(blocks.y, h_hat, err_var, torch.tensor(blocks.no))
        count = (len(symbols) * self.setup.codewords, -1)
        llr = self._demapper(symbols.reshape(count), noise.reshape(count))
        decided: Tensor = self._decoder(llr)
        return decided.reshape(len(symbols), -1)


def front_end(phi: LinearMap, streams: int) -> tuple[BeamformingMap, BeamformingMap]:
    """Φ of the pilots, whitened, and P of the data: the last `streams` beams through the last combiner.

    These pilots are trained with that combiner too, so that what the data meets has been measured.
    """
    if not isinstance(phi, BeamformingMap):
        raise ValueError(f"phi must be a BeamformingMap, got {type(phi).__name__}")
    combiner, last = phi.weights, None
    if combiner is not None:
        last = combiner[:, -1:].expand(-1, streams, -1, -1)
        combiner = torch.cat([combiner[:, :-streams], last], 1)
    training = BeamformingMap.of(phi.transmit, combiner, antennas=phi.antennas)
    return training, BeamformingMap.of(phi.transmit[:, :, -streams:], last, antennas=phi.antennas)


def split_streams(values: Tensor, probes: BeamformingMap) -> Tensor:
    """[batch, streams·N_RF] -> [batch, streams, N_RF]."""
    return values.reshape(-1, probes.pilots, probes.chains)


def over_grid(link: Link, values: Tensor) -> Tensor:
    """What holds for the whole block, in Sionna's shape. [batch, streams, N_RF] -> [batch, 1, N_RF, 1, streams, …]."""
    return values.mT[:, None, :, None, :, None, None].expand(-1, -1, -1, -1, -1, *grid_size(link))


def grid_size(link: Link) -> tuple[int, int]:
    """Symbols and subcarriers."""
    return link.grid.num_ofdm_symbols, link.grid.fft_size
