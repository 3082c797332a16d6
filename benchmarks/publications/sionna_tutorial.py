"""Sionna's tutorial on MIMO-OFDM over CDL: the tables that its notebook holds, with our channels, then with our estimator.

A slot of 14 symbols and 60 subcarriers, 4 streams to 8 antennas, QPSK, 5G LDPC of rate ½, LMMSE equaliser. The notebook gives
every channel mean power one, and so is done here. Its subcarriers have a gap of one at the carrier, which ours have not.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor

import chanest
from chanest.channels.sionna_backend import global_state_kept
from chanest.problem import ChannelProblem
from chanest.studies.published import comparison
from publications.publication import Publication
from publications.scm import SCENARIOS
from vlista_core.study import Cell, Context, Row
from vlista_core.study.measuring import wilson
from vlista_core.tensorfile import Json

_NOTEBOOK = "tutorials/phy/MIMO_OFDM_Transmissions_over_CDL.ipynb"
_SCENARIO = "sionna_mimo_ofdm"
_BATCH, _SEED = 32, 1
_BITS, _RATE = 2, 0.5


@dataclass(frozen=True)
class Curve:
    """One table of the notebook: where it stands, and what it was made with."""

    marker: str
    """With which the cell of the notebook begins."""
    place: int
    """Of the table among those that the cell printed."""
    model: str
    speed: float
    prefix: int
    perfect: bool
    slots: Mapping[int, int]
    """Eb/N0 in dB that are run, and on how many slots: the more, the rarer errors are."""


_CURVES = {
    "CDL-A, perfect CSI": Curve("UL_SIMS = {", 0, "A", 0.0, 6, True, {-5: 512, 3: 1024, 11: 4096, 15: 4096}),
    "CDL-C at 3 m/s, LS": Curve("CP_SIMS = {", 0, "C", 3.0, 20, False, {0: 512, 4: 1024, 8: 2048}),
}


class SionnaTutorial(Publication):
    """Block error rates; the receiver is Sionna's, installed with this package, and the clone has the tables alone."""

    name: ClassVar[str] = "sionna"
    repository: ClassVar[str] = "NVlabs/sionna"
    commit: ClassVar[str] = "20d2bcaec8d43ec38f8ab6da6c390b5f84c237b4"
    files: ClassVar[tuple[str, ...]] = (_NOTEBOOK,)

    def comparisons(self, samples: int | None) -> tuple[str, ...]:
        return tuple(
            comparison(self.name, setting, f"Eb/N0 {level} dB", samples or slots)
            for setting, curve in _CURVES.items()
            for level, slots in curve.slots.items()
        )

    def compare(self, cell: Cell, context: Context) -> Row:
        curve = _CURVES[str(cell["setting"])]
        level = int(str(cell["at"]).split()[1])
        link = TutorialLink(curve)
        receivers: dict[str, Receiver] = {"perfect CSI": link.perfect}
        if not curve.perfect:
            receivers = {"Sionna LS": link.least_squares, "slot-lmmse": link.ours, **receivers}
        errors, seconds = link.run(receivers, int(str(cell["samples"])), float(level))
        blocks = link.streams * int(str(cell["samples"]))
        entries: dict[str, dict[str, Json]] = {
            name: {
                "name": name,
                "found": errors[name] / blocks,
                "interval": list(wilson(errors[name], blocks)),
                "ms": round(1e3 * seconds[name], 4),
            }
            for name in receivers
        }
        printed = printed_rates((self.clone / _NOTEBOOK).read_text(encoding="utf-8"), curve)[level]
        theirs = entries["perfect CSI" if curve.perfect else "Sionna LS"]
        theirs["printed"] = printed
        bounds: list[Json] = [] if curve.perfect else [entries["perfect CSI"]]
        mine: list[Json] = [] if curve.perfect else [entries["slot-lmmse"]]
        return {"measure": "BLER", "theirs": [theirs], "ours": mine, "bounds": bounds, "blocks": blocks, "seed": _SEED}


def printed_rates(notebook: str, curve: Curve) -> dict[int, float]:
    """Eb/N0 in dB -> block error rate, of one table that a notebook has printed; ValueError where it has none."""
    for cell in json.loads(notebook)["cells"]:
        if "".join(cell["source"]).startswith(curve.marker):
            text = "".join(line for output in cell["outputs"] for line in output.get("text", ()))
            tables = text.split("EbNo [dB]")[1:]
            lines = re.findall(r"^ +(-?\d+)\.0 \| [\d.e+-]+ \| ([\d.e+-]+) \|", tables[curve.place], re.MULTILINE)
            return {int(level): float(rate) for level, rate in lines}
    raise ValueError(f"{_NOTEBOOK} has no cell that begins with {curve.marker!r}")


Receiver = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(y, noise variance, truth) -> h_hat, err_var as Sionna's estimators give them."""


