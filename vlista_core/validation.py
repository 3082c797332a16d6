"""What pydantic finds wrong, in one sentence for people: the name, what is allowed, what came."""

import functools
from typing import TypeVar

from pydantic import ValidationError

Class = TypeVar("Class", bound=type)


def sentence(fault: ValidationError) -> str:
    """The first complaint: "batch_size must be greater than 0, got -1"."""
    first = fault.errors()[0]
    place, said = ".".join(str(part) for part in first["loc"]), first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error" or not place:
        return said
    if said.startswith("Input should be "):
        return f"{place} must be {said.removeprefix('Input should be ')}, got {first['input']!r:.60}"
    return f"{place}: {said[0].lower()}{said[1:]}"


def refused_in_a_sentence(cls: Class) -> Class:
    """Class decorator: what pydantic refuses when an instance is built is a ValueError of one sentence."""
    build = vars(cls)["__init__"]

    @functools.wraps(build)
    def checked(self: object, *args: object, **kwargs: object) -> None:
        try:
            build(self, *args, **kwargs)
        except ValidationError as fault:
            raise ValueError(sentence(fault)) from None

    type.__setattr__(cls, "__init__", checked)
    return cls
