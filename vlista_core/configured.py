"""Classes that remember how they were constructed, as JSON, so that a file can build them again.

    class Filter(nn.Module, Configured): ...        Filter(8).configuration() == {"taps": 8}

Tensors are recorded by shape and dtype and come back as zeros, to be filled from the state. Classes are recorded by their
name and found among the registered ones only: a file can never name code of its own choosing.
"""

import copy
import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Self, TypeVar, cast

import torch
from torch import Tensor

from vlista_core.tensorfile import Json

_DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float32, torch.float64, torch.complex64, torch.complex128, torch.int32, torch.int64, torch.bool)
}
_RESERVED = ("tensor", "dtype", "class")
REGISTERED: dict[str, type] = {}
"""The classes that a file may name."""

Class = TypeVar("Class", bound=type)


class Configured:
    """Mixin that records the arguments of the constructor, defaults included, as they are when it is called.

    Generators are left out: what they draw is in the state. The constructor must accept tensors of zeros.
    """

    _arguments: dict[str, Json]
    _unrecorded: dict[str, str]

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        self = super().__new__(cls)
        # An nn.Module is not yet set up here, so that its own __setattr__ has to be passed by.
        self.__dict__["_arguments"], self.__dict__["_unrecorded"] = {}, {}
        try:
            bound = inspect.signature(cls.__init__).bind(self, *args, **kwargs)
        except TypeError:  # the constructor says what is wrong; copies are made without arguments and bring their own
            return self
        bound.apply_defaults()
        self._record(dict(list(bound.arguments.items())[1:]))
        return self

    def configuration(self) -> dict[str, Json]:
        """The constructor's arguments as JSON; the values of tensors are in the state."""
        for name, reason in self._unrecorded.items():
            raise ValueError(f"{name} of {type(self).__name__} cannot be put into a configuration: {reason}")
        return copy.deepcopy(self._arguments)

    @classmethod
    def from_configuration(cls, configuration: dict[str, Json]) -> Self:
        """The object that `configuration` describes, before its state is loaded."""
        build: Callable[..., Self] = cls
        return build(**{name: decode(value) for name, value in configuration.items()})

    def reconfigure(self, **arguments: object) -> None:
        """Change what is recorded, where fitting changed a size. Only arguments of the constructor are taken."""
        if unknown := arguments.keys() - self._arguments.keys() - self._unrecorded.keys():
            raise ValueError(f"{type(self).__name__} takes no arguments named {', '.join(sorted(unknown))}")
        self._record(arguments)

    def _record(self, arguments: Mapping[str, object]) -> None:
        for name, value in arguments.items():
            self._arguments.pop(name, None)
            self._unrecorded.pop(name, None)
            if isinstance(value, torch.Generator) or name == "generator":
                continue
            try:
                self._arguments[name] = encode(value)
            except ValueError as fault:
                self._unrecorded[name] = str(fault)


def register(cls: Class) -> Class:
    """Let files name this class. Another class of the same name is refused."""
    known = REGISTERED.get(cls.__name__, cls)
    if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ValueError(
            f"a class named {cls.__name__} is already registered, from {known.__module__}; rename one of the two"
        )
    REGISTERED[cls.__name__] = cls
    return cls


def argument(cls: Class) -> Class:
    """Class decorator: instances, of a frozen dataclass or of a Configured class, can be arguments of Configured classes."""
    frozen = getattr(getattr(cls, "__dataclass_params__", None), "frozen", False)
    if not (frozen or issubclass(cls, Configured)):
        raise ValueError(f"{cls.__name__} must be a frozen dataclass or a subclass of Configured to be an argument")
    return register(cls)


def encode(value: object) -> Json:
    """An argument as JSON, or a ValueError that says why there is none."""
    name = type(value).__name__
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        return {"tensor": [int(size) for size in value.shape], "dtype": str(value.dtype).removeprefix("torch.")}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, list | tuple):
        return [encode(entry) for entry in value]
    if isinstance(value, dict):
        if wrong := [key for key in value if not isinstance(key, str) or key in _RESERVED]:
            raise ValueError(f"its keys must be strings other than {', '.join(_RESERVED)}, got {wrong[0]!r}")
        return {key: encode(entry) for key, entry in value.items()}
    if REGISTERED.get(name) is not type(value):
        raise ValueError(f"it is a {name}, which is neither JSON nor a tensor; mark that class with @argument")
    if isinstance(value, Configured):
        return {"class": name, "configuration": value.configuration()}
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}  # type: ignore[arg-type]
    return {"class": name, "fields": {key: encode(entry) for key, entry in fields.items()}}


def decode(value: Json) -> object:
    """The argument that `encode` wrote: tensors as zeros, lists and tuples as tuples."""
    if isinstance(value, list):
        return tuple(decode(entry) for entry in value)
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return torch.zeros(cast(list[int], value["tensor"]), dtype=_DTYPES[str(value["dtype"])])
    if "dtype" in value:
        return _DTYPES[str(value["dtype"])]
    if "class" not in value:
        return {key: decode(entry) for key, entry in value.items()}
    name = str(value["class"])
    cls = REGISTERED.get(name)
    if cls is None:
        raise ValueError(f"unknown class {name!r}; known are {', '.join(sorted(REGISTERED))}")
    if issubclass(cls, Configured):
        return cls.from_configuration(cast(dict[str, Json], value["configuration"]))
    return cls(**{key: decode(entry) for key, entry in cast(dict[str, Json], value["fields"]).items()})
