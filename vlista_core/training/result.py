"""What training gives back."""

from __future__ import annotations

from dataclasses import dataclass


class DivergedError(RuntimeError):
    """Losses, gradients or validation figures stayed non-finite however often the rates were lowered."""


@dataclass(frozen=True)
class Record:
    """One validation."""

    step: int
    """Optimiser steps done."""
    seconds: float
    """Since the start, validation included."""
    loss: float
    """Mean training loss since the record before; NaN where no step since then was finite."""
    validation: float
    learning_rate: float
    """Of the first parameter group, in the last step."""


@dataclass(frozen=True)
class TrainingResult:
    """The outcome of `Trainer.fit`; the model itself holds the weights of `best_step`."""

    history: tuple[Record, ...]
    best_validation: float
    best_step: int
    steps: int
    seconds: float
    """Wall-clock time, drawing, validation and the time before a resume included."""
    samples_per_second: float
    """Training samples over `seconds`."""
    messages: tuple[str, ...]
    """What a reader of the result should know: non-finite losses, lowered rates, a compilation left out."""
