"""Damage to the content of a file: what disks, editors, half-finished copies and other programs do to it."""

from __future__ import annotations

import gzip
import io
import json
import random
import re
import struct
from collections.abc import Callable, Sequence
from typing import Any

import h5py
import numpy as np
from PIL import Image

Mutation = Callable[[random.Random, bytes], bytes]
Layer = Callable[[bytes], tuple[bytes, Callable[[bytes], bytes]]]
"""Content -> a part of it, and a function that puts a changed part back so that the whole is well formed again."""

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|true|false|null')
_EXTREMES = (
    *("-1", "0", "1", "2", "7", "-0.0", "0.5", "1e-320", "1e38", "1e300", "-1e308", "1e999", "NaN", "-Infinity", "nan", "inf"),
    *("9" * 5000, str(2**31), str(2**63), str(10**12), "true", "null", '""', '"x"', '"\\u001b[31m\\n"', '"\\ud800"'),
    *("[]", "{}", "[0]", "[[]]", '{"a": 1}', "[1e999, -1]", "1979-05-27", "0x10", "[" * 3000, '{"a":' * 3000, ""),
)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 3, 10**9, 10**30, -(2**63), 0.5, -1e308, 1e-320, float("nan"), float("inf"),
    "", "x", "\x1b[2J\n", "é" * 300, [], [0], [[1]], {}, {"a": 1}, ["x"] * 5,
)  # fmt: skip


def mutated(chance: random.Random, content: bytes, own: Sequence[Mutation], layers: Sequence[Layer]) -> bytes:
    """Good `content` with one to three changes, of its bytes, of its text or JSON, or of a part that is then put back.

    own: changes that only this kind of file knows, as likely as all others together.
    """
    if layers and chance.random() < 0.5:
        part, put_back = chance.choice(layers)(content)
        return put_back(mutated(chance, part, (), ()))
    if own and chance.random() < 0.5:
        return chance.choice(own)(chance, content)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        content = chance.choice(BYTES + TEXT if _is_text(content) else BYTES)(chance, content)
    return content


def flip_bits(chance: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 8)) if content else 0):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def change_bytes(chance: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.choice((1, 1, 4, 16)) if content else 0):
        changed[chance.randrange(len(changed))] = chance.choice((0, 1, 127, 128, 255, chance.randrange(256)))
    return bytes(changed)


def change_the_start(chance: random.Random, content: bytes) -> bytes:
    """Headers are short and data is long: a byte near the start."""
    place = chance.randrange(min(len(content), 64)) if content else 0
    return content[:place] + bytes([chance.randrange(256)]) + content[place + 1 :]


def truncate(chance: random.Random, content: bytes) -> bytes:
    return content[: chance.choice((chance.randint(0, len(content)), max(0, len(content) - chance.randint(1, 9))))]


def insert(chance: random.Random, content: bytes) -> bytes:
    place = chance.choice((chance.randint(0, len(content)), len(content)))
    return content[:place] + chance.randbytes(chance.choice((1, 2, 8, 100))) + content[place:]


def delete(chance: random.Random, content: bytes) -> bytes:
    start, stop = _block(chance, content)
    return content[:start] + content[stop:]


def duplicate(chance: random.Random, content: bytes) -> bytes:
    start, stop = _block(chance, content)
    return content[:stop] + content[start:stop] * chance.choice((1, 1, 2, 50)) + content[stop:]


def swap(chance: random.Random, content: bytes) -> bytes:
    a, b, c, d = sorted(chance.randint(0, len(content)) for _ in range(4))
    return content[:a] + content[c:d] + content[b:c] + content[a:b] + content[d:]


def zero(chance: random.Random, content: bytes) -> bytes:
    start, stop = _block(chance, content)
    return content[:start] + bytes(stop - start) + content[stop:]


def replace_token(chance: random.Random, content: bytes) -> bytes:
    """Another number, string or container in place of one."""
    found = list(_TOKEN.finditer(content))
    if not found:
        return content
    token = chance.choice(found)
    return content[: token.start()] + chance.choice(_EXTREMES).encode() + content[token.end() :]


def change_digit(chance: random.Random, content: bytes) -> bytes:
    """A number that is as good as the one before, and wrong."""
    found = list(re.finditer(rb"\d", content))
    if not found:
        return content
    place = chance.choice(found).start()
    return content[:place] + str(chance.randrange(10)).encode() + content[place + 1 :]


def change_lines(chance: random.Random, content: bytes) -> bytes:
    """A line twice, nowhere, or elsewhere."""
    lines = content.splitlines(keepends=True)
    if not lines:
        return content
    line = lines.pop(chance.randrange(len(lines)))
    for _ in range(chance.randrange(3)):
        lines.insert(chance.randint(0, len(lines)), line)
    return b"".join(lines)


def change_encoding(chance: random.Random, content: bytes) -> bytes:
    try:
        return content.decode().encode(chance.choice(("utf-16", "utf-8-sig", "utf-32-le", "cp037")))
    except UnicodeError:
        return content.replace(b"\n", b"\r\n")


