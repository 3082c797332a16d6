"""Properties of `Trainer.fit` in one process."""

from __future__ import annotations

import copy
import functools
import io
import itertools
import json
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn
from training_toys import ToyModel, ToyProblem, trained

from vlista_core.estimate import Estimate, Estimator
from vlista_core.linops import LinearMap
from vlista_core.problems import Batch
from vlista_core.training import DivergedError, Trainer, loop
from vlista_core.training.loop import plateau, rate_factor


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The toys are too small for more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@torch.no_grad()
def nmse_db(model: ToyModel, problem: ToyProblem, samples: int = 40) -> float:
    batch = problem.sample(samples, seed=1, split="validation")
    error = model.estimate(batch.y, batch.phi, batch.noise_var).signal - batch.signal
    return 10 * math.log10(float(error.abs().square().sum() / batch.signal.abs().square().sum()))


def weights(model: nn.Module) -> list[Tensor]:
    return [value.clone() for value in model.state_dict().values()]


def same(one: list[Tensor], two: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize(("dtype", "gain"), [("float32", 0.5), ("complex64", 0.2)])
def test_training_lowers_the_validation_nmse(dtype: str, gain: float) -> None:
    model, problem = ToyModel(dtype=dtype), ToyProblem(getattr(torch, dtype))
    before = nmse_db(model, problem)
    result = trained(model, problem, steps=60, batch_size=64)
    assert result.best_validation < before - gain


def test_model_holds_the_weights_of_the_best_validation() -> None:
    model, problem = ToyModel(), ToyProblem()
    result = trained(model, problem, steps=60, learning_rate=0.05)
    assert result.best_step < result.steps
    assert result.best_validation == min(record.validation for record in result.history)
    assert nmse_db(model, problem) == pytest.approx(result.best_validation, abs=1e-4)
    assert not model.training


def test_steps_take_consecutive_samples_and_validation_never_trains() -> None:
    problem = ToyProblem()
    trained(ToyModel(), problem, steps=4, batch_size=10, slices=2, validate_every=4, seed=7)
    assert [call for call in problem.calls if call[0] == "train"] == [("train", 5 * i, 5, 7) for i in range(8)]
    assert {call[0] for call in problem.calls} == {"train", "validation"}


def test_an_epoch_is_the_whole_batches_of_the_training_samples() -> None:
    problem = ToyProblem()
    result = trained(ToyModel(), problem, epochs=2, training_samples=35, batch_size=10)
    assert result.steps == 6
    assert [start for split, start, *_ in problem.calls if split == "train"] == [0, 10, 20] * 2


def test_a_budget_in_seconds_ends_in_time_and_the_cosine_follows_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on by 2.5 ms whenever it is looked at, for a busy machine is late at every tick."""
    ticks = itertools.count()
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: next(ticks) / 400))
    result = trained(ToyModel(), seconds=1.0, schedule="cosine", validate_every=1, validation_samples=4)
    assert 0.95 <= result.seconds <= 1.05
    half = min(result.history, key=lambda record: abs(record.seconds - 0.5))
    assert half.learning_rate == pytest.approx(0.005, rel=0.1)
    assert result.history[-1].learning_rate < 2e-4


class _Slow(ToyModel):
    """Moves a clock on: by `step` seconds for a loss and by `sample` seconds for each sample that it estimates."""

    def __init__(self, *, step: float, sample: float) -> None:
        super().__init__()
        self.step_seconds, self.sample_seconds, self.now = step, sample, 0.0

    def training_loss(self, batch: Batch, *, generator: torch.Generator) -> Tensor:
        self.now += self.step_seconds
        return super().training_loss(batch, generator=generator)

    def estimate(self, y: Tensor, phi: LinearMap | Tensor, noise_var: Tensor | float) -> Estimate:
        self.now += self.sample_seconds * len(y)
        return super().estimate(y, phi, noise_var)


def _slow(monkeypatch: pytest.MonkeyPatch, *, step: float, sample: float) -> _Slow:
    model = _Slow(step=step, sample=sample)
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: model.now))
    return model


@pytest.mark.parametrize(
    ("step", "sample", "every"), [(1.0, 0.1, 5), (1.0, 0.1, 1000), (7.0, 0.5, 3), (0.5, 0.9, 1), (30.0, 1.0, 100)]
)
def test_a_budget_in_seconds_is_kept_to_within_a_step_validation_included(
    step: float, sample: float, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _slow(monkeypatch, step=step, sample=sample)
    result = trained(model, seconds=90.0, validate_every=every)
    validation = 40 * sample
    assert result.history[-1].step == result.steps
    assert 90.0 - 2 * step - validation <= result.seconds <= 90.0 + step
    assert result.seconds == model.now


@pytest.mark.parametrize(
    ("step", "sample", "message", "most"),
    [
        (
            50.0,
            1.5,
            "one step on 16 samples took 50 s and a validation on 40 takes about 60 s; allow more seconds",
            74.0,
        ),
        (120.0, 1.5, "one step on 16 samples took 120 s; allow more seconds, a smaller batch_size or fewer", 120.0),
    ],
)
def test_a_budget_that_no_step_fits_is_refused_once_that_is_known(
    step: float, sample: float, message: str, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _slow(monkeypatch, step=step, sample=sample)
    start = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=f"^seconds=90 is too short to train _Slow: {message}"):
        trained(model, seconds=90.0)
    assert model.now <= most
    assert all(torch.equal(value, start[name]) for name, value in model.state_dict().items())


def test_a_run_that_goes_on_with_little_time_left_ends_with_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, seconds in enumerate((90.0, 90.0)):
        model = _slow(monkeypatch, step=20.0, sample=0.5)
        result = trained(model, seconds=seconds, checkpoint=tmp_path / "run", resume=number > 0)
        assert result.history
        assert result.seconds <= 90.0 + 20.0 + 2 * 20.0


def test_slices_give_the_gradient_of_the_whole_batch() -> None:
    whole, sliced = ToyModel(), ToyModel()
    trained(whole, batch_size=16)
    trained(sliced, batch_size=16, slices=4)
    for one, two in zip(weights(whole), weights(sliced), strict=True):
        torch.testing.assert_close(one, two, atol=1e-5, rtol=0)


def test_result_depends_on_the_seed_and_on_nothing_global() -> None:
    runs = []
    for seed, noise in ((1, 0), (1, 1), (2, 1)):
        with torch.random.fork_rng():
            torch.rand(noise)
            before = torch.random.get_rng_state()
            model = ToyModel(noise=0.01)
            trained(model, seed=seed)
            assert torch.equal(before, torch.random.get_rng_state())
        runs.append(weights(model))
    assert same(runs[0], runs[1])
    assert not same(runs[0], runs[2])


class Sized(ToyModel):
    """Its configuration holds a tuple, which JSON turns into a list."""

    def configuration(self) -> dict[str, Any]:
        return {"widths": (3, 4)}


class Grouped(ToyModel):
    def parameter_groups(self) -> list[dict[str, Any]]:
        return [
            {"params": [self.psi, self.unused], "lr": 0.0, "name": "dictionary"},
            {"params": [self.step], "lr": 1e-2, "weight_decay": 0.0, "name": "step"},
        ]


class Forgetful(ToyModel):
    def parameter_groups(self) -> list[dict[str, Any]]:
        return [{"params": [self.psi, self.unused]}]


def test_each_group_has_its_own_learning_rate() -> None:
    model, start = Grouped(), ToyModel()
    trained(model, steps=5)
    assert torch.equal(model.psi, start.psi)
    assert not torch.equal(model.step, start.step)


def test_a_parameter_in_no_group_is_an_error() -> None:
    with pytest.raises(ValueError, match="Forgetful leaves out step"):
        trained(Forgetful())


def test_weight_decay_shrinks_the_weights() -> None:
    plain, decayed = ToyModel(), ToyModel()
    trained(plain)
    trained(decayed, weight_decay=1.0)
    assert decayed.psi.norm() < plain.psi.norm()


def test_clipping_bounds_what_a_huge_gradient_does_to_a_later_step() -> None:
    """After one gradient of 1e6, Adam's second moment stops all movement for long, unless the gradient was clipped."""

    class Spiky(ToyModel):
        def training_loss(self, batch: Batch, *, generator: torch.Generator) -> Tensor:
            self.steps_seen.append(0)
            return super().training_loss(batch, generator=generator) * (1e6 if len(self.steps_seen) == 1 else 1.0)

    moved = []
    for clip_norm in (None, 0.1):
        model = Spiky()
        trained(model, steps=30, clip_norm=clip_norm)
        moved.append((model.psi - ToyModel().psi).norm().item())
    assert moved[1] > 1.5 * moved[0]


class Fragile(ToyModel):
    """Its loss or gradient is NaN in the given steps, from the first time on or only once."""

    def __init__(self, bad: tuple[int, ...], *, gradient: bool = False) -> None:
        super().__init__()
        self.bad, self.gradient = bad, gradient

    def training_loss(self, batch: Batch, *, generator: torch.Generator) -> Tensor:
        loss = super().training_loss(batch, generator=generator)
        self.steps_seen.append(0)
        if len(self.steps_seen) - 1 not in self.bad:
            return loss
        return loss + (self.step * 0).sqrt() if self.gradient else loss * math.nan


@pytest.mark.parametrize("gradient", [False, True])
def test_a_non_finite_loss_or_gradient_goes_back_and_halves_the_rate(gradient: bool) -> None:
    model = Fragile((7, 12), gradient=gradient)
    result = trained(model, steps=20, schedule="constant")
    assert [record.learning_rate for record in result.history] == pytest.approx([0.01, 0.005, 0.0025, 0.0025])
    assert result.messages == (
        "step 7: the loss or its gradient was not finite; went back to the state of step 5 and multiplied the learning "
        "rates by 0.5",
        "step 12: the loss or its gradient was not finite; went back to the state of step 10 and multiplied the "
        "learning rates by 0.5",
    )
    assert all(math.isfinite(record.loss) and math.isfinite(record.validation) for record in result.history)


def test_a_failure_restores_the_weights_and_the_optimiser_of_the_last_validation() -> None:
    """A run whose last step before the end fails ends with the weights of the validation before it."""
    failed, short = Fragile((9,)), ToyModel()
    trained(failed, steps=10, validate_every=5)
    trained(short, steps=5, validate_every=5)
    assert same(weights(failed), weights(short))


def test_training_gives_up_after_the_stated_number_of_failures_with_good_weights() -> None:
    model, short = Fragile(tuple(range(5, 100))), ToyModel()
    with pytest.raises(
        DivergedError, match="gave up at step 8: the loss or its gradient was not finite and all retries, 3,"
    ):
        trained(model, steps=20, retries=3)
    trained(short, steps=5)
    assert same(weights(model), weights(short))


def test_a_non_finite_validation_figure_is_a_failure_too() -> None:
    figures = iter([1.0, math.nan, 2.0, 3.0])
    result = trained(ToyModel(), metric=lambda signal, batch: next(figures), validation_samples=16)
    assert [record.validation for record in result.history] == [1.0, 2.0, 3.0]
    assert result.best_step == 5
    assert "step 10: the validation figure was not finite" in result.messages[0]


def test_a_metric_is_averaged_over_the_validation_samples() -> None:
    result = trained(ToyModel(), metric=lambda signal, batch: float(len(batch)), validation_samples=40, batch_size=16)
    assert result.best_validation == (16 * 16 + 16 * 16 + 8 * 8) / 40


def test_plateau_divides_the_rates_by_ten_after_patience_validations() -> None:
    result = trained(ToyModel(), steps=8, validate_every=1, patience=2, metric=lambda signal, batch: 1.0)
    rates = [record.learning_rate for record in result.history]
    assert rates == pytest.approx([1e-2, 1e-2, 1e-2, 1e-3, 1e-3, 1e-4, 1e-4, 1e-5])


def test_the_rates_are_divided_as_often_as_allowed() -> None:
    result = trained(ToyModel(), steps=8, validate_every=1, patience=2, drops=1, metric=lambda signal, batch: 1.0)
    assert [record.learning_rate for record in result.history] == pytest.approx([1e-2] * 3 + [1e-3] * 5)
    assert (result.drops, result.ended, result.steps) == (1, "budget", 8)


def test_training_ends_at_the_plateau_after_the_last_drop_on_demand() -> None:
    settings: dict[str, Any] = {"validate_every": 2, "patience": 2, "drops": 2, "until_plateau": True}
    result = trained(ToyModel(), **settings, steps=500, metric=lambda signal, batch: 1.0)
    assert (result.ended, result.drops, len(result.history), result.steps) == ("plateau", 2, 7, 14)
    figures = iter([5.0, 5.0, 5.0, 5.0, 5.0, 5.0, 4.0, 4.0, 4.0])  # The best comes after the last drop.
    later = trained(
        ToyModel(), **settings, steps=500, validation_samples=16, metric=lambda signal, batch: next(figures)
    )
    assert (later.ended, later.best_step, later.steps) == ("plateau", 14, 18)
    short = trained(ToyModel(), **settings, steps=12, metric=lambda signal, batch: 1.0)
    assert (short.ended, short.steps) == ("budget", 12)


def test_a_run_until_the_plateau_resumes_bit_for_bit_and_stays_ended(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"steps": 500, "validate_every": 2, "patience": 1, "learning_rate": 0.3, "drops": 2}
    settings |= {"until_plateau": True, "validation_samples": 16}
    whole, broken, resumed, again = (ToyModel(noise=1e-3) for _ in range(4))
    result = trained(whole, **settings)
    assert result.ended == "plateau"
    problem = ToyProblem()
    problem.fails_from = 16 * (result.steps - 2)  # After the last drop, before the end.
    with pytest.raises(OSError, match="the data is gone"):
        trained(broken, problem, **settings, checkpoint=tmp_path / "run")
    assert run_state(tmp_path / "run")["result"]["drops"] == 2
    problem.fails_from = None
    gone_on = trained(resumed, problem, **settings, checkpoint=tmp_path / "run", resume=True)
    assert same(weights(whole), weights(resumed))
    assert (gone_on.ended, gone_on.steps, gone_on.drops) == ("plateau", result.steps, 2)
    problem.calls = []
    assert trained(again, problem, **settings, checkpoint=tmp_path / "run", resume=True).ended == "plateau"
    assert problem.calls == []
    assert same(weights(whole), weights(again))


def test_plateau_counts_from_the_best_and_from_the_last_drop() -> None:
    assert not plateau([3.0, 2.0, 2.5], 0, 2)
    assert plateau([3.0, 2.0, 2.5, 2.1], 0, 2)
    assert not plateau([3.0, 2.0, 2.5, 2.1, 2.2], 4, 2)


def test_cosine_rises_over_the_warm_up_then_falls_to_zero() -> None:
    factors = [rate_factor("cosine", share, 0.2) for share in (0.1, 0.2, 0.6, 1.0)]
    assert factors == pytest.approx([0.5, 1.0, 0.5, 0.0])
    assert rate_factor("constant", 1.0, 0.0) == 1.0


def test_bf16_trains_full_precision_weights_near_the_fp32_run() -> None:
    full, mixed = ToyModel(), ToyModel()
    one = trained(full, steps=40, batch_size=64)
    two = trained(mixed, steps=40, batch_size=64, precision="bf16-mixed")
    assert mixed.psi.dtype == torch.float32
    assert not torch.equal(full.psi, mixed.psi)
    assert two.best_validation == pytest.approx(one.best_validation, abs=0.1)


def test_compile_is_left_out_for_complex_models_with_a_message() -> None:
    result = trained(ToyModel(dtype="complex64"), ToyProblem(torch.complex64), compile=True, steps=2)
    assert result.messages == ("compile=True was left out: torch's compiler makes no code for complex numbers",)


def test_training_is_quiet_off_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    trained(ToyModel(), precision="bf16-mixed")
    assert capfd.readouterr() == ("", "")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_loss_validation_speed_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TERM", "xterm"), ("COLUMNS", "160")):
        monkeypatch.setenv(name, value)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys, "stdout", Terminal())
    result = trained(ToyModel())
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue()).splitlines()[-1]
    assert re.search(
        rf"ToyModel: loss [\d.]+, validation {result.best_validation:.4g}, \d+ samples/s .* took \d:\d\d", last
    )


