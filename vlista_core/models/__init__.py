"""The paper's networks and their baselines, one a file. Adding one is a new file and a line in MODELS."""

from vlista_core.models.alista import ALISTA
from vlista_core.models.base import UnfoldedModel
from vlista_core.models.nalista import NALISTA

MODELS: dict[str, type[UnfoldedModel]] = {
    "alista": ALISTA,
    "nalista": NALISTA,
}

__all__ = ["ALISTA", "MODELS", "NALISTA", "UnfoldedModel"]