def change_structure(chance: random.Random, content: bytes) -> bytes:
    """Another value, a missing or an extra key somewhere in JSON, or in one line of JSON lines."""
    lines = content.splitlines()
    try:
        trees, end = [json.loads(content)], b""
    except (ValueError, RecursionError):
        try:
            trees, end = [json.loads(line) for line in lines], b"\n"
        except (ValueError, RecursionError):
            return content
    if not trees:
        return content
    place = chance.randrange(len(trees))
    trees[place] = _changed(chance, trees[place])
    return b"\n".join(json.dumps(tree).encode() for tree in trees) + end


def _changed(chance: random.Random, tree: Any) -> Any:
    """`tree` with one change, at any depth."""
    if not isinstance(tree, dict | list) or not tree or chance.random() < 0.05:
        return chance.choice(_VALUES)
    copied = tree.copy()
    key = chance.choice(list(tree) if isinstance(tree, dict) else range(len(tree)))
    match chance.randrange(8):
        case 0:
            del copied[key]
        case 1 if isinstance(copied, dict):
            copied[chance.choice(("", "x", "kind", "\x07bell", str(key).upper()))] = chance.choice(_VALUES)
        case 2 if isinstance(copied, dict):
            copied[f"{key}_"] = copied.pop(key)
        case 3 if isinstance(copied, list):
            copied.append(chance.choice((tree[0], *_VALUES)))
        case _:
            copied[key] = _changed(chance, tree[key])
    return copied


BYTES: tuple[Mutation, ...] = (
    flip_bits, change_bytes, change_the_start, truncate, insert, delete, duplicate, swap, zero,
)  # fmt: skip
TEXT: tuple[Mutation, ...] = (
    replace_token, replace_token, replace_token, change_digit, change_lines, change_encoding, change_structure,
    change_structure, change_structure,
)  # fmt: skip


def gzipped(content: bytes) -> tuple[bytes, Callable[[bytes], bytes]]:
    """Layer: what is inside a gzip file."""
    return gzip.decompress(content), lambda part: gzip.compress(part, mtime=0)


def safetensors_header(content: bytes) -> tuple[bytes, Callable[[bytes], bytes]]:
    """Layer: the JSON at the start of a safetensors file; its length is put right."""
    [length] = struct.unpack("<Q", content[:8])
    rest = content[8 + length :]
    return content[8 : 8 + length], lambda part: struct.pack("<Q", len(part)) + part + rest


def safetensors_metadata(content: bytes) -> tuple[bytes, Callable[[bytes], bytes]]:
    """Layer: the JSON that vlista keeps, as a string, in the JSON of a safetensors file."""
    text, put_back = safetensors_header(content)
    header = json.loads(text)

    def put(part: bytes) -> bytes:
        header["__metadata__"]["vlista"] = part.decode("utf-8", "replace")
        return put_back(json.dumps(header).encode())

    return header["__metadata__"]["vlista"].encode(), put


def edit_hdf5(chance: random.Random, content: bytes) -> bytes:
    """What another program that knows HDF5 might have done: attributes and data sets changed, gone or of another type."""
    stream = io.BytesIO(content)
    try:
        with h5py.File(stream, "r+") as file:
            names: list[str] = []
            file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
            what, name = chance.choice(sorted(file.attrs)), chance.choice(sorted(names))
            match chance.randrange(8):
                case 0:
                    del file.attrs[what]
                case 1 | 2:
                    file.attrs[what] = chance.choice(
                        (0, 1, -1, 2**40, 1.5, "x", "", "\x1b[2J", [1, 2], np.zeros((2, 0)))
                    )
                case 3:
                    del file[name]
                case 4:
                    file[name][...] = chance.choice((0, 1, 2))
                case _:
                    shape, kind = file[name].shape, file[name].dtype
                    del file[name]
                    shape = chance.choice(
                        (shape, (), (0,), (*shape, 1), (shape[0] + 1, *shape[1:]), shape[:1], (10**9, 64))
                    )
                    kind = chance.choice((kind, "f4", "i8", "c16", "S5", "u1"))
                    file.create_dataset(name, shape, kind, chunks=True if shape and chance.random() < 0.2 else None)
    except (OSError, ValueError, LookupError, RuntimeError, TypeError, AttributeError):
        return content  # a change before this one has broken the file
    return stream.getvalue()


def another_picture(chance: random.Random, content: bytes) -> bytes:
    """A sound PNG of another size or mode."""
    stream = io.BytesIO()
    size = chance.choice((1, 2, 1024)), chance.choice((1, 2, 3))
    Image.new(chance.choice(("RGB", "RGBA", "L", "P", "1", "I;16")), size).save(stream, "PNG")
    return stream.getvalue()


def _block(chance: random.Random, content: bytes) -> tuple[int, int]:
    start = chance.randint(0, len(content))
    return start, min(len(content), start + chance.choice((1, 4, 64, 1000)))


def _is_text(content: bytes) -> bool:
    return b"\x00" not in content[:200] and content[:1].isascii()