class TutorialLink:
    """The slot of the notebook: our channels, Sionna's transmitter and receiver."""

    def __init__(self, curve: Curve) -> None:
        self.curve = curve
        scenario = chanest.load_scenario(SCENARIOS / f"{_SCENARIO}.toml")
        speed = (curve.speed, curve.speed)
        channel = scenario.channel.model_copy(update={"models": (curve.model,), "speed": speed})
        self.problem = ChannelProblem(scenario.model_copy(update={"channel": channel}))
        self.trained_for = ChannelProblem(scenario)
        self.antennas, self.streams = (array.ports for array in self.problem.arrays)
        with global_state_kept():
            self._build()

    def _build(self) -> None:
        from sionna.phy.fec.ldpc import LDPC5GDecoder, LDPC5GEncoder
        from sionna.phy.mapping import Demapper, Mapper
        from sionna.phy.mimo import StreamManagement
        from sionna.phy.ofdm import LMMSEEqualizer, LSChannelEstimator, ResourceGrid, ResourceGridMapper

        self.grid = ResourceGrid(
            num_ofdm_symbols=14, fft_size=72, subcarrier_spacing=15e3, num_tx=1, num_streams_per_tx=self.streams,
            cyclic_prefix_length=self.curve.prefix, num_guard_carriers=(5, 6), dc_null=True,
            pilot_pattern="kronecker", pilot_ofdm_symbol_indices=[2, 11],
        )  # fmt: skip
        coded = int(self.grid.num_data_symbols) * _BITS
        self.length = int(coded * _RATE)
        encoder = LDPC5GEncoder(self.length, coded)
        self.encoder, self.mapper = encoder, Mapper("qam", _BITS)
        self.place, self.estimator = (
            ResourceGridMapper(self.grid),
            LSChannelEstimator(self.grid, interpolation_type="nn"),
        )
        self.equalizer = LMMSEEqualizer(self.grid, StreamManagement([[1]], self.streams))
        self.demapper, self.decoder = Demapper("app", "qam", _BITS), LDPC5GDecoder(encoder, hard_out=True)
        self.used = torch.as_tensor(self.grid.effective_subcarrier_ind)

    def perfect(self, y: Tensor, no: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
        return truth, torch.zeros(())

    def least_squares(self, y: Tensor, no: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = self.estimator(y, no)
        return found

    def ours(self, y: Tensor, no: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = self._block(y, no)
        return found

    @cached_property
    def _block(self) -> Any:
        from chanest.sionna import EstimatorBlock

        estimator = chanest.get_estimator("slot-lmmse", self.trained_for, substitute=False)
        return EstimatorBlock(self.grid, estimator)

    @torch.no_grad()
    def run(self, receivers: dict[str, Receiver], slots: int, level: float) -> tuple[dict[str, int], dict[str, float]]:
        """Block errors of each receiver on the same slots, and process time of one thread that its estimate takes per slot."""
        from sionna.phy.utils import ebnodb2no

        no = torch.as_tensor(ebnodb2no(level, _BITS, _RATE, self.grid)).float()
        errors, seconds = dict.fromkeys(receivers, 0), dict.fromkeys(receivers, float("inf"))
        starts = [*range(0, slots, _BATCH), slots]
        for first, last in pairwise(starts):
            y, truth, bits = self._sent(first, last - first, no)
            for name, receiver in receivers.items():
                begin = time.process_time()
                h_hat, variance = receiver(y, no, truth)
                seconds[name] = min(seconds[name], (time.process_time() - begin) / len(y))
                x_hat, left = self.equalizer(y, h_hat, variance, no)
                decoded = self.decoder(self.demapper(x_hat, left))
                errors[name] += int((decoded != bits).any(-1).sum())
        return errors, seconds

    def _sent(self, first: int, count: int, no: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """y and the channel as Sionna has them, and the bits, of slots first … first + count - 1."""
        generator = torch.Generator().manual_seed(_SEED + first)
        h = self.problem.channels(count, seed=_SEED, split="test", start=first)
        h = h.reshape(count, self.problem.snapshots, self.problem.subcarriers, self.streams, self.antennas)
        h = h / h.abs().square().mean((1, 2, 3, 4), keepdim=True).sqrt()
        bits = torch.randint(2, (count, 1, self.streams, self.length), generator=generator).float()
        x = self.place(self.mapper(self.encoder(bits)))[:, 0]
        y = torch.zeros(count, self.antennas, *x.shape[2:], dtype=torch.complex64)
        y[..., self.used] = torch.einsum("blftr,btlf->brlf", h, x[..., self.used])
        noise = torch.randn(y.shape, dtype=torch.complex64, generator=generator)
        truth = h.permute(0, 4, 3, 1, 2)[:, None, :, None]
        return (y + no.sqrt() * noise)[:, None], truth, bits
