"""The state of a run and its result, and the file from which a killed run goes on, in safetensors and JSON."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, cast

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

from vlista_core import tensorfile
from vlista_core.tensorfile import Json, Kind
from vlista_core.validation import printable, sentence

RESUME = Kind("training", "file to resume training from", format=2, parts=(("run", dict), ("result", dict)))


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
    details: dict[str, list[float]] = field(default_factory=dict)
    """What the metric has in its attribute `details`, if it has one, after this validation."""


@dataclass
class TrainingResult:
    """Where a run stands besides its tensors, and its outcome; the model itself holds the weights of `best_step`."""

    history: tuple[Record, ...] = ()
    best_validation: float = math.nan
    best_step: int = 0
    steps: int = 0
    seconds: float = 0.0
    """Wall-clock time, drawing, validation and the time before a resume included."""
    messages: tuple[str, ...] = ()
    """What a reader of the result should know: non-finite losses, lowered rates, a compilation left out."""
    failures: int = 0
    """Losses, gradients and validation figures that were not finite."""
    scale: float = 1.0
    """Product of all drops of the learning rates."""
    plateau_from: int = 0
    """The plateau rule looks at the history from here on."""
    drops: int = 0
    """How often a plateau has divided the rates."""
    ended: Literal["budget", "plateau"] = "budget"
    """Why training ended: the budget was spent, or the last plateau was reached (`until_plateau`)."""


@dataclass
class Snapshot:
    """Copies of a model's and an optimiser's tensors; those of the optimiser are named "index.key"."""

    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]

    @classmethod
    def of(cls, model: nn.Module, optimizer: torch.optim.Optimizer) -> "Snapshot":
        moments = {
            f"{index}.{key}": value.detach().clone()
            for index, values in optimizer.state_dict()["state"].items()
            for key, value in values.items()
        }
        return cls({name: value.detach().clone() for name, value in model.state_dict().items()}, moments)

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Put the copies back; the snapshot stays as it is."""
        model.load_state_dict(self.model)
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in self.optimizer.items():
            index, key = name.split(".", 1)
            state.setdefault(int(index), {})[key] = value.clone()
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def write(
    path: Path, result: TrainingResult, current: Snapshot, best: Mapping[str, Tensor] | None, run: Mapping[str, Json]
) -> None:
    """Write the state of a run; `run` says what run it is, so that no other goes on from it."""
    parts = {"model": current.model, "optimizer": current.optimizer, "best": best or {}}
    tensors = {f"{part}.{name}": value for part, values in parts.items() for name, value in values.items()}
    tensorfile.write(path, RESUME, tensors, {"run": dict(run), "result": cast(Json, asdict(result))})


def read(
    path: Path, model: nn.Module, run: Mapping[str, Json]
) -> tuple[TrainingResult, Snapshot, dict[str, Tensor] | None]:
    """The state in `path`, or a ValueError: a damaged file, one of another kind, one of another run."""
    tensors, header = tensorfile.read(path, RESUME)
    written = cast(dict[str, Json], header["run"])
    if names := [name for name in {**written, **run} if written.get(name) != run.get(name)]:
        before, now = (
            printable(", ".join(f"{name}={settings.get(name)!r}" for name in names)) for settings in (written, run)
        )
        raise ValueError(
            f"{path} belongs to a run with {before}, and this run has {now}; use the same settings, another file, or "
            "resume=False to start anew"
        )
    current, moments, best = (
        {name.removeprefix(part): value for name, value in tensors.items() if name.startswith(part)}
        for part in ("model.", "optimizer.", "best.")
    )
    for weights in (current, best or current):
        tensorfile.check_fit(path, type(model).__name__, weights, model.state_dict())
    try:
        result = TypeAdapter(TrainingResult).validate_python(header["result"])
    except ValidationError as fault:
        raise ValueError(f"{path} is of another version: {sentence(fault)}; use resume=False to start anew") from None
    return result, Snapshot(current, moments), best or None
