"""Tensors and JSON in one safetensors file: written whole or not at all, checked when read, no pickle.

Complex tensors are stored as real pairs (the format has no complex128), and a checksum of every tensor's bytes is kept
in the header because safetensors itself notices a truncated file but not a changed byte.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from vlista_core.files import write_bytes

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
    frame = _Frame(head, complex_names, _checksum(stored), half_names)
    write_bytes(path, save(stored, metadata={_HEADER: json.dumps(vars(frame))}))


def read(path: Path, kind: Kind) -> tuple[dict[str, Tensor], dict[str, Json]]:
    """The tensors and the header of a file of `write`, or a ValueError that names the file, the fault and the remedy."""
    frame, tensors = _load(path, kind, tensors=True)
    if _checksum(tensors) != frame.checksum:
        raise ValueError(
            f"{path} is corrupt (its checksum does not match), so it is no {kind.purpose}; write it again or use another"
        )
    for name in frame.half:
        tensors[name] = tensors[name].float()
    for name in frame.complex:
        tensors[name] = torch.view_as_complex(tensors[name])
    return tensors, frame.header


def read_header(path: Path, kind: Kind) -> dict[str, Json]:
    """The header of a file of `write`, without reading its tensors; messages as in `read`."""
    return _load(path, kind, tensors=False)[0].header


def written_by(header: Mapping[str, Json]) -> str:
    """The version of vlista that wrote a file, in words."""
    versions = header.get("versions")
    return f"vlista {versions.get('vlista')}" if isinstance(versions, dict) else "vlista of unknown version"


def check_fit(path: Path, owner: str, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """ValueError unless the tensors `found` in `path` have the names, shapes and types that `owner` wants."""
    remedy = "the file was written for another configuration; write it again or use another"
    if missing := sorted(wanted.keys() - found.keys()):
        raise ValueError(f"{path} lacks the tensors {', '.join(missing)} of {owner}: {remedy}")
    if extra := sorted(found.keys() - wanted.keys()):
        raise ValueError(f"{path} has the tensors {', '.join(extra)} that {owner} does not: {remedy}")
    for key, value in wanted.items():
        if found[key].shape != value.shape or found[key].dtype != value.dtype:
            raise ValueError(
                f"{path} has {key} of shape {[*found[key].shape]} and type {found[key].dtype}, but {owner} needs "
                f"{[*value.shape]} and {value.dtype}: {remedy}"
            )


@dataclass(frozen=True)
class _Frame:
    """What `write` puts into the metadata beside the header: which tensors it changed, and a checksum of all."""

    header: dict[str, Json]
    complex: list[str]
    checksum: int
    half: list[str] = field(default_factory=list)


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
        frame = _Frame(**json.loads(described.get(_HEADER, "{}")))
    except (SafetensorError, OSError) as fault:
        raise ValueError(
            f"{path} is truncated or not a safetensors file ({fault}), so it is no {purpose}; write it again or "
            "use another"
        ) from fault
    except (json.JSONDecodeError, TypeError) as fault:
        raise ValueError(
            f"{path} is a safetensors file of another program, so it is no {purpose}; use a file written by vlista"
        ) from fault
    if (found := frame.header.get("kind")) != kind.name:
        raise ValueError(f"{path} is a {found!s} file and no {purpose}; give another file")
    if (version := frame.header.get("format")) != kind.format:
        raise ValueError(
            f"{path} has format {version}, and this version of vlista reads format {kind.format}; install the version "
            f"that wrote it, {written_by(frame.header)}, or a newer one"
        )
    return frame, stored


def _checksum(tensors: Mapping[str, Tensor]) -> int:
    checksum = 0
    for name in sorted(tensors):
        checksum = zlib.crc32(name.encode(), checksum)
        if tensors[name].numel():
            checksum = zlib.crc32(tensors[name].reshape(-1).view(torch.uint8).numpy().data, checksum)
    return checksum
