"""The python layout of CIFAR-10 without pickle: the few instructions that these files use, read as data.

Such a file is a program for a stack machine that can call any function of any module. This reader calls nothing: an
array is kept as the tuple of its parts, and any other instruction or name is refused.
"""

from __future__ import annotations

import pickletools
from typing import Any

import numpy as np
from numpy.typing import NDArray

_NAMES = {"numpy.core.multiarray _reconstruct", "numpy ndarray", "numpy dtype"}


class _Object:
    """An array or its type: what a call would have made, and the state that it would have been given."""

    state: Any = None


def read_python_batch(content: bytes) -> tuple[list[int], NDArray[np.uint8]]:
    """The labels [records] and planes [records, 3072] of a file such as 'data_batch_1'; ValueError if it is no such."""
    try:
        batch = _read(content)
        _, shape, _, column_major, entries = batch["data"].state
        planes = np.frombuffer(entries.encode("latin-1"), dtype=np.uint8).reshape(shape)
        labels = batch["labels"]
    except (AttributeError, IndexError, KeyError, TypeError) as fault:
        raise ValueError(f"it is no batch of CIFAR-10 in its python layout ({fault!r})") from fault
    if column_major or planes.ndim != 2 or planes.shape[1] != 3072 or not isinstance(labels, list):
        raise ValueError(f"it must hold labels and an array [pictures, 3072], got {[*planes.shape]}")
    return labels, planes


def _read(content: bytes) -> Any:
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[Any, Any] = {}

    def pop(count: int) -> list[Any]:
        if count > len(stack):
            raise IndexError("too few items")
        taken = stack[len(stack) - count :]
        del stack[len(stack) - count :]
        return taken

    def pop_to_mark() -> list[Any]:
        return pop(len(stack) - marks.pop())

    for instruction, argument, _ in pickletools.genops(content):
        match instruction.name:
            case "PROTO":
                pass
            case "STOP":
                return stack[-1]
            case "MARK":
                marks.append(len(stack))
            case "BININT" | "BININT1" | "BININT2" | "BINSTRING" | "SHORT_BINSTRING":
                stack.append(argument)
            case "NONE" | "NEWFALSE" | "EMPTY_DICT" | "EMPTY_LIST":
                stack.append({"NONE": None, "NEWFALSE": False, "EMPTY_DICT": {}, "EMPTY_LIST": []}[instruction.name])
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(pop(int(instruction.name[-1]))))
            case "TUPLE":
                stack.append(tuple(pop_to_mark()))
            case "APPENDS":
                items = pop_to_mark()
                stack[-1].extend(items)
            case "SETITEMS":
                items = pop_to_mark()
                stack[-1].update(zip(items[::2], items[1::2], strict=True))
            case "GLOBAL" if argument in _NAMES:
                stack.append(argument)
            case "REDUCE":
                pop(2)
                stack.append(_Object())
            case "BUILD":
                [state] = pop(1)
                stack[-1].state = state
            case name:
                raise ValueError(f"it was refused: {name} {argument!r} has no place in a batch of CIFAR-10")
    raise ValueError("it has no end")