def test_compile_sees_the_whole_loss_as_one_graph_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tracer is the real one; making code from the graph is torch's affair and takes half a minute."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    plain, compiled = ToyModel(), ToyModel()
    trained(plain)
    result = trained(compiled, compile=True)
    assert result.messages == ()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert not torch._dynamo.utils.counters["graph_break"]
    torch.testing.assert_close(compiled.psi, plain.psi, atol=1e-6, rtol=0)
    assert list(compiled.state_dict()) == list(plain.state_dict())


def test_a_draw_that_fails_ends_training_with_its_own_error() -> None:
    problem = ToyProblem()
    problem.fails_from = 48
    with pytest.raises(OSError, match="the data is gone"):
        trained(ToyModel(), problem)


def run_state(path: Path) -> dict[str, Any]:
    text = path.read_bytes()[8:].split(b"\0")[0]
    header = json.JSONDecoder().raw_decode(text.decode("latin1"))[0]
    return cast(dict[str, Any], json.loads(header["__metadata__"]["vlista"])["header"])


def test_resume_of_a_finished_run_gives_its_model_and_result_without_a_step(tmp_path: Path) -> None:
    first, again, problem = Sized(), Sized(), ToyProblem()
    result = trained(first, checkpoint=tmp_path / "run")
    resumed = trained(again, problem, checkpoint=tmp_path / "run", resume=True)
    assert problem.calls == []
    assert same(weights(first), weights(again))
    assert resumed.history == result.history
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_resume_is_bit_for_bit_with_two_threads_and_products_large_enough_for_both(tmp_path: Path) -> None:
    torch.set_num_threads(2)
    settings: dict[str, Any] = {"batch_size": 64, "steps": 12, "validate_every": 3, "learning_rate": 1e-3}
    whole, broken, resumed = (ToyModel(256, noise=1e-3) for _ in range(3))
    trained(whole, ToyProblem(measurements=64, signal_length=256), **settings)
    problem = ToyProblem(measurements=64, signal_length=256)
    problem.fails_from = 64 * 8
    with pytest.raises(OSError, match="the data is gone"):
        trained(broken, problem, **settings, checkpoint=tmp_path / "run")
    assert run_state(tmp_path / "run")["result"]["steps"] == 6
    problem.fails_from = None
    trained(resumed, problem, **settings, checkpoint=tmp_path / "run", resume=True)
    assert same(weights(whole), weights(resumed))


