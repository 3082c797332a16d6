"""Devices: what people may name, what a machine without that GPU says, and what is done where."""

from pathlib import Path

import pytest
import torch

from vlista_core.data.synthetic import SyntheticProblem
from vlista_core.devices import find_device
from vlista_core.experiments.recipes import Fitted, Recipe, fit
from vlista_core.experiments.synthetic import build
from vlista_core.models import UnfoldedModel
from vlista_core.solvers import BCS
from vlista_core.training import Trainer, TrainingResult


def _gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


def test_names_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    _gpus(monkeypatch, 2)
    found = {name: str(find_device("device", name)) for name in ("auto", "cpu", "cuda", "cuda:1")}
    assert found == {"auto": "cuda:0", "cpu": "cpu", "cuda": "cuda:0", "cuda:1": "cuda:1"}
    with pytest.raises(ValueError, match=r"^device is cuda:2, but this machine has only cuda:0 to cuda:1; use cpu or"):
        find_device("device", "cuda:2")
    _gpus(monkeypatch, 0)
    assert find_device("device", "auto") == find_device("device", "cpu") == torch.device("cpu")
    with pytest.raises(
        ValueError, match=r"^device is cuda, but this machine has no GPU that torch can use; use cpu or auto$"
    ):
        find_device("device", "cuda")


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:-1", "cuda:x", "cpu:0", ""])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"^device must be auto, cpu, cuda or cuda:N, got"):
        find_device("device", name)
    with pytest.raises(ValueError, match=r"^accelerator must be auto, cpu, cuda or cuda:N, got"):
        Trainer(steps=1, accelerator=name)


def test_a_trainer_names_its_missing_gpu_before_anything_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    _gpus(monkeypatch, 0)
    problem = SyntheticProblem(length=16, rows=8)
    with pytest.raises(ValueError, match=r"^accelerator is cuda:3, but this machine has no GPU"):
        Trainer(steps=1, accelerator="cuda:3").fit(build("dlista", problem, 0), problem, seed=0)


def test_training_alone_is_done_on_the_device_of_the_problem(tmp_path: Path) -> None:
    """cpu:0 is the CPU by another name, so that the two can be told apart without a GPU."""
    problem, seen = SyntheticProblem(length=16, rows=8, device="cpu:0"), {}

    def building(problem: SyntheticProblem, seed: int) -> UnfoldedModel:
        seen["build"] = str(problem.device)
        return build("dlista", problem, seed)

    def training(
        network: UnfoldedModel, problem: SyntheticProblem, recipe: Recipe[SyntheticProblem], seed: int, resume: Path
    ) -> TrainingResult:
        seen["train"] = str(problem.device)
        return TrainingResult()

    fit(Recipe[SyntheticProblem](2, 1e-3), building, problem, 0, tmp_path / "weights.safetensors", training)

    def solving(problem: SyntheticProblem, seed: int) -> Fitted:
        seen["solve"] = str(problem.device)
        return BCS(), {}

    fit(solving, building, problem, 0, tmp_path / "none")
    assert seen == {"build": "cpu", "train": "cpu:0", "solve": "cpu"}


def test_a_recipe_trains_where_its_problem_draws() -> None:
    recipe = Recipe[SyntheticProblem](2, 1e-3)
    assert recipe.trainer(SyntheticProblem(length=16, rows=8, device="cuda:1")).accelerator == "cuda:1"
    assert recipe.trainer(SyntheticProblem(length=16, rows=8)).accelerator == "cpu"
