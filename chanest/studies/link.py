"""BER, BLER and spectral efficiency of coded blocks in Sionna with each estimator in the receiver."""

import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pandas as pd
import torch
from torch import Tensor

from chanest.bounds.genie import GenieAngles
from chanest.estimators import estimator_names
from chanest.link import REFERENCES, SLOTS_ONLY, TRAINED_ONLY, ErrVar, LinkSetup, Precoding
from chanest.scenario import Scenario
from chanest.studies.block_errors import BlockErrors
from chanest.studies.common import ChannelStudy, level_of, load, planned_files, problem_of
from chanest.weights import usable_estimators
from vlista_core.draws import BLOCK, Split
from vlista_core.problems import check_count
from vlista_core.study import Cell, Context, Figure, Row, Table
from vlista_core.study.measuring import wilson

if TYPE_CHECKING:
    from chanest.link.blocks import Blocks, Link
    from chanest.link.precoding import Sender
    from chanest.link.receivers import Receiver
    from vlista_core.tensorfile import Json

_DEVIATIONS = 1.96
"""Of a 95 % interval of the BER."""
_BATCH, _ENTRIES = 240, 2**23
"""Blocks that a receiver is given at once, and entries of their channels; nothing depends on it but time and memory."""


class LinkStudy(ChannelStudy, LinkSetup):
    """Which receivers, at which SNRs; what a block is, is said in LinkSetup."""

    name: ClassVar[str] = "link"
    heading: ClassVar[str] = "block errors of a link"
    summary: ClassVar[str] = "Block errors of a coded link in Sionna with each estimator in the receiver."
    growing: ClassVar[frozenset[str]] = frozenset({"receivers", "snr_db"})

    receivers: tuple[str, ...]
    snr_db: tuple[float, ...] = (9.0, 11.0, 13.0, 15.0, 17.0)
    blocks: int = 1000
    validation: int = 200
    """Blocks of the validation split from which the size of an estimator's errors is learnt, at each SNR."""
    err_var: tuple[ErrVar, ...] = ("estimated",)

    def check(self) -> None:
        super().check()
        for name in ("blocks", "validation"):
            check_count(name, getattr(self, name))
        if not self.receivers or not self.err_var:
            raise ValueError("receivers and err_var must name at least one each")
        self.check_blocks()
        for name in self.receivers:
            if name not in (*estimator_names(), *REFERENCES):
                known = ", ".join((*estimator_names(), *REFERENCES))
                raise ValueError(f"unknown receiver {name!r}; known are {known}")
            if name in SLOTS_ONLY and not self.over_slots:
                raise ValueError(
                    f"{name} interpolates over slots; a block of {self.scenario.name} is flat, for which there is sionna-ls"
                )
            if name in TRAINED_ONLY and self.precoding == "hybrid":
                raise ValueError(
                    f"{name} knows the trained beams alone and cannot choose others: take precoding trained"
                )
            if name == GenieAngles.name and not GenieAngles.applies(self.problem):
                raise ValueError(f"the bound {name} is not defined for {self.scenario.name}")

    def cells(self) -> list[Cell]:
        """SNR by SNR, so that all receivers share the blocks of one."""
        self.check()
        none: Cell = {"weights": None, "calibration": None}
        files = {name: none if name in REFERENCES else planned_files(name, self.problem) for name in self.receivers}
        common: Cell = {"scenario": self.scenario.name, "blocks": self.blocks, "seed": self.seed}
        return [
            {"name": name, "snr_db": snr, **common, **files[name]} for snr in self.snr_db for name in self.receivers
        ]

    def run(self, cell: Cell, context: Context) -> Row:
        """The figures for each `err_var`, on the same blocks: {"channel_nmse_db": …, "estimated": {…}, "zero": {…}}.

        diverged: blocks that a receiver lost because its estimate was not finite or absurd; there is no NMSE then.
        """
        from chanest.link.precoding import rate, sender
        from chanest.link.receivers import receiver, usable

        name, snr = str(cell["name"]), level_of(cell)
        made = None if name in REFERENCES else load(cell, self.problem)
        setup = LinkSetup(**{field: getattr(self, field) for field in LinkSetup.model_fields})
        with torch.no_grad():
            link = _link(setup)
            learn = _blocks(setup, self.seed, "validation", self.validation, snr)
            send, facts = (
                sender(name, link, learn) if self.precoding == "hybrid" else _as_sent(receiver(name, link, learn))
            )
            errors: dict[ErrVar, list[int]] = {mode: [] for mode in self.err_var}
            rates_of_blocks: list[Tensor] = []
            off = power = 0.0
            diverged = 0
            for drawn in _blocks(setup, self.seed, "test", self.blocks, snr):
                blocks, h_hat, err_var = send(drawn)
                diverged += int((usable(h_hat) != h_hat).flatten(1).any(1).sum())
                h_hat, err_var = usable(h_hat), torch.nan_to_num(err_var, 1.0, 1.0)
                rates_of_blocks.append(rate(h_hat, err_var, blocks, link.carries_data))
                for mode in self.err_var:
                    decided = link.decode(blocks, h_hat, err_var if mode == "estimated" else torch.zeros(()))
                    wrong = (decided != blocks.bits).unflatten(1, (self.codewords, -1))
                    errors[mode] += wrong.sum(2).flatten().tolist()
                off += _power(h_hat - blocks.truth)
                power += _power(blocks.truth)
        return {
            "channel_nmse_db": 10 * math.log10(off / power) if off and not diverged else None,
            "diverged": diverged,
            "rate": float(torch.cat(rates_of_blocks).mean(dtype=torch.float64)),
            "scale": facts.get("scale"),
            "told": facts.get("err_var"),
            **{mode: rates(errors[mode], self.information_bits, self.peak_efficiency) for mode in self.err_var},
            **({} if made is None else made[1]),
        }

    def tables(self, frame: pd.DataFrame) -> list[Table]:
        """The SNR that each receiver needs with its BLER, its BER and spectral efficiency, and what err_var is worth."""
        if not len(frame):
            return []
        curves = BlockErrors(self, frame)
        efficiency = "Bits per resource element, training included"
        reached = "Bits per resource element that the streams behind the equaliser could carry, training included"
        made = [curves.needed_table(), curves.table("BER", "ber"), curves.table(efficiency, "efficiency")]
        made += [curves.table(reached, "rate")] if "rate" in frame else []
        return [*made, curves.err_var_table()] if len(self.err_var) == 2 else made

    def headline(self, frame: pd.DataFrame) -> str:
        return BlockErrors(self, frame).headline() if len(frame) else ""

    def figures(self, frame: pd.DataFrame, folder: Path) -> list[Figure]:
        from chanest.plotting.studies import link_chart

        path = folder / "bler_vs_snr.png"
        training, data = self.scenario.frontend.pilots, self.data_symbols
        held = f"{training} training symbols and {data} data symbols on {self.subcarriers}"
        if self.over_slots:
            grid = self.layout
            held = f"{grid.symbols} symbols, pilots on {grid.elements} of the resource elements, {grid.subcarriers}"
        caption = (
            f"{self.code}; a block has {held} subcarriers, {self.information_bits} information bits in one codeword of the 5G "
            "LDPC code. Every receiver has the same channels, beams, bits and noise. SNR is that of one antenna and one stream."
        )
        return [Figure.drawn("Block error rate", caption, path, link_chart(BlockErrors(self, frame)))]