def test_checkpoints_come_as_often_as_asked(tmp_path: Path) -> None:
    seen = []

    def metric(signal: Tensor, batch: Batch) -> float:
        seen.append(run_state(tmp_path / "run")["result"]["steps"] if (tmp_path / "run").exists() else 0)
        return 1.0

    trained(ToyModel(), metric=metric, validation_samples=8, checkpoint_every=10, steps=23, checkpoint=tmp_path / "run")
    assert seen == [0, 0, 10, 10, 20]
    assert run_state(tmp_path / "run")["result"]["steps"] == 23


def test_resume_of_another_run_names_what_differs(tmp_path: Path) -> None:
    trained(ToyModel(), checkpoint=tmp_path / "run")
    with pytest.raises(ValueError, match=r"run with batch_size=16, seed=1, and this run has batch_size=8, seed=2"):
        trained(ToyModel(), batch_size=8, seed=2, checkpoint=tmp_path / "run", resume=True)
    with pytest.raises(ValueError, match=r"model configuration=.*'noise': 0.0"):
        trained(ToyModel(noise=0.1), checkpoint=tmp_path / "run", resume=True)


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "flipped"])
def test_a_damaged_resume_file_is_one_clear_sentence(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "run"
    trained(ToyModel(), checkpoint=path)
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    harmed = {"cut": bytes(content[:-20]), "empty": b"", "text": b"step 3 " * 90, "flipped": bytes(content)}[damage]
    path.write_bytes(harmed)
    with pytest.raises(
        ValueError, match=r"run is (truncated or not a safetensors|corrupt).*no file to resume"
    ) as caught:
        trained(ToyModel(), checkpoint=path, resume=True)
    assert "\n" not in str(caught.value)


class NoLoss(nn.Module, Estimator):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def estimate(self, y: Tensor, phi: object, noise_var: object) -> Estimate:
        return Estimate(y)


def test_wrong_models_and_arguments_of_fit_are_named() -> None:
    with pytest.raises(ValueError, match=r"model must have a method training_loss.*NoLoss has none"):
        trained(NoLoss())
    with pytest.raises(ValueError, match="model must have parameters to train, ToyModel has none"):
        trained(ToyModel().requires_grad_(False))
    with pytest.raises(ValueError, match="seed must be an integer of at least 0, got -1"):
        trained(ToyModel(), seed=-1)
    with pytest.raises(ValueError, match="resume=True needs checkpoint"):
        trained(ToyModel(), resume=True)
    with pytest.raises(ValueError, match="psi, step, unused are on the meta device"):
        trained(ToyModel().to("meta"))


def test_a_checkpoint_that_cannot_be_a_file_is_refused_before_training(tmp_path: Path) -> None:
    problem = ToyProblem()
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="checkpoint must be a file, got the folder"):
        trained(ToyModel(), problem, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="output folder cannot be made"):
        trained(ToyModel(), problem, checkpoint=tmp_path / "file" / "run")
    assert problem.calls == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "exactly one of steps, epochs and seconds must be given, got none"),
        ({"steps": 1, "seconds": 2.0}, "exactly one .* got steps=1, seconds=2.0"),
        ({"steps": 0}, "^steps must be greater than 0, got 0$"),
        ({"epochs": 2}, "epochs=2 needs training_samples"),
        ({"seconds": math.inf}, "^seconds must be a finite number, got inf$"),
        ({"steps": 1, "batch_size": 2.5}, "^batch_size must be a valid integer, got 2.5$"),
        ({"steps": 1, "learning_rate": math.nan}, "^learning_rate must be a finite number, got nan$"),
        ({"steps": 1, "weight_decay": -1}, "^weight_decay must be greater than or equal to 0, got -1$"),
        ({"steps": 1, "warmup": 1.0}, "^warmup must be less than 1, got 1.0$"),
        ({"steps": 1, "clip_norm": 0}, "^clip_norm must be greater than 0, got 0$"),
        ({"steps": 1, "schedule": "step"}, "^schedule must be 'plateau', 'cosine' or 'constant', got 'step'$"),
        ({"steps": 1, "precision": "16"}, "^precision must be '32-true' or 'bf16-mixed', got '16'$"),
        ({"steps": 1, "training_samples": 5}, "training_samples must be at least batch_size, 128, got 5"),
        ({"steps": 1, "checkpoint_every": 150}, "checkpoint_every must be a multiple of validate_every, 100, got 150"),
        ({"steps": 1, "drops": 0}, "^drops must be greater than 0, got 0$"),
        (
            {"steps": 1, "until_plateau": True, "schedule": "cosine"},
            "^until_plateau=True needs schedule='plateau', got 'cosine'$",
        ),
        ({"steps": 1, "slices": 3}, "slices must divide batch_size, 128, got 3"),
        ({"steps": 1, "retries": -1}, "^retries must be greater than or equal to 0, got -1$"),
        ({"steps": 1, "metric": "ssim"}, "^metric must be callable, got 'ssim'$"),
    ],
)
def test_a_bad_configuration_is_refused_when_built(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Trainer(**settings)
