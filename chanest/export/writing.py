"""Recording an estimator, and the files it is written to."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from chanest.bases.estimator import ChannelEstimator, Form
from chanest.estimators import estimator_class, estimator_names
from chanest.export.core import check_front_end, core_of, received
from chanest.export.pairs import RealForm
from chanest.problem import ChannelProblem
from vlista_core.files import replacing

FORMS: tuple[Form, ...] = get_args(Form)
_MOST = 2**16
"""Samples that a recorded batch may have."""
_OPSET = 20
_NAMES = ("y", "beams", "noise_var", "combiners")


def forms_of(name: str) -> tuple[Form, ...]:
    """The kinds of files of an estimator."""
    return estimator_class(name).exported_as


def form_of(path: Path) -> Form:
    """The kind of file that a name asks for, or a ValueError."""
    for form in FORMS:
        if path.suffix == f".{form}":
            return form
    raise ValueError(f"output must end in {' or '.join(f'.{form}' for form in FORMS)}, got {path.name}")


def check_exported(name: str, form: Form, problem: ChannelProblem) -> None:
    """ValueError where an estimator has no such form, which says which estimators have one, or Φ is none of beams."""
    if form not in forms_of(name):
        able = [each for each in estimator_names() if form in forms_of(each)]
        raise ValueError(f"{name} has no .{form} form; these have one: {', '.join(able)}")
    check_front_end(problem)


def program_of(estimator: ChannelEstimator, problem: ChannelProblem) -> ExportedProgram:
    """The recorded computation of ĥ, for any number of samples: see `ExportedCore`."""
    core, inputs = core_of(estimator, problem), received(problem)
    batch = Dim("batch", min=1, max=_MOST)
    with torch.no_grad():
        core(*inputs)  # what is worked out once per estimator is, and not recorded
        return torch.export.export(core, inputs, dynamic_shapes=tuple({0: batch} for _ in inputs), strict=False)


def exported(estimator: ChannelEstimator, problem: ChannelProblem, path: Path) -> Path:
    """Write an estimator to a file, whole or not at all; the ending of its name says of which kind."""
    form = form_of(path)
    check_exported(estimator.name, form, problem)
    about = {"estimator": estimator.name, "scenario": problem.scenario.name, "inputs": in_words(problem, form)}
    with replacing(path) as temporary, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the recorder, on its own insides
        program = program_of(estimator, problem)
        if form == "pt2":
            torch.export.save(program, temporary, extra_files={"about.json": json.dumps(about)})
        else:
            _write_onnx(program, received(problem), temporary, about)
    return path


def in_words(problem: ChannelProblem, form: Form) -> str:
    """What the file takes and gives."""
    pair = ", 2" if form == "onnx" else ""
    names = zip(_NAMES, received(problem, 1), strict=False)
    sizes = {
        name: [*map(str, value.shape[1:]), *(["2"] if pair and value.is_complex() else [])] for name, value in names
    }
    taken = ", ".join(f"{name} [{', '.join(['batch', *size])}]" for name, size in sizes.items())
    return f"{taken} -> h [batch, {problem.signal_length}{pair}]"


def _write_onnx(program: ExportedProgram, inputs: tuple[Tensor, ...], path: Path, about: dict[str, str]) -> None:
    try:
        import onnxscript  # noqa: F401  the exporter of torch is written in it
    except ImportError as missing:
        raise ValueError("a .onnx file needs packages that are not here: pip install 'vlista[export]'") from missing
    real = tuple(torch.view_as_real(each.resolve_conj()) if each.is_complex() else each for each in inputs)
    batch = Dim("batch", min=1, max=_MOST)
    with torch.no_grad():
        recorded = torch.onnx.export(
            RealForm(program),
            real,
            dynamo=True,
            dynamic_shapes=(tuple({0: batch} for _ in real),),  # of the one starred parameter
            input_names=list(_NAMES[: len(real)]),
            output_names=["h"],
            opset_version=_OPSET,
            verbose=False,
        )
    assert recorded is not None
    recorded.model.metadata_props.update(about)
    recorded.save(path, external_data=False)