def usable_receivers(scenario: Scenario, precoding: Precoding = "trained") -> tuple[list[str], dict[str, str]]:
    """The estimators that can run on a scenario now and the references, and why each of the other estimators cannot."""
    problem = problem_of(scenario)
    usable, refused = usable_estimators(problem)
    slots = problem.snapshots > 1
    references = [
        name
        for name in REFERENCES
        if (name != GenieAngles.name or GenieAngles.applies(problem))
        and (slots or name not in SLOTS_ONLY)
        and (precoding == "trained" or name not in TRAINED_ONLY)
    ]
    return usable + references, refused


def rates(bit_errors: Sequence[int], bits: int, peak: float) -> Row:
    """The rates of a row. bit_errors: of each codeword; bits: information bits in one; peak: the efficiency without loss.

    The interval of the BLER is Wilson's; that of the BER takes blocks, not bits, for independent.
    """
    count = len(bit_errors)
    wrong = sum(errors > 0 for errors in bit_errors)
    bler, (low, high) = wrong / count, wilson(wrong, count)
    ber = sum(bit_errors) / count / bits
    spread = sum((errors / bits - ber) ** 2 for errors in bit_errors) / max(count - 1, 1)
    margin = _DEVIATIONS * math.sqrt(spread / count)
    return {
        "bler": bler, "bler_low": low, "bler_high": high,
        "ber": ber, "ber_low": max(ber - margin, 0.0), "ber_high": min(ber + margin, 1.0),
        "efficiency": peak * (1 - bler), "efficiency_low": peak * (1 - high), "efficiency_high": peak * (1 - low),
    }  # fmt: skip


@lru_cache(maxsize=1)
def _link(setup: LinkSetup) -> "Link":
    """Kept from cell to cell: a code takes a second to build."""
    from chanest.link.slots import link_of

    return link_of(setup)


@lru_cache(maxsize=2)
def _blocks(setup: LinkSetup, seed: int, split: Split, count: int, snr_db: float) -> "list[Blocks]":
    """The blocks of an SNR, kept for the next receiver."""
    link = _link(setup)
    draw, most = link.draw, max(BLOCK, min(_BATCH, _ENTRIES // link.problem.signal_length // BLOCK * BLOCK))
    sizes = [(start, min(most, count - start)) for start in range(0, count, most)]
    return [draw(size, seed=seed, split=split, start=start, snr_db=snr_db) for start, size in sizes]


def _as_sent(
    receiver: "tuple[Receiver, dict[str, Json]]",
) -> "tuple[Sender, dict[str, Json]]":
    """A receiver whose blocks come through the beams that they were drawn with."""
    told, facts = receiver
    return lambda blocks: (blocks, *told(blocks)), facts


def _power(values: Tensor) -> float:
    return float(values.abs().square().sum(dtype=torch.float64))
