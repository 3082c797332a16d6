"""Properties of `checkpoint.save` and `checkpoint.load`."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from training_toys import ToyModel, ToyProblem

from vlista_core import checkpoint, tensorfile
from vlista_core.checkpoint import load, register_model, save
from vlista_core.configured import Configured


@register_model
class Tied(nn.Module, Configured):
    """Two names for one parameter, a complex128 buffer, an integer buffer, an empty one."""

    def __init__(self, size: int = 3) -> None:
        super().__init__()
        self.size = size
        self.first = nn.Linear(size, size, bias=False)
        self.second = nn.Linear(size, size, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("spectrum", torch.complex(torch.ones(size), torch.full((size,), 2.0)).to(torch.complex128))
        self.count: Tensor
        self.register_buffer("count", torch.tensor(7))
        self.register_buffer("nothing", torch.empty(0, 3))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_a_loaded_model_estimates_bit_for_bit_what_the_saved_one_did(path: Path, dtype: str) -> None:
    model = ToyModel(dtype=dtype)
    with torch.no_grad():
        model.step.add_(0.01)
        model.standard.add_(3.0)
    save(model, path)
    loaded = load(path, expected=ToyModel)
    batch = ToyProblem(getattr(torch, dtype)).sample(4, seed=0)
    one, two = (m.estimate(batch.y, batch.phi, batch.noise_var).signal for m in (model, loaded))
    assert torch.equal(one, two)
    assert torch.equal(model.standard, loaded.standard)
    assert not loaded.training


def test_tied_parameters_stay_tied_and_every_kind_of_buffer_comes_back(path: Path) -> None:
    model = Tied()
    model.count.add_(1)
    before = torch.random.get_rng_state()
    save(model, path)
    loaded = load(path, expected=Tied)
    assert torch.equal(before, torch.random.get_rng_state())
    assert loaded.first.weight is loaded.second.weight
    for name, value in model.state_dict().items():
        assert loaded.state_dict()[name].dtype == value.dtype
        assert torch.equal(loaded.state_dict()[name], value)


def test_the_header_says_what_the_model_is_and_where_it_came_from(path: Path) -> None:
    save(ToyModel(noise=0.5), path, provenance={"seed": 3, "best": -12.5})
    header = checkpoint.read_header(path)
    assert header["class"] == "ToyModel"
    assert header["configuration"] == {"n": 12, "dtype": "float32", "noise": 0.5, "poison": 0.0}
    assert header["provenance"] == {"seed": 3, "best": -12.5}
    versions = header["versions"]
    assert isinstance(versions, dict)
    assert versions["torch"] == torch.__version__
    with safe_open(path, framework="pt") as file:
        assert "psi" in file.keys()  # noqa: SIM118


def test_a_header_is_read_without_the_tensors(path: Path) -> None:
    save(ToyModel(), path)
    spoil(path, "flipped")
    assert checkpoint.read_header(path)["class"] == "ToyModel"


def test_a_failed_save_leaves_the_old_file_and_nothing_else(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(Tied(), path)
    old = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ValueError, match=r"cannot write .*: no space left"):
        save(Tied(), path)
    assert path.read_bytes() == old
    assert list(path.parent.iterdir()) == [path]


def test_a_file_has_the_permissions_that_the_umask_gives(path: Path) -> None:
    save(Tied(), path)
    (path.parent / "plain").touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((path.parent / "plain").stat().st_mode)


def rewritten(path: Path, kind: tensorfile.Kind = checkpoint.MODEL, **changes: Any) -> None:
    tensors, header = tensorfile.read(path, checkpoint.MODEL)
    tensors |= changes.pop("tensors", {})
    for name in changes.pop("without", ()):
        del tensors[name]
    described = {name: value for name, value in header.items() if name not in ("kind", "format")}
    tensorfile.write(path, kind, tensors, described | changes)


def spoil(path: Path, how: str) -> None:
    content = path.read_bytes()
    match how:
        case "missing":
            path.unlink()
        case "folder":
            path.unlink()
            path.mkdir()
        case "truncated":
            path.write_bytes(content[:-10])
        case "header cut":
            path.write_bytes(content[:40])
        case "empty":
            path.write_bytes(b"")
        case "text":
            path.write_text("weights = good\n" * 20)
        case "flipped":
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        case "foreign":
            save_file({"weight": torch.zeros(3)}, path)
        case "resume":
            rewritten(path, replace(checkpoint.MODEL, name="training"))
        case "newer":
            rewritten(path, replace(checkpoint.MODEL, format=2), versions={"vlista": "9.1"})
        case "unknown":
            rewritten(path, checkpoint.MODEL, **{"class": "os.system"})
        case "lacking":
            rewritten(path, without=["psi"])
        case "extra":
            rewritten(path, tensors={"bias": torch.zeros(2)})
        case "shape":
            rewritten(path, tensors={"psi": torch.zeros(2, 2)})
        case "type":
            rewritten(path, tensors={"psi": torch.zeros(12, 12, dtype=torch.float64)})
        case "configuration":
            rewritten(path, configuration={"width": 3})


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("missing", "is not a file, so there is no model checkpoint to load; check the path"),
        ("folder", "is not a file"),
        ("truncated", "is truncated or not a safetensors file"),
        ("header cut", "is truncated or not a safetensors file"),
        ("empty", "is truncated or not a safetensors file"),
        ("text", "is truncated or not a safetensors file"),
        ("flipped", "is corrupt"),
        ("foreign", "is a safetensors file of another program"),
        ("resume", "is a training file and no model checkpoint"),
        ("newer", "has format 2, and this version of vlista reads format 1; install .* vlista 9.1"),
        ("unknown", "holds a model of the unknown class os.system; import its module first"),
        ("lacking", "lacks the tensors psi of ToyModel"),
        ("extra", "has the tensors bias that ToyModel does not"),
        ("shape", r"has psi of shape \[2, 2\] and type torch.float32, but ToyModel needs \[12, 12\]"),
        ("type", "type torch.float64, but ToyModel needs .* torch.float32"),
        ("configuration", "has a configuration that ToyModel does not take"),
    ],
)
def test_a_bad_file_gets_one_sentence_that_names_it(path: Path, how: str, message: str) -> None:
    save(ToyModel(), path)
    spoil(path, how)
    with pytest.raises(ValueError, match=message) as caught:
        load(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_another_class_than_expected_is_refused(path: Path) -> None:
    save(ToyModel(), path)
    with pytest.raises(
        ValueError, match="holds a model of class ToyModel, not Tied; give another file or expected=ToyModel"
    ):
        load(path, expected=Tied)
    assert isinstance(load(path, expected=nn.Module), ToyModel)


def test_only_registered_classes_with_json_configurations_are_saved(path: Path) -> None:
    with pytest.raises(ValueError, match=r"Linear is not a registered model.*register_model"):
        save(nn.Linear(2, 2), path)
    with pytest.raises(ValueError, match=r"noise of ToyModel cannot be put into a configuration"):
        save(ToyModel(noise=object()), path)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="provenance must be JSON"):
        save(ToyModel(), path, provenance={"problem": object()})  # type: ignore[dict-item]
    assert not path.exists()


def test_two_classes_of_one_name_cannot_both_be_registered() -> None:
    other = type("ToyModel", (ToyModel,), {"__module__": "elsewhere"})
    with pytest.raises(ValueError, match="a class named ToyModel is already registered"):
        register_model(other)
    with pytest.raises(
        ValueError, match=r"Linear cannot be registered as a model: it must be an nn.Module and Configured"
    ):
        register_model(nn.Linear)


def test_half_precision_makes_a_smaller_file_and_rounds_the_weights(path: Path) -> None:
    model = Tied(64)
    save(model, path)
    whole = path.stat().st_size
    save(model, path, half=True)
    assert path.stat().st_size < 0.8 * whole
    for name, value in load(path, expected=Tied).state_dict().items():
        assert value.dtype == model.state_dict()[name].dtype
        torch.testing.assert_close(value, model.state_dict()[name], rtol=1e-3, atol=1e-6)
    assert not torch.equal(load(path).state_dict()["first.weight"], model.first.weight)


def test_half_precision_keeps_what_it_cannot_hold(path: Path) -> None:
    model = Tied(4)
    with torch.no_grad():
        model.first.weight.fill_(1e6)
    save(model, path, half=True)
    assert torch.equal(load(path).state_dict()["first.weight"], model.first.weight)
