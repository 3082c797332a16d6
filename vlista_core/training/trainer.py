"""`Trainer`: a frozen configuration, checked when built, and `fit`."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

from pydantic import ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from vlista_core import tensorfile
from vlista_core.configured import Configured
from vlista_core.devices import check_device, find_device
from vlista_core.files import check_folder
from vlista_core.problems import Batch, Problem, check_count
from vlista_core.progress import progress_bar
from vlista_core.tensorfile import Json
from vlista_core.training.loop import Loop, parameter_groups
from vlista_core.training.state import TrainingResult
from vlista_core.training.stream import Stream
from vlista_core.validation import refused_in_a_sentence

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Schedule = Literal["plateau", "cosine", "constant"]
Metric = Callable[[Tensor, Batch], float]
"""(estimated signal [batch, n], the batch) -> a figure to be minimised, averaged over the samples."""


@refused_in_a_sentence
@dataclass(frozen=True, config=ConfigDict(strict=True, allow_inf_nan=False))
class Trainer:
    """How to train: Adam on batches of a Problem, within a budget of steps, epochs or seconds (give exactly one).

    Under `torchrun` every process takes its slices of the same global batch, so weights and losses are those of one
    process up to rounding.
    """

    batch_size: PositiveInt = 128
    """Samples per optimiser step, over all processes."""
    steps: PositiveInt | None = None
    epochs: PositiveInt | None = None
    """Passes over `training_samples`."""
    seconds: PositiveFloat | None = None
    """Wall-clock time, validation included, kept to within about a step; the schedules follow the elapsed share. Where not even
    one step and one validation fit, `fit` says so as soon as it has timed them."""
    training_samples: PositiveInt | None = None
    """Train on this many fixed samples, whole batches only; None draws new ones in every step."""
    learning_rate: PositiveFloat = 1e-3
    """Of groups that the model's `parameter_groups()` gives no "lr"."""
    weight_decay: NonNegativeFloat = 0.0
    """L2 term of Adam, of groups that have no "weight_decay"."""
    schedule: Schedule = "plateau"
    patience: PositiveInt = 5
    """Validations without a new best before a plateau divides the rates by ten."""
    drops: PositiveInt = 3
    """How often a plateau may divide the rates."""
    until_plateau: bool = False
    """End at the plateau after the last drop; the budget is then the most that training may take."""
    warmup: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Share of the budget over which the rates rise from zero."""
    clip_norm: PositiveFloat | None = None
    validation_samples: PositiveInt = 512
    validate_every: PositiveInt = 100
    """Steps between validations; there is always one at the end."""
    checkpoint_every: PositiveInt | None = None
    """Steps between checkpoints, a multiple of `validate_every`; None writes one at every validation."""
    metric: Metric | None = None
    """What validation minimises; None is the NMSE in dB as a ratio of sums."""
    precision: Literal["32-true", "bf16-mixed"] = "32-true"
    slices: PositiveInt = 1
    """Equal parts of a batch, computed one after another and shared out to the processes: less memory, same gradient.

    A model that draws noise draws it slice by slice, so one process equals two only with an even number of slices.
    """
    retries: NonNegativeInt = 10
    """Non-finite losses, gradients or validations to recover from, each by going back and halving the rates."""
    compile: bool = False
    """Compile the loss with torch.compile; left out, with a message, where anything is complex."""
    accelerator: str = "auto"
    """auto (a GPU where there is one), cpu, cuda or cuda:N. Problems that can draw there do; training may go on elsewhere."""

    @model_validator(mode="after")
    def _check(self) -> "Trainer":
        budget = {name: getattr(self, name) for name in ("steps", "epochs", "seconds")}
        given = [f"{name}={value}" for name, value in budget.items() if value is not None]
        if len(given) != 1:
            raise ValueError(
                f"exactly one of steps, epochs and seconds must be given, got {', '.join(given) or 'none of them'}"
            )
        if self.epochs is not None and self.training_samples is None:
            raise ValueError(f"epochs={self.epochs} needs training_samples, the size of an epoch, got None")
        size, samples, every, least = self.batch_size, self.training_samples, self.checkpoint_every, self.validate_every
        if samples is not None and samples < size:
            raise ValueError(f"training_samples must be at least batch_size, {size}, got {samples}")
        if every is not None and every % least:
            raise ValueError(f"checkpoint_every must be a multiple of validate_every, {least}, got {every}")
        check_device("accelerator", self.accelerator)
        if self.until_plateau and self.schedule != "plateau":
            raise ValueError(f"until_plateau=True needs schedule='plateau', got {self.schedule!r}")
        if size % self.slices:
            raise ValueError(f"slices must divide batch_size, {size}, got {self.slices}")
        return self

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
        check_count("seed", seed, least=0)
        if resume and checkpoint is None:
            raise ValueError("resume=True needs checkpoint, the file to resume from, got None")
        path = Path(checkpoint) if checkpoint is not None else None
        if path is not None:
            check_folder(path.parent)
            if path.is_dir():
                raise ValueError(f"checkpoint must be a file, got the folder {path}")
        groups = parameter_groups(model, self.learning_rate, self.weight_decay)
        device = next(model.parameters()).device
        with _quiet_fabric():
            fabric = self._fabric()
        slices = max(self.slices, fabric.world_size)
        if slices % fabric.world_size or self.batch_size % slices:
            raise ValueError(
                f"slices must be a multiple of the number of processes, {fabric.world_size}, and divide batch_size, "
                f"{self.batch_size}, got {slices}"
            )
        problem = problem.on(fabric.device)
        stream = Stream(problem, self, seed=seed, slices=slices, rank=fabric.global_rank, world_size=fabric.world_size)
        bar = progress_bar(type(model).__name__, shown=fabric.is_global_zero)
        with closing(stream), bar as report:
            loop = Loop(self, fabric, model, groups, stream)
            run = self._run(model, problem, seed, slices)
            if path is not None:
                if resume and path.exists():
                    loop.resume_from(path, run)
                fabric.barrier()
            try:
                loop.run(path, run, report)
            finally:
                model.eval().to(device)
        return loop.result

    def _fabric(self) -> "Fabric":
        # Imported here because it takes longer than everything else that a program needs before it trains.
        from lightning_fabric import Fabric
        from lightning_fabric.strategies.ddp import DDPStrategy

        world = int(os.environ.get("WORLD_SIZE", "1"))
        local = int(os.environ.get("LOCAL_WORLD_SIZE", str(world)))
        device = find_device("accelerator", self.accelerator)
        if world > 1 and ":" in self.accelerator:
            raise ValueError(f"accelerator must name no single GPU under torchrun, got {self.accelerator}; use cuda")
        fabric = Fabric(
            accelerator=device.type,
            devices=local if world > 1 or device.index is None else [device.index],
            num_nodes=world // local,
            strategy=DDPStrategy(find_unused_parameters=True) if world > 1 else "auto",
            precision=self.precision,
        )
        fabric.launch()
        return fabric

    def _run(self, model: nn.Module, problem: Problem, seed: int, slices: int) -> dict[str, Json]:
        """What must be equal for a run to be the same run."""
        metric = self.metric
        run: dict[str, Json] = {
            **{field.name: getattr(self, field.name) for field in fields(self) if field.name != "accelerator"},
            "metric": None if metric is None else str(getattr(metric, "__qualname__", type(metric).__qualname__)),
            "seed": seed,
            "slices": slices,
            "model": type(model).__name__,
            "model configuration": model.configuration() if isinstance(model, Configured) else None,
            "problem": f"{type(problem).__name__} {problem.measurements}x{problem.signal_length} {problem.dtype}",
        }
        return cast(dict[str, Json], tensorfile.as_json("the model's configuration", run))


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
