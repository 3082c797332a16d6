"""The work of one cell: blocks through the link with one receiver at one SNR, in this process or in a worker alike."""

from __future__ import annotations

import json
import math
import time
from functools import lru_cache

import torch
from torch import Tensor

from chanest.link.blocks import Blocks, Link
from chanest.link.plan import Cell, ErrVar, LinkPlan, receiver_digest
from chanest.link.receivers import over_grid, receiver, usable
from chanest.link.results import rates
from chanest.problem import ChannelProblem
from vlista_core.draws import Split
from vlista_core.tensorfile import Json

_BATCH = 250
"""Blocks that a receiver is given at once; nothing depends on it but time."""


def run_cell(cell: Cell) -> dict[str, Json]:
    """The figures of a receiver for each `err_var` of the plan, on the same blocks: {"estimated": {…}, "zero": {…}}."""
    plan = LinkPlan.of_cell(cell)
    if receiver_digest(cell["name"], ChannelProblem(plan.scenario)) != cell["weights"]:
        raise ValueError(
            f"the weights of {cell['name']} have changed, or differ on a worker, since the link was planned"
        )
    begin = time.perf_counter()
    with torch.no_grad():
        link = _link(json.dumps(cell["plan"]))
        told, facts = receiver(cell["name"], link, _draw(link, cell, "validation", plan.validation))
        errors: dict[ErrVar, list[int]] = {mode: [] for mode in plan.err_var}
        off = power = 0.0
        for blocks in _draw(link, cell, "test", plan.blocks):
            h_hat, err_var = told(blocks)
            h_hat, err_var = usable(h_hat), torch.nan_to_num(err_var, 1.0, 1.0)
            for mode in plan.err_var:
                decided = link.decode(blocks, h_hat, err_var if mode == "estimated" else torch.zeros(()))
                errors[mode] += (decided != blocks.bits).sum(1).tolist()
            off += _power(h_hat[..., -1, -1] - over_grid(link, blocks.effective)[..., -1, -1])
            power += _power(blocks.effective)
    shared: dict[str, Json] = {
        "blocks": plan.blocks,
        "channel_nmse_db": 10 * math.log10(off / power) if off else None,
        "scale": facts.get("scale"),
        "told": facts.get("err_var"),
        "seconds": time.perf_counter() - begin,
    }
    peak = plan.peak_efficiency
    return {mode: {**shared, **rates(errors[mode], plan.information_bits, peak)} for mode in plan.err_var}


@lru_cache(maxsize=1)
def _link(plan: str) -> Link:
    """Kept from cell to cell: a code takes a second to build."""
    content = json.loads(plan)
    return Link(LinkPlan.from_json({**content, "receivers": ["perfect"], "snr_db": [0.0]}))


def _draw(link: Link, cell: Cell, split: Split, count: int) -> list[Blocks]:
    return _blocks(json.dumps(cell["plan"]), cell["snr_db"], split, count)


@lru_cache(maxsize=2)
def _blocks(plan: str, snr_db: float, split: Split, count: int) -> list[Blocks]:
    """The blocks of an SNR, kept for the next receiver."""
    link = _link(plan)
    return [
        link.draw(min(_BATCH, count - start), seed=link.plan.seed, split=split, start=start, snr_db=snr_db)
        for start in range(0, count, _BATCH)
    ]


def _power(values: Tensor) -> float:
    return float(values.abs().square().sum(dtype=torch.float64))
