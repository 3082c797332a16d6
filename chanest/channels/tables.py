"""The CDL tables of TR 38.901 clause 7.7.1, read from the files that Sionna ships (without importing Sionna)."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

CdlModel = Literal["A", "B", "C", "D", "E"]
RAYS_PER_CLUSTER = 20

_TABLE_FOLDER = ("phy", "channel", "tr38901", "models", "v19_2")
# Table 7.5-3: offsets of the rays of a cluster for an angular spread of one degree; each with both signs.
_OFFSETS = (0.0447, 0.1413, 0.2492, 0.3715, 0.5129, 0.6797, 0.8844, 1.1481, 1.5195, 2.1551)


@dataclass(frozen=True)
class CdlTable:
    """One model with its rays spread out and not yet coupled; clusters in order of delay, radians, float64."""

    delays: Tensor
    """In units of the delay spread: [clusters]."""
    powers: Tensor
    """Diffuse clusters, summing to one: [clusters]."""
    aoa: Tensor
    """[clusters, rays]; aod, zoa and zod alike."""
    aod: Tensor
    zoa: Tensor
    zod: Tensor
    xpr: float
    k_factor: float
    los_angles: tuple[float, float, float, float]
    """aoa, aod, zoa, zod; zeros without a line of sight."""

    def reversed(self) -> CdlTable:
        """The table of the opposite link direction: departure and arrival exchanged."""
        aoa, aod, zoa, zod = self.los_angles
        return CdlTable(
            self.delays,
            self.powers,
            self.aod,
            self.aoa,
            self.zod,
            self.zoa,
            self.xpr,
            self.k_factor,
            (aod, aoa, zod, zoa),
        )


@lru_cache
def cdl_table(model: CdlModel) -> CdlTable:
    """The downlink table of CDL-`model`."""
    content = json.loads((_table_folder() / f"CDL-{model}.json").read_text(encoding="utf-8"))
    powers = 10 ** (torch.tensor(content["powers"], dtype=torch.float64) / 10)
    delays = torch.tensor(content["delays"], dtype=torch.float64)
    angles = {name: torch.tensor(content[name], dtype=torch.float64) for name in ("aoa", "aod", "zoa", "zod")}
    first = 1 if content["los"] else 0
    diffuse = powers[first:].sum()
    los_angles = [math.radians(float(values[0])) if first else 0.0 for values in angles.values()]
    order = torch.argsort(delays[first:], stable=True)
    offsets = torch.tensor([sign * offset for offset in _OFFSETS for sign in (1, -1)], dtype=torch.float64)
    spreads = {"aoa": "cASA", "aod": "cASD", "zoa": "cZSA", "zod": "cZSD"}
    spread_out = {
        name: torch.deg2rad(angles[name][first:][order, None] + float(content[spread]) * offsets)
        for name, spread in spreads.items()
    }
    return CdlTable(
        delays=delays[first:][order],
        powers=powers[first:][order] / diffuse,
        **spread_out,
        xpr=10 ** (float(content["xpr"]) / 10),
        k_factor=float(powers[0] / diffuse) if first else 0.0,
        los_angles=(los_angles[0], los_angles[1], los_angles[2], los_angles[3]),
    )


def _table_folder() -> Path:
    found = find_spec("sionna")
    for location in (found.submodule_search_locations or []) if found else []:
        folder = Path(location).joinpath(*_TABLE_FOLDER)
        if folder.is_dir():
            return folder
    raise ValueError(
        "the CDL tables were not found: install sionna-no-rt 2.2 or newer (pip install 'sionna-no-rt>=2.2')"
    )
