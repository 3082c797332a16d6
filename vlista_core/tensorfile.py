"""Tensors and JSON in one safetensors file: written whole or not at all, checked when read, no pickle.

Complex tensors are stored as real pairs (the format has no complex128). A checksum of the tensors and a digest of the
header are kept in the header, because safetensors itself notices a truncated file but not a changed byte.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from pydantic import BaseModel, JsonValue, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from vlista_core.files import write_bytes
from vlista_core.validation import printable

Json = dict[str, "Json"] | list["Json"] | str | int | float | bool | None

_HEADER = "vlista"
_LARGEST_HALF = 6e4


@dataclass(frozen=True)
class Kind:
    """A kind of file: what its header says of it, and what it is called in messages."""

    name: str
    purpose: str
    """As in "model checkpoint"."""
    format: int
    """Version of the layout of the header and of the names of the tensors; a file of another one is refused."""
    parts: tuple[tuple[str, type], ...] = ()
    """Names and types of what the header must have."""


def as_json(what: str, value: Json) -> Json:
    """`value` as it will be read back (tuples become lists), or a ValueError about `what`."""
    try:
        return cast(Json, json.loads(json.dumps(value)))
    except (TypeError, ValueError) as fault:
        raise ValueError(f"{what} must be JSON (dict, list, str, number, bool or None): {fault}") from fault


def write(
    path: Path, kind: Kind, tensors: Mapping[str, Tensor], header: Mapping[str, Json], *, half: bool = False
) -> None:
    """Write `tensors` and `header`, to which the kind is added, to `path`, whole or not at all.

    half: store single precision as float16 where its range allows; `read` gives single precision back, rounded.
    """
    stored: dict[str, Tensor] = {}
    complex_names: list[str] = []
    half_names: list[str] = []
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise ValueError(f"{name} is a {type(tensor).__name__}; only tensors can be saved")
        value = tensor.detach()
        if value.is_complex():
            complex_names.append(name)
            value = torch.view_as_real(value.resolve_conj())
        if half and value.dtype == torch.float32 and value.numel() and float(value.abs().max()) < _LARGEST_HALF:
            half_names.append(name)
            value = value.half()
        stored[name] = value.to("cpu", copy=True).contiguous()
    head = {"kind": kind.name, "format": kind.format, **header}
    frame: dict[str, Json] = {
        "header": as_json("the header", head), "complex": [*complex_names], "checksum": _checksum(stored, layout=True),
        "half": [*half_names],
    }  # fmt: skip
    write_bytes(path, save(stored, metadata={_HEADER: json.dumps({**frame, "digest": _digest(frame)})}))


def read(path: Path, kind: Kind) -> tuple[dict[str, Tensor], dict[str, Json]]:
    """The tensors and the header of a file of `write`, or a ValueError that names the file, the fault and the remedy."""
    frame, tensors = _load(path, kind, tensors=True)
    if _checksum(tensors, layout=_has_digest(frame)) != frame.checksum:
        raise _corrupt(path, kind, "its checksum does not match")
    try:
        for name in frame.half:
            tensors[name] = tensors[name].float()
        for name in frame.complex:
            tensors[name] = torch.view_as_complex(tensors[name])
    except (KeyError, RuntimeError) as fault:
        raise _corrupt(path, kind, f"its header does not fit its tensors: {printable(fault)}") from fault
    return tensors, frame.header


def read_header(path: Path, kind: Kind) -> dict[str, Json]:
    """The header of a file of `write`, without reading its tensors; messages as in `read`."""
    return _load(path, kind, tensors=False)[0].header


def written_by(header: Mapping[str, Json]) -> str:
    """The version of vlista that wrote a file, in words."""
    versions = header.get("versions")
    return printable(
        f"vlista {versions.get('vlista')}" if isinstance(versions, dict) else "vlista of unknown version", 40
    )


def check_fit(path: Path, owner: str, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """ValueError unless the tensors `found` in `path` have the names, shapes and types that `owner` wants."""
    remedy = "the file was written for another configuration; write it again or use another"
    if missing := sorted(wanted.keys() - found.keys()):
        raise ValueError(f"{path} lacks the tensors {printable(', '.join(missing))} of {owner}: {remedy}")
    if extra := sorted(found.keys() - wanted.keys()):
        raise ValueError(f"{path} has the tensors {printable(', '.join(extra))} that {owner} does not: {remedy}")
    for key, value in wanted.items():
        if found[key].shape != value.shape or found[key].dtype != value.dtype:
            raise ValueError(
                f"{path} has {key} of shape {[*found[key].shape]} and type {found[key].dtype}, but {owner} needs "
                f"{[*value.shape]} and {value.dtype}: {remedy}"
            )


class _Frame(BaseModel, frozen=True, extra="forbid", strict=True):
    """What `write` puts into the metadata beside the header: which tensors it changed, and what tells a changed byte."""

    header: dict[str, JsonValue]
    complex: list[str]
    checksum: int
    """Of the tensors."""
    half: list[str] = []
    digest: int = 0
    """Of the fields above. Files had none before; their checksum leaves out the types and shapes of tensors."""


def _load(path: Path, kind: Kind, *, tensors: bool) -> tuple[_Frame, dict[str, Tensor]]:
    """The frame of a file of this kind and, where wanted, its tensors as they are stored."""
    purpose = kind.purpose
    if not path.is_file():
        raise ValueError(f"{path} is not a file, so there is no {purpose} to load; check the path")
    try:
        with safe_open(path, framework="pt") as file:
            described = file.metadata() or {}
            # A copy each: safetensors aligns data to 8 bytes only, and torch's complex128 kernels crash on that.
            stored = {name: file.get_tensor(name).clone() for name in (file.keys() if tensors else ())}
        frame = _Frame.model_validate_json(described.get(_HEADER, "{}"))
    except (SafetensorError, OSError) as fault:
        raise ValueError(
            f"{path} is truncated or not a safetensors file ({printable(fault)}), so it is no {purpose}; write it again "
            "or use another"
        ) from fault
    except ValidationError as fault:
        raise ValueError(
            f"{path} is a safetensors file of another program, so it is no {purpose}; use a file written by vlista"
        ) from fault
    header = frame.header
    if _has_digest(frame) and frame.digest != _digest(frame.model_dump(exclude={"digest"})):
        raise _corrupt(path, kind, "its digest does not match")
    if (found := header.get("kind")) != kind.name:
        raise ValueError(f"{path} is a {printable(found, 40)} file and no {purpose}; give another file")
    if (version := header.get("format")) != kind.format:
        raise ValueError(
            f"{path} has format {printable(version, 40)}, and this version of vlista reads format {kind.format}; install "
            f"the version that wrote it, {written_by(header)}, or a newer one"
        )
    if lacking := [name for name, form in kind.parts if not isinstance(header.get(name), form)]:
        raise _corrupt(path, kind, f"its header lacks {', '.join(lacking)}")
    return frame, stored


def _digest(frame: Mapping[str, Json]) -> int:
    """Of what is kept beside the tensors, whatever the order of keys."""
    return zlib.crc32(json.dumps(frame, sort_keys=True).encode())


def _has_digest(frame: _Frame) -> bool:
    return "digest" in frame.model_fields_set


def _corrupt(path: Path, kind: Kind, why: str) -> ValueError:
    return ValueError(f"{path} is corrupt ({why}), so it is no {kind.purpose}; write it again or use another")


def _checksum(tensors: Mapping[str, Tensor], *, layout: bool) -> int:
    """Of names and bytes, and of types and shapes where `layout` says so."""
    checksum = 0
    for name in sorted(tensors):
        described = f"{name} {tensors[name].dtype} {[*tensors[name].shape]}" if layout else name
        checksum = zlib.crc32(described.encode(), checksum)
        if tensors[name].numel():
            checksum = zlib.crc32(tensors[name].reshape(-1).view(torch.uint8).numpy().data, checksum)
    return checksum
