"""Trained models on disk: `save(model, path)` and `load(path)`.

One safetensors file holds every parameter and buffer; its header holds the class, the configuration, the versions of
the packages and where the training came from. A class is found by its name among `vlista_core.models.MODELS` and those
marked with `register_model`: a file can never name code of its own choosing.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import TypeVar, cast, overload

import torch
from torch import Tensor, nn

from vlista_core import tensorfile
from vlista_core.configured import Configured, register, registered
from vlista_core.tensorfile import Json

FORMAT = 1
"""Version of the layout of the file; a file of a newer one is refused."""

_KIND = "model"
_PURPOSE = "model checkpoint"
_PACKAGES = ("vlista", "torch", "safetensors", "numpy")

ModelClass = TypeVar("ModelClass", bound=type[nn.Module])
Model = TypeVar("Model", bound=nn.Module)


def register_model(cls: ModelClass) -> ModelClass:
    """Class decorator: files of this class can be loaded. Another class of the same name is refused."""
    if not (issubclass(cls, nn.Module) and issubclass(cls, Configured)):
        raise ValueError(f"{cls.__name__} cannot be registered as a model: it must be an nn.Module and Configured")
    _known()  # the package's own models hold their names
    return register(cls)


def registered_models() -> tuple[str, ...]:
    """The names of the classes that `load` knows, sorted."""
    return tuple(sorted(_known()))


def _known() -> dict[str, type[nn.Module]]:
    """The package's own models and the registered classes, by name. The models are imported only when they are needed."""
    import vlista_core.models  # noqa: F401

    return {name: cls for name, cls in registered().items() if issubclass(cls, nn.Module)}


def save(
    model: nn.Module, path: Path | str, *, provenance: Mapping[str, Json] | None = None, half: bool = False
) -> None:
    """Write `model` to `path`, whole or not at all; `provenance` (JSON) says how it was trained.

    half: in half precision, for a smaller file; the model that `load` gives back has rounded weights.
    """
    name = type(model).__name__
    if _known().get(name) is not type(model) or not isinstance(model, Configured):
        raise ValueError(
            f"{name} is not a registered model, so no file of it could be loaded; mark the class with register_model"
        )
    header: dict[str, Json] = {
        "kind": _KIND,
        "format": FORMAT,
        "class": name,
        "configuration": tensorfile.as_json(f"{name}.configuration()", model.configuration()),
        "versions": _versions(),
        "provenance": tensorfile.as_json("provenance", dict(provenance or {})),
    }
    tensorfile.write(Path(path), _tensors(model), header, half=half)


@overload
def load(path: Path | str) -> nn.Module: ...
@overload
def load(path: Path | str, *, expected: type[Model]) -> Model: ...
def load(path: Path | str, *, expected: type[nn.Module] | None = None) -> nn.Module:
    """The model in `path`, on the CPU and in evaluation mode; `expected` is the class it must be, or a base of it.

    The global generators are as they were, whatever the constructor draws.
    """
    path = Path(path)
    tensors, header = tensorfile.read(path, purpose=_PURPOSE)
    _check_header(path, header)
    cls = _model_class(path, str(header["class"]), expected)
    try:
        with torch.random.fork_rng(devices=[]):
            model = cast(type[Configured], cls).from_configuration(cast(dict[str, Json], header["configuration"]))
    except (TypeError, KeyError, ValueError) as fault:
        raise ValueError(
            f"{path} has a configuration that {cls.__name__} does not take ({fault}); load it with the version "
            f"that wrote it, {_written_by(header)}"
        ) from fault
    module = cast(nn.Module, model)
    tensorfile.check_fit(path, cls.__name__, tensors, _tensors(module))
    module.load_state_dict(tensors)
    return module.eval()


def read_header(path: Path | str) -> dict[str, Json]:
    """The header of a model file: class, configuration, versions, provenance. No tensor is read."""
    header = tensorfile.read_header(Path(path), purpose=_PURPOSE)
    _check_header(Path(path), header)
    return header


def _check_header(path: Path, header: Mapping[str, Json]) -> None:
    if header.get("kind") != _KIND:
        raise ValueError(
            f"{path} is a {header.get('kind')!s} file and no {_PURPOSE}; use one that checkpoint.save wrote"
        )
    version = header.get("format")
    if version != FORMAT:
        raise ValueError(
            f"{path} has format {version}, and this version of vlista reads format {FORMAT}; install the version "
            f"that wrote it, {_written_by(header)}, or a newer one"
        )


def _model_class(path: Path, name: str, expected: type[nn.Module] | None) -> type[nn.Module]:
    cls = _known().get(name)
    if expected is not None and expected.__name__ != name and not (cls is not None and issubclass(cls, expected)):
        raise ValueError(
            f"{path} holds a model of class {name}, not {expected.__name__}; give another file or expected={name}"
        )
    if cls is None:
        known = ", ".join(registered_models()) or "none"
        raise ValueError(
            f"{path} holds a model of the unknown class {name}; import its module first (known classes: {known})"
        )
    return cls


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            raise ValueError(f"{name} of {type(model).__name__} is a {type(value).__name__}; only tensors can be saved")
        tensors[name] = value
    return tensors


def _versions() -> dict[str, Json]:
    versions: dict[str, Json] = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions


def _written_by(header: Mapping[str, Json]) -> str:
    versions = header.get("versions")
    return f"vlista {versions.get('vlista', 'unknown')}" if isinstance(versions, dict) else "vlista of unknown version"
