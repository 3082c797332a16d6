"""Devices: what people may name, what a machine without that GPU says, and what is done where."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vlista_core.data.image_problem import ImageProblem
from vlista_core.data.image_set import ImageData
from vlista_core.data.synthetic import SyntheticProblem
from vlista_core.devices import find_device
from vlista_core.draws import Split
from vlista_core.experiments.recipes import Fitted, Recipe, fit
from vlista_core.experiments.synthetic import build
from vlista_core.models import UnfoldedModel
from vlista_core.problems import Problem
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


class OnMetaOnly(TorchDispatchMode):
    """An error for every operation with a tensor that is not on the meta device, but for single numbers that it takes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given, out = (args, kwargs or {}), func(*args, **(kwargs or {}))
        for value in (*(value for value in tree_leaves(given) if not _is_number(value)), *tree_leaves(out)):
            if isinstance(value, Tensor):
                assert value.is_meta, f"{func} has a tensor {[*value.shape]} on {value.device}"
        return out


def _is_number(value: object) -> bool:
    return isinstance(value, Tensor) and value.ndim == 0


def test_the_check_sees_tensors_on_the_cpu() -> None:
    a, b = torch.zeros(2, 2, device="meta"), torch.zeros(2, 2)
    with OnMetaOnly(), pytest.raises(AssertionError, match=r"mm.default has a tensor \[2, 2\] on cpu"):
        a @ b
    with OnMetaOnly(), pytest.raises(AssertionError, match=r"zeros.default has a tensor \[3\] on cpu"):
        torch.zeros(3)


def _images() -> ImageData:
    pixels = torch.randint(0, 255, (60, 12, 12), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    return ImageData("toy", pixels, torch.arange(60) % 10, pixels[:20], torch.arange(20) % 10)


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize(
    "problem",
    [
        SyntheticProblem(length=32, rows=16, snr_db=20.0),
        SyntheticProblem(length=32, rows=16, nonzeros=3, fixed_phi_seed=1, dtype=torch.complex64),
        ImageProblem(data=_images(), rows=8, centred=True, sharing=4, snr_db=6.0, classes=(3, 8)),
        ImageProblem(data=_images(), rows=8, fixed_phi_seed=1),
    ],
)
def test_batches_are_made_on_the_device_without_a_look_at_a_value(problem: Problem, split: Split) -> None:
    there = problem.on("meta")
    assert there == problem
    if isinstance(problem, ImageProblem):
        vars(there)["energy"] = problem.energy  # A figure of all images, which is read once.
    there.sample(1, seed=0, split=split)  # Images are put on the device once.
    for start in (0, 3):
        with OnMetaOnly():
            batch = there.sample(8, seed=0, split=split, start=start)
        here = problem.sample(8, seed=0, split=split, start=start)
        pairs = [(getattr(here, name), getattr(batch, name)) for name in ("signal", "y", "noise_var")]
        for mine, other in (*pairs, (here.phi.materialize(), batch.phi.materialize())):
            assert (other.device.type, other.shape, other.dtype) == ("meta", mine.shape, mine.dtype)


@pytest.mark.parametrize("name", ["lista", "dlista", "a-dlista", "a-dlista-adaptive"])
def test_the_loss_of_a_network_and_its_gradient_stay_on_the_device(name: str) -> None:
    problem = SyntheticProblem(length=32, rows=16, snr_db=20.0)
    network = build(name, problem, 0).to("meta")
    batch = problem.on("meta").sample(4, seed=0, split="train")
    with OnMetaOnly():
        network.training_loss(batch, generator=torch.Generator()).backward()
