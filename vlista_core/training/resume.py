"""The file from which a killed run goes on: everything that decides the next step, in safetensors and JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from vlista_core import tensorfile
from vlista_core.tensorfile import Json
from vlista_core.training.result import Record

_FORMAT = 1
_KIND = "training"
_PURPOSE = "file to resume training from"


@dataclass
class Counters:
    """Where a run stands, besides its tensors."""

    step: int = 0
    seconds: float = 0.0
    scale: float = 1.0
    """Product of all drops of the learning rates so far."""
    failures: int = 0
    plateau_from: int = 0
    """The plateau rule looks at the history from here on."""
    best_validation: float | None = None
    best_step: int = 0
    history: list[Record] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)


@dataclass
class Snapshot:
    """Copies of a model's and an optimiser's tensors."""

    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]

    @classmethod
    def of(cls, model: nn.Module, optimizer: torch.optim.Optimizer) -> Snapshot:
        return cls(copy_of(model.state_dict()), copy_of(_flat(optimizer)))

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Put the copies back; the snapshot stays as it is."""
        model.load_state_dict(self.model)
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in self.optimizer.items():
            index, key = name.split(".", 1)
            state.setdefault(int(index), {})[key] = value.clone()
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def copy_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A detached copy of every tensor."""
    return {name: value.detach().clone() for name, value in tensors.items()}


def write(
    path: Path, counters: Counters, current: Snapshot, best: Mapping[str, Tensor] | None, run: Mapping[str, Json]
) -> None:
    """Write the state of a run; `run` says what run it is, so that no other goes on from it."""
    tensors = {f"model.{name}": value for name, value in current.model.items()}
    tensors |= {f"optimizer.{name}": value for name, value in current.optimizer.items()}
    tensors |= {f"best.{name}": value for name, value in (best or {}).items()}
    tensorfile.write(
        path, tensors, {"kind": _KIND, "format": _FORMAT, "run": dict(run), "counters": cast(Json, asdict(counters))}
    )


def read(path: Path, model: nn.Module, run: Mapping[str, Json]) -> tuple[Counters, Snapshot, dict[str, Tensor] | None]:
    """The state in `path`, or a ValueError: a damaged file, one of another kind, one of another run."""
    tensors, header = tensorfile.read(path, purpose=_PURPOSE)
    if header.get("kind") != _KIND or header.get("format") != _FORMAT:
        raise ValueError(
            f"{path} is of kind {header.get('kind')!r} and format {header.get('format')!r}, so it is no {_PURPOSE} "
            f"(kind {_KIND!r}, format {_FORMAT}); give another file, or resume=False to start anew"
        )
    _check_same_run(path, cast(dict[str, Json], header["run"]), run)
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}, "best": {}}
    for name, value in tensors.items():
        part, rest = name.split(".", 1)
        parts[part][rest] = value
    wanted = model.state_dict()
    tensorfile.check_fit(path, type(model).__name__, parts["model"], wanted)
    if parts["best"]:
        tensorfile.check_fit(path, type(model).__name__, parts["best"], wanted)
    values = cast(dict[str, Any], header["counters"])
    history = [Record(**record) for record in values.pop("history")]
    return Counters(**values, history=history), Snapshot(parts["model"], parts["optimizer"]), parts["best"] or None


def _flat(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    state = cast(dict[int, dict[str, Tensor]], optimizer.state_dict()["state"])
    return {f"{index}.{key}": value for index, values in state.items() for key, value in values.items()}


def _check_same_run(path: Path, written: Mapping[str, Json], run: Mapping[str, Json]) -> None:
    names = [name for name in {**written, **run} if written.get(name) != run.get(name)]
    if names:
        before = ", ".join(f"{name}={written.get(name)!r}" for name in names)
        now = ", ".join(f"{name}={run.get(name)!r}" for name in names)
        raise ValueError(
            f"{path} belongs to a run with {before}, and this run has {now}; use the same settings, another file, or "
            "resume=False to start anew"
        )
