"""Learning rates as a function of progress, and the plateau rule."""

from __future__ import annotations

import math
from typing import Literal

Schedule = Literal["plateau", "cosine", "constant"]

PLATEAU_DROP = 0.1
"""A plateau divides the rates by ten, as in the paper."""
PLATEAU_FLOOR = 1e-3
"""Plateaus lower the rates no further than to this share of where they started."""


def rate_factor(schedule: Schedule, progress: float, warmup: float) -> float:
    """What multiplies every group's learning rate once the share `progress` of the budget is spent.

    The rate rises linearly over the share `warmup`, then stays (plateau, constant) or follows half a cosine to zero.
    """
    if progress < warmup:
        return max(progress / warmup, 1e-3)
    if schedule != "cosine":
        return 1.0
    share = (min(progress, 1.0) - warmup) / (1.0 - warmup)
    return 0.5 * (1.0 + math.cos(math.pi * share))


def plateau(validations: list[float], since: int, patience: int) -> bool:
    """Whether `patience` validations have passed since the best one and since the last drop.

    `since`: how many validations there were at the last drop.
    """
    best = validations.index(min(validations))
    return len(validations) - max(best + 1, since) >= patience
