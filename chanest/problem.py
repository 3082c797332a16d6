"""From a scenario to samples: y = Φ vec(H) + n with fresh beams, noise and channel for every sample."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from chanest.arrays import Array
from chanest.channels.rays import Rays
from chanest.channels.source import Backend, ChannelSource
from chanest.channels.store import ChannelFile, cached_channels
from chanest.dictionaries import KroneckerMap, angular_dictionary
from chanest.frontend import BeamformingMap, FrontEnd, GridMap
from chanest.pilots import draw_beams, draw_combiners
from chanest.scenario import Scenario, as_scenario
from vlista_core.draws import Split, in_blocks, sample_generators
from vlista_core.problems import Batch, Problem


@dataclass(frozen=True)
class ChannelBatch(Batch):
    """Samples of a scenario; signal = h, ordered as `chanest.frontend.base` says, and the rays behind it."""

    rays: Rays | None = None
    """Of the first snapshot; None where nobody knows them."""

    def matrices(self) -> Tensor:
        """H as matrices, snapshot by snapshot: [batch, snapshots·subcarriers, N_r, N_t]."""
        if not isinstance(self.phi, FrontEnd):
            raise ValueError(f"phi must be a FrontEnd to tell the shape of H, got {type(self.phi).__name__}")
        return unvec(self.signal, self.phi.antennas, self.phi.snapshots * self.phi.subcarriers)


def unvec(signal: Tensor, antennas: int, subcarriers: int = 1) -> Tensor:
    """vec(H) back to matrices. signal: [batch, S·N_t·N_r] -> [batch, S, N_r, N_t]."""
    return signal.reshape(signal.shape[0], subcarriers, -1, antennas).mT


class ChannelProblem(Problem):
    """A scenario as a distribution of (vec(H), Φ, y).

    `stored` files are read in place of generating where they hold the samples asked for; the bytes are the same.
    """

    def __init__(
        self, scenario: Scenario | str | Path, *, backend: Backend = "factored", stored: tuple[ChannelFile, ...] = ()
    ) -> None:
        """scenario: one that was loaded, the name of a shipped one or the path of a .toml file."""
        self.scenario = as_scenario(scenario)
        self.source: ChannelSource = self.scenario.source(backend)
        self.stored = stored
        for file in stored:
            file.check_holds(self.scenario.channel_hash(), self.scenario.name)

    def cached(self, *splits: Split) -> "ChannelProblem":
        """The same problem with the data sets of these splits in the cache directory, generated if need be."""
        files = tuple(cached_channels(self.scenario.data_set(split)) for split in splits)
        return ChannelProblem(self.scenario, backend=self.source.backend, stored=(*self.stored, *files))

    def on_one_subcarrier(self) -> "ChannelProblem":
        """The channels of one subcarrier, measured as each is."""
        return ChannelProblem(self.scenario.on_one_subcarrier(), backend=self.source.backend)

    def with_pilots(self, count: int) -> "ChannelProblem":
        """The same channels measured with another number of pilots, at most as many as there are beams of a codebook."""
        front = self.scenario.frontend.with_pilots(count, self.arrays[1].ports)
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
    def snapshots(self) -> int:
        """L: of the channel in one sample."""
        return self.scenario.frontend.snapshots

    @property
    def users(self) -> int:
        """Of one sample, each with the transmit array; their channels are drawn apart and stacked along its antennas."""
        return self.scenario.frontend.users

    @property
    def sees_all_subcarriers_alike(self) -> bool:
        """Whether the same pilots and beams are on every subcarrier, so that what has delays of its own keeps them in y."""
        return self.subcarriers == 1 or self.scenario.frontend.pattern is None

    @property
    def signal_length(self) -> int:
        return self.snapshots * self.users * math.prod(self.source.shape)

    @property
    def measurements(self) -> int:
        front = self.scenario.frontend
        layout = front.layout(self.subcarriers)
        elements = self.subcarriers * front.pilots if layout is None else layout.elements
        return elements * (front.chains or self.source.rx.ports)

    @property
    def dtype(self) -> torch.dtype:
        return torch.complex64

    def dictionary(self, *, oversampling: float = 1.0) -> KroneckerMap:
        """See `angular_dictionary`: that of the scenario's arrays and subcarriers, for samples of one snapshot."""
        if self.snapshots > 1:
            held = f"a sample of {self.scenario.name} has {self.snapshots}"
            raise ValueError(f"a dictionary of angles and delays is for one snapshot; {held}")
        return angular_dictionary(*self.arrays, self.source.frequencies, oversampling=oversampling)

    def sample(
        self, count: int, *, seed: int, split: Split = "test", start: int = 0, snr_db: float | None = None
    ) -> ChannelBatch:
        """See Problem. snr_db None draws each sample's SNR uniformly from the scenario's range."""
        if snr_db is not None and not math.isfinite(snr_db):
            raise ValueError(f"snr_db must be a finite number or None, got {snr_db!r}")

        made: list[FrontEnd] = []

        def block(indices: range) -> tuple[Tensor, ...]:
            h, rays = self._channels(indices, seed, split)
            known = rays.tensors() if rays is not None else ()
            signal, y, noise_var, phi = self._measure(h, indices, seed, split, snr_db)
            if not made:
                made.append(phi)
            own = phi.tensors() if phi.batch is not None else ()
            return (signal, y, noise_var, *own, *known)

        signal, y, noise_var, *held = in_blocks(start, count, block)
        own = len(made[0].tensors()) if made[0].batch is not None else 0
        phi, rays = made[0].with_tensors(held[:own]) if own else made[0], held[own:]
        return ChannelBatch(signal, y, phi, noise_var, rays=Rays(*rays) if rays else None)

    def beams(self, count: int, *, seed: int, split: Split = "test", start: int = 0) -> FrontEnd:
        """Φ of the same samples."""
        phi = self.sample(count, seed=seed, split=split, start=start).phi
        if not isinstance(phi, FrontEnd):
            raise TypeError(f"a scenario measures through a FrontEnd, got {type(phi).__name__}")
        return phi

    def channels(self, count: int, *, seed: int, split: Split = "test", start: int = 0) -> Tensor:
        """h of the same samples without beams and noise: [count, n]."""

        def block(indices: range) -> tuple[Tensor, ...]:
            h, _ = self._channels(indices, seed, split)
            return (self._signals(h),)

        return in_blocks(start, count, block)[0]

    def rays(self, indices: range, *, seed: int, split: Split) -> Rays:
        """The rays behind the channels of these samples; ValueError where nobody knows them."""
        self.check_rays()
        return self.source.rays(self._first_snapshots(indices), seed=seed, split=split)

    def channels_and_rays(self, indices: range, *, seed: int, split: Split) -> tuple[Tensor, Rays]:
        """vec(H) of these samples, [k, n], and the rays behind them; ValueError where nobody knows them."""
        self.check_rays()
        h, rays = self._generated(indices, seed, split)
        if rays is None:
            raise TypeError(f"{type(self.source).__name__}.has_rays is True, but its channels came without rays")
        return self._signals(h), rays

    def check_rays(self) -> None:
        """ValueError where nobody knows the rays behind the channels."""
        drawing = ("sample", "channels", "_channels")
        if self.users > 1:
            raise ValueError(
                f"a sample of {self.scenario.name} has {self.users} users, whose rays are not those of one channel"
            )
        own = any(getattr(type(self), name) is not getattr(ChannelProblem, name) for name in drawing)
        if own or not self.source.has_rays:
            raise ValueError(
                f"{type(self).__name__ if own else self.scenario.name} brings channels of its own, whose rays nobody knows; "
                "what learns from rays (atom-lmmse, gated-lmmse, cluster-lmmse, ray-sbl) cannot be trained on it, but lmmse, "
                "gmm and the networks can"
            )

    def _channels(self, indices: range, seed: int, split: Split) -> tuple[Tensor, Rays | None]:
        """h of all snapshots of these samples, user by user, and rays of the first snapshot where there is one user.

        h: [k·users·L, subcarriers, N_r, N_t], or without subcarriers.
        """
        snapshots = self._snapshots_of(indices)
        for file in self.stored:
            if file.holds(snapshots, seed, split):
                return self._with_first_rays(*file.read(snapshots))
        return self._generated(indices, seed, split)

    def _generated(self, indices: range, seed: int, split: Split) -> tuple[Tensor, Rays | None]:
        """The same, never from a file."""
        snapshots = self._snapshots_of(indices)
        return self._with_first_rays(*self.source.channels(snapshots, seed=seed, split=split))

    def _with_first_rays(self, h: Tensor, rays: Rays | None) -> tuple[Tensor, Rays | None]:
        if rays is None or self.users > 1:
            return h, None
        return h, rays if self.snapshots == 1 else rays.select(torch.arange(0, len(h), self.snapshots))

    def _signals(self, h: Tensor) -> Tensor:
        """h of `_channels` in the order of `chanest.frontend.base`: [k, n]."""
        if self.users == 1:
            return h.mT.reshape(len(h) // self.snapshots, -1)
        tensor: Tensor = h.mT.unflatten(0, (-1, self.users, self.snapshots))
        return tensor.movedim(1, -3).reshape(len(tensor), -1)

    def _snapshots_of(self, indices: range) -> range:
        """These samples in the stream of the source, all snapshots of one user after the other."""
        each = self.users * self.snapshots
        return range(indices.start * each, indices.stop * each)

    def _first_snapshots(self, indices: range) -> range:
        """Where the samples begin in the stream of the source."""
        return range(indices.start * self.snapshots, indices.stop * self.snapshots, self.snapshots)

    def _measure(
        self, h: Tensor, indices: range, seed: int, split: Split, snr_db: float | None
    ) -> tuple[Tensor, Tensor, Tensor, FrontEnd]:
        """signal, y, noise_var and Φ, for the channels of one block."""
        generators = sample_generators(seed, split, indices, "measurement")

        def each(draw: Callable[[torch.Generator], Tensor]) -> Tensor:
            """A draw from the generator of every sample, always in this order: SNR, beams, combiners, noise."""
            return torch.stack([draw(generator) for generator in generators])

        (rx, tx), front = self.arrays, self.scenario.frontend
        chains, bits = front.chains, front.bits
        low, high = self.scenario.snr_db if snr_db is None else (snr_db, snr_db)
        noise_var = 10 ** (-each(lambda g: low + (high - low) * torch.rand((), generator=g)) / 10)
        transmit = None
        if not front.antennas_send(tx.ports):
            transmit = each(lambda g: draw_beams(front.beams, tx, front.pilots, bits=bits, generator=g))
        combiner = None
        if chains:
            draw, count = front.combiners, front.positions
            combiner = each(lambda g: draw_combiners(draw, rx, count, chains, bits=bits, generator=g))
        phi = self._front_end(transmit, combiner)
        noise = each(lambda g: torch.randn(phi.arriving, dtype=self.dtype, generator=g))
        signal = self._signals(h)
        y = phi.apply(signal) + phi.combine(noise_var.sqrt()[:, None] * noise)
        return signal, y, noise_var, phi

    def _front_end(self, transmit: Tensor | None, combiner: Tensor | None) -> FrontEnd:
        """Φ of beams [batch, N_t, pilots] and combiners [batch, positions, N_r, chains].

        Without beams every stream of the pattern is an antenna, without combiners the receiver is digital.
        """
        front, antennas = self.scenario.frontend, self.source.rx.ports
        layout = front.layout(self.subcarriers)
        if layout is None:
            assert transmit is not None
            return BeamformingMap.of(
                transmit, combiner, antennas=antennas, whiten=front.whiten, subcarriers=self.subcarriers
            )
        symbols = len(layout.pilot_symbols) // front.positions
        beams = transmit
        if beams is not None:
            beams = beams.unflatten(2, (front.positions, -1)).repeat_interleave(symbols, dim=2)
        combiner = None if combiner is None else combiner.repeat_interleave(symbols, dim=1)
        return GridMap.of(layout, beams, combiner, antennas=antennas, whiten=front.whiten, snapshots=front.snapshots)


AnyProblem = ChannelProblem | Scenario | str | Path
"""A problem, or the scenario of one: as an object, by a shipped name, by the path of a file."""


def as_problem(given: AnyProblem) -> ChannelProblem:
    """A problem as it is, or that of a scenario; a ValueError for anything else."""
    return given if isinstance(given, ChannelProblem) else ChannelProblem(given)
