"""The training loop: step, guard, validate, keep the best, write the file to resume from.

A validation ends either with finite figures, and then the state at hand becomes the last good one, or with the last
good state put back. The file is written only right after a validation, so the state in it is also the last good state,
and a resumed run meets every later failure exactly as the run that was never killed.
"""

import inspect
import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch
from torch import Tensor, nn

from vlista_core.draws import sample_generators
from vlista_core.estimate import Estimator
from vlista_core.problems import Batch
from vlista_core.progress import Report
from vlista_core.tensorfile import Json
from vlista_core.training import state
from vlista_core.training.stream import Stream

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from vlista_core.training.trainer import Metric, Schedule, Trainer

Groups = list[dict[str, Any]]
"""Parameters and their settings, as torch's optimisers take them."""

FAILURE_DROP = 0.5
"""A non-finite loss, gradient or validation figure halves the learning rates."""
PLATEAU_DROP = 0.1
"""A plateau divides the rates by ten, as in the paper."""


class Work:
    """The input of a LossModule; no dataclass, since fabric copies those field by field and refuses a frozen one."""

    def __init__(self, batch: Batch, generator: torch.Generator) -> None:
        self.batch, self.generator = batch, generator


class LossModule(nn.Module):
    """A module whose forward is `model.training_loss`, because DDP and autocast act on forward alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        loss = getattr(model, "training_loss", None)
        if not callable(loss):
            raise ValueError(
                f"model must have a method training_loss(batch, *, generator), {type(model).__name__} has none"
            )
        self.model = model
        self._loss: Callable[..., Tensor] = loss
        self._draws = "generator" in inspect.signature(loss).parameters

    def forward(self, work: Work) -> Tensor:
        """The mean loss of the samples of `work.batch`: a scalar."""
        return self._loss(work.batch, **({"generator": work.generator} if self._draws else {}))


class Loop:
    """One run of training: tensors and result, and the steps that change them."""

    def __init__(self, plan: "Trainer", fabric: "Fabric", model: nn.Module, groups: Groups, stream: Stream) -> None:
        self.plan, self.fabric, self.model, self.stream = plan, fabric, model, stream
        self.result = state.TrainingResult()
        module: nn.Module = LossModule(model)
        if plan.compile and (
            stream.problem.dtype.is_complex or any(v.is_complex() for v in model.state_dict().values())
        ):
            self.result.messages += ("compile=True was left out: torch's compiler makes no code for complex numbers",)
        elif plan.compile:
            module = cast(nn.Module, torch.compile(module, dynamic=False))
        self.optimizer = torch.optim.Adam(groups, fused=not any(p.is_complex() for p in model.parameters()))
        self.module, self.stepper = fabric.setup(module, self.optimizer)
        self.rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        self.good = state.Snapshot.of(model, self.optimizer)
        self.best: dict[str, Tensor] | None = None
        self._losses: list[float] = []
        self._last_loss = math.nan
        self._started = time.perf_counter()
        self._step_seconds = self._validation_seconds = 0.0

    def resume_from(self, path: Path, run: Mapping[str, Json]) -> None:
        """Go on from the state in `path`."""
        self.result, self.good, self.best = state.read(path, self.model, run)
        self.good.restore(self.model, self.optimizer)
        self._started = time.perf_counter() - self.result.seconds

    def run(self, path: Path | None, run: Mapping[str, Json], report: Report) -> None:
        """Train for at least one step until it is over, and leave the best weights in the model; rank 0 writes `path`."""
        result, plan = self.result, self.plan
        self.model.train()
        first, over = True, self._over()
        while result.steps == 0 or not over:
            before, progress = result.seconds, self._progress()
            factor = result.scale * rate_factor(plan.schedule, progress, plan.warmup)
            for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
                group["lr"] = rate * factor
            loss = self._step()
            if loss is None:
                self._fail("the loss or its gradient")
            else:
                self._losses.append(loss)
                self._last_loss = loss
            result.steps += 1
            self._step_seconds = self._elapsed() - before
            if first and plan.seconds is not None:
                self._plan_validation(plan.seconds)
            first, over = False, self._over()
            if result.steps % plan.validate_every == 0 or over:
                self._validate()
                over = over or self._over()
                due = result.steps % (plan.checkpoint_every or plan.validate_every) == 0 or over
                if due and path is not None and self.fabric.is_global_zero:
                    state.write(path, result, self.good, self.best, run)
            speed = result.steps * plan.batch_size / max(result.seconds, 1e-9)
            report(1.0 if over else self._progress(), self._last_loss, result.best_validation, speed)
        if self.best is None:
            self._give_up("no validation figure was finite")
        self.model.load_state_dict(self.best)

    def _elapsed(self) -> float:
        """Seconds since the start; where they are the budget, rank 0's clock counts."""
        seconds = time.perf_counter() - self._started
        self.result.seconds = seconds if self.plan.seconds is None else float(self.fabric.broadcast(seconds))
        return self.result.seconds

    def _progress(self) -> float:
        """Share of the budget spent; of one in seconds, the time of the last validation is set aside."""
        seconds, plan = self._elapsed(), self.plan
        if plan.seconds is None:
            return self.result.steps / (plan.total_steps or 1)
        return min(1.0, seconds / max(plan.seconds - self._validation_seconds, 1e-9))

    def _over(self) -> bool:
        """Whether the last plateau is reached, the steps are done, or one more step and its validation do not fit the time."""
        seconds, plan = self._elapsed(), self.plan
        if self.result.ended == "plateau":
            return True
        if plan.seconds is None:
            return self.result.steps >= (plan.total_steps or 1)
        return seconds + self._step_seconds + self._validation_seconds >= plan.seconds

    def _plan_validation(self, budget: float) -> None:
        """Time the first slice of a validation; a ValueError where not even one step and one validation fit the budget.

        A run that goes on from a file has been validated and only ends early.
        """
        words = f"one step on {self.plan.batch_size} samples took {self._step_seconds:.3g} s"
        if self._step_seconds <= budget:
            before = self._elapsed()
            validate(self.model, islice(self.stream.validation(), 1), self.plan.metric, self.fabric)
            self._validation_seconds = (self._elapsed() - before) * max(1.0, self.stream.validation_slices)
            samples = self.plan.validation_samples
            words += f" and a validation on {samples} takes about {self._validation_seconds:.3g} s"
        if self._step_seconds + self._validation_seconds > budget and not self.result.history:
            self.good.restore(self.model, self.optimizer)
            raise ValueError(
                f"seconds={budget:g} is too short to train {type(self.model).__name__}: {words}; allow more seconds, a smaller "
                "batch_size or fewer validation_samples (the model is as it was)"
            )

    def _step(self) -> float | None:
        """One optimiser step on a global batch: its mean loss, or None where loss or gradient was not finite."""
        self.optimizer.zero_grad(set_to_none=True)
        last, share = self.stream.slices[-1], 1.0 / len(self.stream.slices)
        mean = torch.zeros((), device=self.fabric.device)
        for number, batch in self.stream.training(self.result.steps):
            work = Work(batch.to(self.fabric.device), self._generator(number))
            alone = self.fabric.world_size == 1
            with nullcontext() if alone else self.fabric.no_backward_sync(self.module, enabled=number != last):
                loss = self.module(work)
                if loss.ndim != 0:
                    raise ValueError(f"training_loss must return a scalar, got shape {[*loss.shape]}")
                self.fabric.backward(loss * share)
            mean = mean + loss.detach() * share
        mean = cast(Tensor, self.fabric.all_reduce(mean, reduce_op="mean"))
        if not (math.isfinite(float(mean)) and math.isfinite(self._clip())):
            return None
        self.stepper.step()
        return float(mean)

    def _clip(self) -> float:
        """The norm of the gradient, which is then clipped."""
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        if self.plan.clip_norm is not None:
            return float(torch.nn.utils.clip_grad_norm_(parameters, self.plan.clip_norm))
        return float(torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))

    def _generator(self, number: int) -> torch.Generator:
        """The generator of one slice of this step, on the batch's device: a function of (seed, step, slice)."""
        index = self.result.steps * self.stream.total_slices + number
        (generator,) = sample_generators(self.stream.seed, "train", [index], stream="training_loss")
        return torch.Generator(self.fabric.device).manual_seed(generator.initial_seed())

    def _validate(self) -> None:
        result, plan = self.result, self.plan
        before = self._elapsed()
        value = validate(self.model, self.stream.validation(), plan.metric, self.fabric)
        self._validation_seconds = self._elapsed() - before
        loss = math.fsum(self._losses) / len(self._losses) if self._losses else math.nan
        self._losses = []
        if not math.isfinite(value):
            self._fail("the validation figure")
            return
        self.good = state.Snapshot.of(self.model, self.optimizer)
        rate = float(self.optimizer.param_groups[0]["lr"])
        details = dict(getattr(plan.metric, "details", {}))
        result.history += (state.Record(result.steps, result.seconds, loss, value, rate, details),)
        if self.best is None or value < result.best_validation:
            result.best_validation, result.best_step = value, result.steps
            self.best = self.good.model
        figures = [record.validation for record in result.history]
        if plan.schedule == "plateau" and plateau(figures, result.plateau_from, plan.patience):
            if result.drops < plan.drops:
                result.drops += 1
                result.scale *= PLATEAU_DROP
                result.plateau_from = len(figures)
            elif plan.until_plateau:
                result.ended = "plateau"

    def _fail(self, what: str) -> None:
        """Put the last good state back and halve the rates, or give up."""
        result = self.result
        result.failures += 1
        if result.failures > self.plan.retries:
            self._give_up(f"{what} was not finite and all retries, {self.plan.retries}, are used up")
        result.scale *= FAILURE_DROP
        self.good.restore(self.model, self.optimizer)
        good_step = result.history[-1].step if result.history else 0
        result.messages += (
            f"step {result.steps}: {what} was not finite; went back to the state of step {good_step} and multiplied "
            f"the learning rates by {FAILURE_DROP:g}",
        )

    def _give_up(self, why: str) -> NoReturn:
        self.model.load_state_dict(self.best if self.best is not None else self.good.model)
        raise state.DivergedError(
            f"training gave up at step {self.result.steps}: {why}, with the learning rates already multiplied by "
            f"{self.result.scale:g}; lower learning_rate, set clip_norm, or check the model's loss (the model holds "
            "its last good weights)"
        )


