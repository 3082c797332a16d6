"""Training: one `Trainer`, checked when built, with one entry point, `fit`."""

from vlista_core.training.state import DivergedError, Record, TrainingResult
from vlista_core.training.trainer import Trainer

__all__ = ["DivergedError", "Record", "Trainer", "TrainingResult"]
