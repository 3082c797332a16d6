"""What is wrong with an input, in one sentence for people: the name, what is allowed, what came."""

import functools
from typing import TypeVar

from pydantic import ValidationError

Class = TypeVar("Class", bound=type)


def printable(text: object, longest: int = 200) -> str:
    """What a file or another program says, fit for a message: one line, not too long, nothing that a terminal acts on."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in str(text)).split())
    return line if len(line) <= longest else f"{line[:longest]}…"


def sentence(fault: ValidationError) -> str:
    """The first complaint: "batch_size must be greater than 0, got -1"."""
    first = fault.errors()[0]
    place, said = ".".join(str(part) for part in first["loc"]), first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error" or not place:
        return printable(said)
    if said.startswith("Input should be "):
        return printable(f"{place} must be {said.removeprefix('Input should be ')}, got {first['input']!r:.60}")
    return printable(f"{place}: {said[0].lower()}{said[1:]}")


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
