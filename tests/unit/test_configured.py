"""Properties of `Configured`: what is recorded of a constructor's call, and what is built from it."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vlista_core.configured import Configured, argument
from vlista_core.dictionaries import LearnedDictionary
from vlista_core.models import DLISTA


@argument
@dataclass(frozen=True)
class Grid:
    points: int
    steps: tuple[float, ...] = (0.5, 1.0)


@argument
class Inner(nn.Module, Configured):
    def __init__(self, weight: Tensor, *, grid: Grid | None = None) -> None:
        super().__init__()
        self.weight, self.grid = nn.Parameter(weight), grid


class Outer(nn.Module, Configured):
    def __init__(
        self,
        inner: nn.Module,
        size: int,
        *,
        settings: dict[str, float] | None = None,
        dtype: torch.dtype = torch.float64,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.inner, self.size, self.settings, self.dtype = inner, size, settings, dtype


class Narrow(Outer):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__(inner, 1)


def _outer() -> Outer:
    inner = Inner(torch.ones(2, 3, dtype=torch.complex64), grid=Grid(4))
    return Outer(inner, 5, settings={"alpha": 0.1}, generator=torch.Generator())


def test_arguments_are_recorded_by_name_with_defaults_and_without_generators() -> None:
    grid = {"class": "Grid", "fields": {"points": 4, "steps": [0.5, 1.0]}}
    inner = {"weight": {"tensor": [2, 3], "dtype": "complex64"}, "grid": grid}
    assert _outer().configuration() == {
        "inner": {"class": "Inner", "configuration": inner},
        "size": 5,
        "settings": {"alpha": 0.1},
        "dtype": {"dtype": "float64"},
    }


def test_what_is_built_from_a_configuration_in_json_has_the_same_one() -> None:
    text = json.dumps(_outer().configuration())
    again = Outer.from_configuration(json.loads(text))
    assert json.dumps(again.configuration()) == text
    inner = again.inner
    assert isinstance(inner, Inner)
    assert inner.grid == Grid(4)
    assert torch.equal(inner.weight, torch.zeros(2, 3, dtype=torch.complex64))
    assert again.dtype == torch.float64


def test_the_class_that_is_constructed_decides_and_not_its_bases() -> None:
    narrow = Narrow(Inner(torch.ones(2)))
    assert list(narrow.configuration()) == ["inner"]
    assert Narrow.from_configuration(narrow.configuration()).size == 1


def test_copies_keep_what_was_recorded_and_share_nothing() -> None:
    model = _outer()
    twin = copy.deepcopy(model)
    twin.reconfigure(size=9)
    model.configuration()["settings"] = None
    assert twin.configuration() == {**model.configuration(), "size": 9}
    assert model.configuration()["size"] == 5


def test_only_arguments_of_the_constructor_can_be_reconfigured() -> None:
    with pytest.raises(ValueError, match="Outer takes no arguments named width"):
        _outer().reconfigure(width=3)


@pytest.mark.parametrize(
    ("inner", "settings", "message"),
    [
        (nn.Linear(2, 2), None, "inner of Outer .* it is a Linear, .* mark that class with @argument"),
        (Inner(torch.ones(1)), {"class": 1.0}, "settings of Outer .* keys must be strings other than .*'class'"),
        (Inner(torch.ones(1)), {2: 1.0}, "settings of Outer .* keys must be strings other than .* got 2"),
    ],
)
def test_an_argument_that_a_file_cannot_hold_is_named_when_it_is_asked_for(
    inner: nn.Module, settings: Any, message: str
) -> None:
    model = Outer(inner, 1, settings=settings)
    with pytest.raises(ValueError, match=message):
        model.configuration()


def test_a_wrong_call_gets_the_error_of_the_constructor() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'sise'"):
        Outer(nn.Linear(1, 1), sise=3)  # type: ignore[call-arg]


def test_only_registered_classes_are_built() -> None:
    with pytest.raises(ValueError, match=r"unknown class 'os.system'; known are .*Grid"):
        Outer.from_configuration({"inner": {"class": "os.system", "configuration": {}}, "size": 1})


def test_mutable_classes_and_second_ones_of_a_name_cannot_be_arguments() -> None:
    with pytest.raises(ValueError, match="Loose must be a frozen dataclass or a subclass of Configured"):
        argument(type("Loose", (), {}))
    with pytest.raises(ValueError, match=r"a class named Grid is already registered, from .*; rename one"):
        argument(dataclass(frozen=True)(type("Grid", (), {"__module__": "elsewhere"})))


def test_a_model_with_a_learned_dictionary_is_built_from_its_sizes() -> None:
    model = DLISTA(LearnedDictionary(torch.randn(6, 8), scaled=True), layers=2, noise_aware=True)
    again = DLISTA.from_configuration(model.configuration())
    again.load_state_dict(model.state_dict())
    assert again.configuration() == model.configuration()
