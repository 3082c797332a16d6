"""Support selection of LISTA-CPSS (Chen et al. 2018): how many of the largest entries a layer leaves unshrunk."""

from __future__ import annotations

SELECTION_STEP, SELECTION_MOST = 0.012, 0.13


def selected_share(t: int, selection: bool = True) -> float:
    """Share p_t of the entries that layer t = 0, 1, … may leave unshrunk: 1.2 % more a layer, at most 13 %."""
    return min(SELECTION_STEP * (t + 1), SELECTION_MOST) if selection else 0.0
