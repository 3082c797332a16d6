"""`Trainer`: a frozen configuration, checked when built, and `fit`."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast, get_args

import torch
from torch import nn

from vlista_core import tensorfile
from vlista_core.configured import Configured
from vlista_core.problems import Problem, check_count
from vlista_core.progress import progress_bar
from vlista_core.tensorfile import Json
from vlista_core.training.loop import Loop, LossModule, parameter_groups
from vlista_core.training.rates import Schedule
from vlista_core.training.result import TrainingResult
from vlista_core.training.stream import Stream
from vlista_core.training.validation import Metric

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Precision = Literal["32-true", "bf16-mixed"]
Accelerator = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True)
class Trainer:
    """How to train: Adam on batches of a Problem, within a budget of steps, epochs or seconds (give exactly one).

    Under `torchrun` every process takes its slices of the same global batch, so weights and losses are those of one
    process up to rounding.
    """

    batch_size: int = 128
    """Samples per optimiser step, over all processes."""
    steps: int | None = None
    epochs: int | None = None
    """Passes over `training_samples`."""
    seconds: float | None = None
    """Wall-clock time, validation included; the schedules follow the elapsed share."""
    training_samples: int | None = None
    """Train on this many fixed samples, whole batches only; None draws new ones in every step."""
    learning_rate: float = 1e-3
    """Of groups that the model's `parameter_groups()` gives no "lr"."""
    weight_decay: float = 0.0
    """L2 term of Adam, of groups that have no "weight_decay"."""
    schedule: Schedule = "plateau"
    patience: int = 5
    """Validations without a new best before a plateau divides the rates by ten (at most three times)."""
    warmup: float = 0.0
    """Share of the budget over which the rates rise from zero."""
    clip_norm: float | None = None
    validation_samples: int = 512
    validate_every: int = 100
    """Steps between validations; there is always one at the end."""
    checkpoint_every: int | None = None
    """Steps between checkpoints, a multiple of `validate_every`; None writes one at every validation."""
    metric: Metric | None = None
    """What validation minimises; None is the NMSE in dB as a ratio of sums."""
    precision: Precision = "32-true"
    slices: int = 1
    """Equal parts of a batch, computed one after another and shared out to the processes: less memory, same gradient.

    A model that draws noise draws it slice by slice, so one process equals two only with an even number of slices.
    """
    retries: int = 10
    """Non-finite losses, gradients or validations to recover from, each by going back and halving the rates."""
    compile: bool = False
    """Compile the loss with torch.compile; left out, with a message, where anything is complex."""
    accelerator: Accelerator = "auto"
    """"auto" is "cuda" where there is one and "cpu" elsewhere."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "patience", "validation_samples", "validate_every", "slices"):
            check_count(name, getattr(self, name))
        check_count("retries", self.retries, least=0)
        self._check_budget()
        for name in ("steps", "epochs", "training_samples", "checkpoint_every"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        _check_number("learning_rate", self.learning_rate, above=0.0)
        _check_number("weight_decay", self.weight_decay, least=0.0)
        _check_number("warmup", self.warmup, least=0.0, below=1.0)
        if self.clip_norm is not None:
            _check_number("clip_norm", self.clip_norm, above=0.0)
        _check_choice("schedule", self.schedule, get_args(Schedule))
        _check_choice("precision", self.precision, get_args(Precision))
        _check_choice("accelerator", self.accelerator, get_args(Accelerator))
        if self.training_samples is not None and self.training_samples < self.batch_size:
            raise ValueError(
                f"training_samples must be at least batch_size, {self.batch_size}, got {self.training_samples}"
            )
        if self.checkpoint_every is not None and self.checkpoint_every % self.validate_every:
            raise ValueError(
                f"checkpoint_every must be a multiple of validate_every, {self.validate_every}, "
                f"got {self.checkpoint_every}"
            )
        if self.batch_size % self.slices:
            raise ValueError(f"slices must divide batch_size, {self.batch_size}, got {self.slices}")
        if self.metric is not None and not callable(self.metric):
            raise ValueError(f"metric must be None or a function of (signal, batch), got {self.metric!r}")

    @property
    def total_steps(self) -> int | None:
        """Steps of the whole run; None where the budget is in seconds."""
        if self.epochs is None or self.training_samples is None:
            return self.steps
        return self.epochs * (self.training_samples // self.batch_size)

    def fit(
        self,
        model: nn.Module,
        problem: Problem,
        *,
        seed: int,
        checkpoint: Path | str | None = None,
        resume: bool = False,
    ) -> TrainingResult:
        """Train `model` in place and leave the weights with the best validation figure in it, in evaluation mode.

        `checkpoint` is the file to resume from, written whole or not at all and replaced as training goes on. With
        `resume=True` a run goes on from it where it exists: after a kill at any moment the final weights are, on a CPU
        and with a budget in steps or epochs, bit for bit those of a run never killed.
        """
        if not isinstance(model, nn.Module):
            raise ValueError(f"model must be a torch.nn.Module, got {type(model).__name__}")
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ValueError(f"seed must be a non-negative integer, got {seed!r}")
        if resume and checkpoint is None:
            raise ValueError("resume=True needs checkpoint, the file to resume from, got None")
        path = _writable(Path(checkpoint)) if checkpoint is not None else None
        groups = parameter_groups(model, self.learning_rate, self.weight_decay)
        device = next(model.parameters()).device
        with _quiet_fabric():
            fabric = self._fabric()
        slices = self._slices(fabric.world_size)
        stream = Stream(problem, self, seed=seed, slices=slices, rank=fabric.global_rank, world_size=fabric.world_size)
        bar = progress_bar(type(model).__name__, shown=fabric.is_global_zero)
        module, messages = self._loss_module(model, problem)
        with stream, bar as report:
            optimizer = torch.optim.Adam(groups, fused=not any(p.is_complex() for p in model.parameters()))
            loop = Loop(self, fabric, model, module, optimizer, stream, report)
            loop.counters.messages.extend(messages)
            run = self._run(model, problem, seed, slices)
            if path is not None:
                if resume and path.exists():
                    loop.resume_from(path, run)
                fabric.barrier()
                if fabric.is_global_zero:
                    tensorfile.remove_partial_files(path)
            try:
                loop.run(path, run)
            finally:
                model.eval().to(device)
        return self._result(loop)

    def _check_budget(self) -> None:
        given = {
            name: getattr(self, name) for name in ("steps", "epochs", "seconds") if getattr(self, name) is not None
        }
        if len(given) != 1:
            came = ", ".join(f"{name}={value}" for name, value in given.items()) or "none of them"
            raise ValueError(f"exactly one of steps, epochs and seconds must be given, got {came}")
        if self.seconds is not None:
            _check_number("seconds", self.seconds, above=0.0)
        if self.epochs is not None and self.training_samples is None:
            raise ValueError(f"epochs={self.epochs} needs training_samples, the size of an epoch, got None")

    def _fabric(self) -> Fabric:
        # Imported here because it takes longer than everything else that a program needs before it trains.
        from lightning_fabric import Fabric
        from lightning_fabric.strategies.ddp import DDPStrategy

        world = int(os.environ.get("WORLD_SIZE", "1"))
        local = int(os.environ.get("LOCAL_WORLD_SIZE", str(world)))
        accelerator = self.accelerator
        if accelerator == "auto":
            accelerator = "cuda" if torch.cuda.is_available() else "cpu"
        fabric = Fabric(
            accelerator=accelerator,
            devices=local,
            num_nodes=world // local,
            strategy=DDPStrategy(find_unused_parameters=True) if world > 1 else "auto",
            precision=self.precision,
        )
        fabric.launch()
        return fabric

    def _slices(self, world_size: int) -> int:
        slices = max(self.slices, world_size)
        if slices % world_size or self.batch_size % slices:
            raise ValueError(
                f"slices must be a multiple of the number of processes, {world_size}, and divide batch_size, "
                f"{self.batch_size}, got {slices}"
            )
        return slices

    def _loss_module(self, model: nn.Module, problem: Problem) -> tuple[nn.Module, list[str]]:
        module = LossModule(model)
        if not self.compile:
            return module, []
        if problem.dtype.is_complex or any(value.is_complex() for value in model.state_dict().values()):
            return module, ["compile=True was left out: torch's compiler makes no code for complex numbers"]
        return cast(nn.Module, torch.compile(module, dynamic=False)), []

    def _run(self, model: nn.Module, problem: Problem, seed: int, slices: int) -> dict[str, Json]:
        """What must be equal for a run to be the same run."""
        run: dict[str, Json] = {field.name: getattr(self, field.name) for field in fields(self)}
        metric = self.metric
        run["metric"] = None if metric is None else str(getattr(metric, "__qualname__", type(metric).__qualname__))
        run["seed"], run["slices"] = seed, slices
        run["model"] = type(model).__name__
        run["model configuration"] = model.configuration() if isinstance(model, Configured) else None
        run["problem"] = f"{type(problem).__name__} {problem.measurements}x{problem.signal_length} {problem.dtype}"
        return cast(dict[str, Json], tensorfile.as_json("the model's configuration", run))

    def _result(self, loop: Loop) -> TrainingResult:
        counters = loop.counters
        return TrainingResult(
            history=tuple(counters.history),
            best_validation=cast(float, counters.best_validation),
            best_step=counters.best_step,
            steps=counters.step,
            seconds=counters.seconds,
            samples_per_second=counters.step * self.batch_size / max(counters.seconds, 1e-9),
            messages=tuple(counters.messages),
        )


@contextmanager
def _quiet_fabric() -> Iterator[None]:
    """Fabric announces ranks and precision on stderr; training is quiet off a terminal."""
    logger = logging.getLogger("lightning_fabric")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def _writable(path: Path) -> Path:
    """`path`, whose folder now exists, or a ValueError: better now than at the first checkpoint."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise ValueError(f"checkpoint must be a file that can be written, got {path}: {fault}") from fault
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise ValueError(f"checkpoint must be a file that can be written, got {path}")
    return path


def _check_number(
    name: str, value: float, *, least: float | None = None, above: float | None = None, below: float = float("inf")
) -> None:
    allowed = f"above {above:g}" if above is not None else f"at least {least:g}"
    allowed += f" and below {below:g}" if below != float("inf") else " and finite"
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    enough = number and (value >= least if least is not None else above is None or value > above)
    if not (enough and value < below):
        raise ValueError(f"{name} must be a number {allowed}, got {value!r}")


def _check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
