"""From a scenario to samples: y = Φ vec(H) + n with fresh beams, noise and channel for every sample."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from chanest.arrays import Array
from chanest.channels.rays import Rays
from chanest.channels.source import Backend, ChannelSource
from chanest.channels.store import ChannelFile, cached_channels
from chanest.dictionaries import KroneckerMap, angular_dictionary
from chanest.frontend import BeamformingMap
from chanest.pilots import CODEBOOKS, draw_beams, draw_combiners
from chanest.scenario import Scenario
from vlista_core.draws import Split, in_blocks, sample_generators
from vlista_core.problems import Batch, Problem


@dataclass(frozen=True)
class ChannelBatch(Batch):
    """Samples of a scenario; signal = vec(H), entry k·N_t·N_r + t·N_r + r, and the rays behind it."""

    rays: Rays | None = None
    """None where nobody knows them."""

    def matrices(self) -> Tensor:
        """H as matrices: [batch, subcarriers, N_r, N_t]."""
        if not isinstance(self.phi, BeamformingMap):
            raise ValueError(f"phi must be a BeamformingMap to tell the shape of H, got {type(self.phi).__name__}")
        return unvec(self.signal, self.phi.antennas, self.phi.subcarriers)


def unvec(signal: Tensor, antennas: int, subcarriers: int = 1) -> Tensor:
    """vec(H) back to matrices. signal: [batch, S·N_t·N_r] -> [batch, S, N_r, N_t]."""
    return signal.reshape(signal.shape[0], subcarriers, -1, antennas).mT


class ChannelProblem(Problem):
    """A scenario as a distribution of (vec(H), Φ, y).

    `stored` files are read in place of generating where they hold the samples asked for; the bytes are the same.
    """

    def __init__(
        self, scenario: Scenario, *, backend: Backend = "factored", stored: tuple[ChannelFile, ...] = ()
    ) -> None:
        self.scenario = scenario
        self.source: ChannelSource = scenario.source(backend)
        self.stored = stored
        for file in stored:
            file.check_holds(scenario.channel_hash(), scenario.name)

    def cached(self, *splits: Split) -> "ChannelProblem":
        """The same problem with the data sets of these splits in the cache directory, generated if need be."""
        files = tuple(cached_channels(self.scenario.data_set(split)) for split in splits)
        return ChannelProblem(self.scenario, backend=self.source.backend, stored=(*self.stored, *files))

    def with_pilots(self, count: int) -> "ChannelProblem":
        """The same channels measured with another number of pilots, at most as many as there are beams of a codebook."""
        front = self.scenario.frontend
        most = self.arrays[1].ports if front.beams in CODEBOOKS else count
        front = front.model_copy(update={"pilots": min(count, most)})
        changed = copy.copy(self)
        changed.scenario = self.scenario.model_copy(update={"frontend": front})
        return changed

    @property
    def arrays(self) -> tuple[Array, Array]:
        """Receive and transmit array."""
        return self.source.rx, self.source.tx

    @property
    def subcarriers(self) -> int:
        """S, one for a narrowband scenario."""
        return len(self.source.frequencies or (0.0,))

    @property
    def signal_length(self) -> int:
        return math.prod(self.source.shape)

    @property
    def measurements(self) -> int:
        frontend = self.scenario.frontend
        return self.subcarriers * frontend.pilots * (frontend.chains or self.source.rx.ports)

    @property
    def dtype(self) -> torch.dtype:
        return torch.complex64

    def dictionary(self, *, oversampling: float = 1.0) -> KroneckerMap:
        """See `angular_dictionary`: that of the scenario's arrays and subcarriers."""
        return angular_dictionary(*self.arrays, self.source.frequencies, oversampling=oversampling)

    def sample(
        self, count: int, *, seed: int, split: Split = "test", start: int = 0, snr_db: float | None = None
    ) -> ChannelBatch:
        """See Problem. snr_db None draws each sample's SNR uniformly from the scenario's range."""
        if snr_db is not None and not math.isfinite(snr_db):
            raise ValueError(f"snr_db must be a finite number or None, got {snr_db!r}")

        def block(indices: range) -> tuple[Tensor, ...]:
            h, rays = self._channels(indices, seed, split)
            known = rays.tensors() if rays is not None else ()
            return (*self._measure(h, indices, seed, split, snr_db), *known)

        signal, y, noise_var, transmit, weights, factor, *rays = in_blocks(start, count, block)
        frontend = self.scenario.frontend
        held: tuple[Tensor | None, Tensor | None] = (weights, factor) if frontend.chains else (None, None)
        phi = BeamformingMap(transmit, *held, self.source.rx.ports, frontend.whiten, self.subcarriers)
        return ChannelBatch(signal, y, phi, noise_var, rays=Rays(*rays) if rays else None)

    def beams(self, count: int, *, seed: int, split: Split = "test", start: int = 0) -> BeamformingMap:
        """Φ of the same samples."""
        phi = self.sample(count, seed=seed, split=split, start=start).phi
        if not isinstance(phi, BeamformingMap):
            raise TypeError(f"a scenario measures through a BeamformingMap, got {type(phi).__name__}")
        return phi

    def channels(self, count: int, *, seed: int, split: Split = "test", start: int = 0) -> Tensor:
        """vec(H) of the same samples without beams and noise: [count, n]."""

        def block(indices: range) -> tuple[Tensor, ...]:
            h, _ = self._channels(indices, seed, split)
            return (h.mT.reshape(len(indices), -1),)

        return in_blocks(start, count, block)[0]

    def rays(self, indices: range, *, seed: int, split: Split) -> Rays:
        """The rays behind the channels of these samples; ValueError where nobody knows them."""
        self._check_rays()
        return self.source.rays(indices, seed=seed, split=split)

    def channels_and_rays(self, indices: range, *, seed: int, split: Split) -> tuple[Tensor, Rays]:
        """vec(H) of these samples, [k, n], and the rays behind them; ValueError where nobody knows them."""
        self._check_rays()
        h, rays = self.source.channels(indices, seed=seed, split=split)
        if rays is None:
            raise TypeError(f"{type(self.source).__name__}.has_rays is True, but its channels came without rays")
        return h.mT.reshape(len(indices), -1), rays

    def _check_rays(self) -> None:
        drawing = ("sample", "channels", "_channels")
        own = any(getattr(type(self), name) is not getattr(ChannelProblem, name) for name in drawing)
        if own or not self.source.has_rays:
            raise ValueError(
                f"{type(self).__name__ if own else self.scenario.name} brings channels of its own, whose rays nobody knows; "
                "what learns from rays (atom-lmmse, gated-lmmse, ray-sbl) cannot be trained on it, but lmmse, gmm and "
                "the networks can"
            )

    def _channels(self, indices: range, seed: int, split: Split) -> tuple[Tensor, Rays | None]:
        for file in self.stored:
            if file.holds(indices, seed, split):
                return file.read(indices)
        return self.source.channels(indices, seed=seed, split=split)

    def _measure(self, h: Tensor, indices: range, seed: int, split: Split, snr_db: float | None) -> tuple[Tensor, ...]:
        """signal, y, noise_var and what Φ stores, for the channels of one block."""
        generators = sample_generators(seed, split, indices, "measurement")

        def each(draw: Callable[[torch.Generator], Tensor]) -> Tensor:
            """A draw from the generator of every sample, always in this order: SNR, beams, combiners, noise."""
            return torch.stack([draw(generator) for generator in generators])

        (rx, tx), front = self.arrays, self.scenario.frontend
        pilots, chains, bits = front.pilots, front.chains, front.bits
        low, high = self.scenario.snr_db if snr_db is None else (snr_db, snr_db)
        noise_var = 10 ** (-each(lambda g: low + (high - low) * torch.rand((), generator=g)) / 10)
        transmit = each(lambda g: draw_beams(front.beams, tx, pilots, bits=bits, generator=g))
        combiner = None
        if chains:
            combiner = each(lambda g: draw_combiners(front.combiners, rx, pilots, chains, bits=bits, generator=g))
        noise = each(lambda g: torch.randn(self.subcarriers * pilots * rx.ports, dtype=self.dtype, generator=g))
        phi = BeamformingMap.of(
            transmit, combiner, antennas=rx.ports, whiten=front.whiten, subcarriers=self.subcarriers
        )
        signal = h.mT.reshape(len(indices), -1)
        y = phi.apply(signal) + phi.combine(noise_var.sqrt()[:, None] * noise)
        nothing = torch.empty(len(indices), 0)
        weights, factor = (nothing if tensor is None else tensor for tensor in (phi.weights, phi.factor))
        return signal, y, noise_var, transmit, weights, factor
