"""The outcome of a link: error rates with intervals, the SNR that a block error rate takes, and where they are stored."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Self

from chanest.evaluation.stored import read_rows, write_rows
from chanest.link.plan import BOUNDS, REFERENCES, ErrVar, LinkPlan
from vlista_core.tensorfile import Json

TARGET = 0.1
"""The block error rate at which receivers are compared."""
_DEVIATIONS = 1.96
"""Of a 95 % interval."""


@dataclass(frozen=True)
class LinkRow:
    """A receiver at one SNR; intervals are of 95 %."""

    name: str
    err_var: ErrVar
    snr_db: float
    blocks: int
    bler: float
    bler_low: float
    bler_high: float
    ber: float
    """Of information bits."""
    ber_low: float
    ber_high: float
    efficiency: float
    """Information bits of the blocks that arrive whole over all resource elements, training included."""
    efficiency_low: float
    efficiency_high: float
    channel_nmse_db: float | None
    """Of Ĝ, what the data meets; None for perfect knowledge."""
    scale: float | None = None
    """What the estimator's own variance was multiplied with, from validation blocks."""
    told: float | None = None
    """The error variance that stood in for one the estimator has not."""
    weights: str | None = None
    seconds: float = 0.0


def label(name: str) -> str:
    """How tables and legends call a receiver."""
    return REFERENCES.get(name, name)


def rates(bit_errors: Sequence[int], bits: int, peak: float) -> dict[str, float]:
    """The rates of a row. bit_errors: of each block; bits: information bits a block; peak: the efficiency without loss.

    The interval of the BLER is Wilson's; that of the BER takes blocks, not bits, for independent.
    """
    count = len(bit_errors)
    bler = sum(errors > 0 for errors in bit_errors) / count
    low, high = wilson(bler, count)
    ber = sum(bit_errors) / count / bits
    spread = sum((errors / bits - ber) ** 2 for errors in bit_errors) / max(count - 1, 1)
    margin = _DEVIATIONS * math.sqrt(spread / count)
    return {
        "bler": bler, "bler_low": low, "bler_high": high,
        "ber": ber, "ber_low": max(ber - margin, 0.0), "ber_high": min(ber + margin, 1.0),
        "efficiency": peak * (1 - bler), "efficiency_low": peak * (1 - high), "efficiency_high": peak * (1 - low),
    }  # fmt: skip


def wilson(share: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a probability of which `share` was seen in `count` trials."""
    square = _DEVIATIONS**2
    middle = (share + square / (2 * count)) / (1 + square / count)
    margin = _DEVIATIONS / (1 + square / count) * math.sqrt(share * (1 - share) / count + square / (4 * count**2))
    return max(middle - margin, 0.0), min(middle + margin, 1.0)


def crossing(snr_db: Sequence[float], bler: Sequence[float], target: float = TARGET) -> float | None:
    """The SNR at which the BLER falls to `target`, by interpolation of its logarithm; None where it is not in reach.

    snr_db ascends. The last fall through the target counts, and no errors at all count as a hundredth of it.
    """
    points = list(zip(snr_db, bler, strict=True))
    for (left, before), (right, after) in reversed(list(pairwise(points))):
        if before > target >= after:
            floor = max(after, target / 100)
            return left + (right - left) * math.log(before / target) / math.log(before / floor)
    return None


@dataclass(frozen=True)
class LinkResults:
    """All rows of a plan and the manifest they were run with."""

    plan: LinkPlan
    rows: tuple[LinkRow, ...]
    manifest: dict[str, Json]

    def curve(self, name: str, err_var: ErrVar = "estimated") -> list[LinkRow]:
        """The rows of a receiver by ascending SNR."""
        rows = [row for row in self.rows if (row.name, row.err_var) == (name, err_var)]
        return sorted(rows, key=lambda row: row.snr_db)

    def needed_snr(self, name: str, err_var: ErrVar = "estimated", *, field: str = "bler") -> float | None:
        """The SNR in dB at which the BLER of a receiver, or an end of its interval (`field`), falls to 10 %."""
        rows = self.curve(name, err_var)
        return crossing([row.snr_db for row in rows], [getattr(row, field) for row in rows])

    def receivers(self, err_var: ErrVar = "estimated") -> list[str]:
        """Best first, then the bounds: they know what no receiver can."""

        def rank(name: str) -> tuple[bool, float, float]:
            needed = self.needed_snr(name, err_var)
            lost = sum(row.bler for row in self.curve(name, err_var))
            return name in BOUNDS, math.inf if needed is None else needed, lost

        return sorted({row.name: None for row in self.rows}, key=rank)

    def write(self, folder: Path) -> None:
        """results.json, results.csv and manifest.json."""
        write_rows(folder, self.plan, LinkRow, self.rows, self.manifest)

    @classmethod
    def read(cls, folder: Path | str) -> Self:
        """The results stored in a folder, or a ValueError."""
        return cls(*read_rows(folder, LinkPlan, LinkRow, what="run of a link (see chanest link)"))
