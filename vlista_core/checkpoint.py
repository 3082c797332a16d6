"""Trained models on disk: `save(model, path)` and `load(path)`.

One safetensors file holds every parameter and buffer; its header holds the class, the configuration, the versions of
the packages and where the training came from. A class is found by its name among `vlista_core.models.MODELS` and those
marked with `register_model`: a file can never name code of its own choosing.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar, cast, overload

import torch
from torch import nn

from vlista_core import tensorfile
from vlista_core.configured import REGISTERED, Configured, register
from vlista_core.files import versions
from vlista_core.tensorfile import Json, Kind
from vlista_core.validation import printable

MODEL = Kind(
    "model", "model checkpoint", format=1, parts=(("class", str), ("configuration", dict), ("provenance", dict))
)
_REFUSALS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RuntimeError, MemoryError)
"""What a constructor raises when it is given something else than it was written with."""

ModelClass = TypeVar("ModelClass", bound=type[nn.Module])
Model = TypeVar("Model", bound=nn.Module)


def register_model(cls: ModelClass) -> ModelClass:
    """Class decorator: files of this class can be loaded. Another class of the same name is refused."""
    if not (issubclass(cls, nn.Module) and issubclass(cls, Configured)):
        raise ValueError(f"{cls.__name__} cannot be registered as a model: it must be an nn.Module and Configured")
    registered_models()  # the package's own models hold their names
    return register(cls)


def registered_models() -> dict[str, type[nn.Module]]:
    """The classes that `load` knows, by name: the package's own models, imported only now, and the registered ones."""
    import vlista_core.models  # noqa: F401

    return {name: cls for name, cls in sorted(REGISTERED.items()) if issubclass(cls, nn.Module)}


def save(
    model: nn.Module, path: Path | str, *, provenance: Mapping[str, Json] | None = None, half: bool = False
) -> None:
    """Write `model` to `path`, whole or not at all; `provenance` (JSON) says how it was trained.

    half: in half precision, for a smaller file; the model that `load` gives back has rounded weights.
    """
    name = type(model).__name__
    if registered_models().get(name) is not type(model) or not isinstance(model, Configured):
        raise ValueError(
            f"{name} is not a registered model, so no file of it could be loaded; mark the class with register_model"
        )
    header: dict[str, Json] = {
        "class": name,
        "configuration": tensorfile.as_json(f"{name}.configuration()", model.configuration()),
        "versions": versions("safetensors"),
        "provenance": tensorfile.as_json("provenance", dict(provenance or {})),
    }
    tensorfile.write(Path(path), MODEL, model.state_dict(), header, half=half)


@overload
def load(path: Path | str) -> nn.Module: ...
@overload
def load(path: Path | str, *, expected: type[Model]) -> Model: ...
def load(path: Path | str, *, expected: type[nn.Module] | None = None) -> nn.Module:
    """The model in `path`, on the CPU and in evaluation mode; `expected` is the class it must be, or a base of it.

    The global generators are as they were, whatever the constructor draws.
    """
    path = Path(path)
    tensors, header = tensorfile.read(path, MODEL)
    name = str(header["class"])
    known = registered_models()
    cls = known.get(name)
    if expected is not None and expected.__name__ != name and not (cls is not None and issubclass(cls, expected)):
        raise ValueError(
            f"{path} holds a model of class {printable(name)}, not {expected.__name__}; give another file or "
            f"expected={printable(name)}"
        )
    if cls is None:
        raise ValueError(
            f"{path} holds a model of the unknown class {printable(name)}; import its module first (known classes: "
            f"{', '.join(known) or 'none'})"
        )
    try:
        with torch.random.fork_rng(devices=[]):
            model = cast(type[Configured], cls).from_configuration(cast(dict[str, Json], header["configuration"]))
    except _REFUSALS as fault:
        raise ValueError(
            f"{path} has a configuration that {name} does not take ({printable(fault)}); load it with the version "
            f"that wrote it, {tensorfile.written_by(header)}"
        ) from fault
    module = cast(nn.Module, model)
    tensorfile.check_fit(path, name, tensors, module.state_dict())
    module.load_state_dict(tensors)
    return module.eval()


def read_header(path: Path | str) -> dict[str, Json]:
    """The header of a model file: class, configuration, versions, provenance. No tensor is read."""
    return tensorfile.read_header(Path(path), MODEL)