def rate_factor(schedule: "Schedule", progress: float, warmup: float) -> float:
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


@torch.no_grad()
def validate(model: nn.Module, batches: Iterable[Batch], metric: "Metric | None", fabric: "Fabric") -> float:
    """The figure over the batches of all processes, in full precision; NaN where it is not finite.

    Without a metric it is the NMSE in dB as a ratio of sums, Σ‖ŝ - s‖² / Σ‖s‖².
    """
    if not isinstance(model, Estimator):
        raise ValueError(f"model must be an Estimator to be validated, got {type(model).__name__}")
    sums = torch.zeros(2, dtype=torch.float64, device=fabric.device)
    model.eval()
    for batch in batches:
        moved = batch.to(fabric.device)
        signal = model.estimate(moved.y, moved.phi, moved.noise_var).signal
        if metric is None:
            error, energy = (signal - moved.signal).abs(), moved.signal.abs()
            sums += torch.stack([error.double().square().sum(), energy.double().square().sum()])
        else:
            sums += sums.new_tensor([len(batch) * float(metric(signal, moved)), len(batch)])
    model.train()
    total = fabric.all_reduce(sums, reduce_op="sum")
    ratio = float(total[0] / total[1])
    if not math.isfinite(ratio):
        return math.nan
    return ratio if metric is not None else 10.0 * math.log10(max(ratio, 1e-30))


def parameter_groups(model: nn.Module, learning_rate: float, weight_decay: float) -> Groups:
    """The optimiser's groups: the model's own where it has `parameter_groups`, otherwise all parameters in one."""
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trainable:
        raise ValueError(
            f"model must have parameters to train, {type(model).__name__} has none that require a gradient"
        )
    if meta := [name for name, p in trainable.items() if p.is_meta]:
        raise ValueError(f"model must hold its parameters, but {', '.join(meta)} are on the meta device")
    own = getattr(model, "parameter_groups", None)
    groups = own() if callable(own) else [{"params": list(trainable.values()), "name": "all"}]
    if extra := sorted({key for group in groups for key in group} - {"params", "lr", "weight_decay", "name"}):
        raise ValueError(
            f"a group of parameter_groups() may have lr, name, params, weight_decay, got {', '.join(extra)}"
        )
    groups = [{"lr": learning_rate, "weight_decay": weight_decay, **g, "params": list(g["params"])} for g in groups]
    covered = {id(p) for group in groups for p in group["params"]}
    if left := [name for name, p in trainable.items() if id(p) not in covered]:
        raise ValueError(f"parameter_groups() of {type(model).__name__} leaves out {', '.join(left)}")
    return groups
