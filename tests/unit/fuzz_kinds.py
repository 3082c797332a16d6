"""Every kind of file that the project reads: a small good one from the project's own writer, how it is read, what is right.

A new kind of file is one function and one entry of `KINDS`; the tests and `make fuzz` find it there.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import fuzz_mutations as mutations
import h5py
import numpy as np
import scipy.io
import torch
from fuzz_mutations import Layer, Mutation
from image_toys import CIFAR_FILES, MNIST_FILES, TRAIN_IMAGES, python_batch, sheets, tar
from pydantic import BaseModel
from study_toys import REGISTRY, Toy
from torch import Tensor
from training_toys import ToyModel

import chanest
from chanest.channels.store import ChannelFile, DataSet, write_channels
from chanest.channels.traced import Site, TracedUsers
from chanest.estimators.gmm import GMM
from chanest.problem import ChannelProblem
from chanest.scenario import Scenario, load_scenario
from chanest.uncertainty.calibration import Calibration, Feature, Intervals
from chanest.weights import SHIPPED
from chanest.weights.training import save_estimator
from vlista_core import checkpoint
from vlista_core.data.cifar10 import CIFAR10
from vlista_core.data.download import LARGEST, unpack
from vlista_core.data.image_set import ImageData, ImageSet
from vlista_core.data.mnist import MNIST
from vlista_core.files import read_json, write_json
from vlista_core.study import Provenance, Record, read_study
from vlista_core.study.store import Store
from vlista_core.training import state

_TINY = """
description = "as small as it gets"
snr_db = [0.0, 20]
[bs]
rows = 2
columns = 1
yaw_spread = 60.0
[ue]
rows = 1
columns = 1
pattern = "omni"
[channel]
{channel}
[frontend]
pilots = 2
beams = "quantised"
chains = 1
[data]
seed = 3
"""
_CDL = 'models = ["C", "E"]\nspeed = [0.0, 3.0]\nsnapshots = 2\nsnapshot_interval = 1e-3\nsubcarriers = 2'
_PATHS = 'kind = "paths"\npaths = 1\ntaps = 1\nsubcarriers = 1'
_CLUSTERS = 'kind = "clusters"\nclusters = [1, 3]\nspread = [0.1, 5.0]\nline_of_sight = 0.5\nsubcarriers = 2'
_GRID = """
[frontend.pattern]
kind = "comb"
spacing = 2
offset = 1
symbols = [0, 2]
slot = 4
seed = 1
"""
"""Of _CDL, with two snapshots in a sample."""
_SCM = 'kind = "scm"\nclusters = 2\nbs_spread = 2.0\nue_spread = 35.0'
_CELL = 'kind = "umi"\ncarrier = 5e9\nindoor = 0.5\nloss = "high"\nsubcarriers = 2\nnormalisation = "sample"'
_FILE = 'kind = "file"\npath = "own.npy"\naxes = ["sample", "receive", "transmit"]\nshares = [0.6, 0.2, 0.2]'
_AMP = "cdl_c_upa64x4.amp.safetensors"
"""A shipped file, from before files had a digest."""
_SMALL = 2**16
"""Entries of Φ that are worth a sample."""


@dataclass(frozen=True, eq=False)
class FileKind:
    """How to make, read and judge a kind of file."""

    file: str
    """The name of the file that is changed."""
    make: Callable[[Path], None]
    """Write it, and what is read with it, into a folder."""
    read: Callable[[Path], object]
    """What the file at a path holds. Only a ValueError of one sentence that names the file may come in its place."""
    unprotected: Callable[[bytes], bool] = lambda content: False
    """Whether no digest covers this content: another result than that of the good file is right if `valid` says so."""
    valid: Callable[[Any], bool] = lambda found: True
    own: Sequence[Mutation] = ()
    layers: Sequence[Layer] = ()
    named: str = ""
    """What a message has to name, where it is not the file."""


def plain(value: object) -> object:
    """Tensors, arrays, models and containers as something whose `repr` is equal if and only if they are."""
    if isinstance(value, Tensor):
        return (
            str(value.dtype),
            [*value.shape],
            hashlib.sha256(value.detach().contiguous().numpy().tobytes()).hexdigest(),
        )
    if isinstance(value, np.ndarray):
        return plain(torch.from_numpy(value))
    if isinstance(value, BaseModel):
        return type(value).__name__, plain(value.model_dump())
    if isinstance(value, Mapping):
        return {key: plain(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return value


def finite(value: object) -> bool:
    """Whether JSON has no NaN and no Inf in it."""
    if isinstance(value, dict | list | tuple):
        return all(finite(entry) for entry in (value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or math.isfinite(value)


def _usable(scenario: Scenario) -> bool:
    """Whether a scenario gives finite samples of the shapes it says; large ones are taken at their word."""
    problem = ChannelProblem(scenario)
    if problem.measurements * problem.signal_length > _SMALL:
        return True
    batch = problem.sample(2, seed=0)
    shapes = batch.signal.shape == (2, problem.signal_length) and batch.y.shape == (2, problem.measurements)
    return shapes and all(bool(part.isfinite().all()) for part in (batch.signal, batch.y, batch.noise_var))


@cache
def _tiny(channel: str = _PATHS) -> Scenario:
    return Scenario.model_validate({"name": "tiny", **tomllib.loads(_TINY.format(channel=channel))})


def _scenario(channel: str, grid: str = "") -> FileKind:
    text = _TINY.format(channel=channel) + grid
    if grid:
        text = text.replace("chains = 1", "chains = 1\nsnapshots = 2")
    if channel == _SCM:
        text = text.replace("rows = 2", "rows = 1").replace("yaw_spread = 60.0", "spacing = 0.5")

    def make(folder: Path) -> None:
        _make_files({"tiny.toml": text.encode()}, folder)
        np.save(folder / "own.npy", _OWN[:, :1, :2])

    return FileKind("tiny.toml", make, load_scenario, unprotected=lambda content: True, valid=_usable)


def _read_beside(path: Path) -> object:
    """A scenario with the channels that lie beside it, wherever that is."""
    found = load_scenario(path)
    return _usable(found), found.model_copy(update={"channel": found.channel.model_copy(update={"path": ""})})


@cache
def _gmm_problem() -> ChannelProblem:
    return ChannelProblem(_tiny("models = ['C']"))


def _make_weights(folder: Path) -> None:
    problem = _gmm_problem()
    network = GMM(*problem.arrays, structure="toeplitz", components=2)
    with torch.no_grad():
        network.log_prior.copy_(torch.tensor([-0.25, -1.5]))
    save_estimator(network, problem, folder / "tiny.gmm.safetensors", facts={"seed": 0, "budget": "2 s"})


def _read_estimator(name: str, problem: Callable[[], ChannelProblem], path: Path) -> object:
    """The network, and what its file says of it."""
    found = chanest.get_estimator(name, problem(), weights=path)
    return found.state_dict(), found.configuration(), chanest.weights.provenance(path), found.calibration


@cache
def _amp_problem() -> ChannelProblem:
    return ChannelProblem(load_scenario("cdl_c_upa64x4"))


def _make_checkpoint(folder: Path) -> None:
    checkpoint.save(ToyModel(3, dtype="complex64", noise=0.25), folder / "model.safetensors", provenance={"best": 1.5})


def _read_checkpoint(path: Path) -> object:
    model = checkpoint.load(path, expected=ToyModel)
    return model.state_dict(), model.configuration(), checkpoint.read_header(path)["provenance"]


_RUN: dict[str, Any] = {"model": "ToyModel", "seed": 1, "learning_rate": 0.01}


def _make_resume(folder: Path) -> None:
    model = ToyModel(3)
    optimizer = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    record = state.Record(step=5, seconds=0.5, loss=math.nan, validation=0.25, learning_rate=0.01)
    result = state.TrainingResult((record,), 0.25, 5, 7, 0.75, ("one loss was not finite",), failures=1)
    current = state.Snapshot.of(model, optimizer)
    state.write(folder / "run.safetensors", result, current, current.model, _RUN)


def _read_resume(path: Path) -> object:
    model = ToyModel(3)
    optimizer = torch.optim.Adam(model.parameters())
    result, current, best = state.read(path, model, _RUN)
    current.restore(model, optimizer)
    return vars(result), model.state_dict(), optimizer.state_dict(), best


def _make_calibration(folder: Path) -> None:
    Calibration(
        format=1, estimator="ls", scenario="tiny", frontend={"pilots": 2}, weights="a64d92c438c72a89",
        snr_db=(-10.0, 0.0, 30.0), log_scale=(0.25, 0.5, 0.75),
        features={"energy": Feature(slope=(0.5, 0.25, 0.125), low=-1.5, high=2.5)}, profile=(1.25, 0.5),
        intervals=Intervals(snr_db=(0.0, 10.0), levels=(0.5, 0.9), squared_radius=((0.5, 2.5), (0.25, 2.25)), channels=64),
        provenance={"seed": 1000},
    ).write(folder / "tiny.ls.calibration.json")  # fmt: skip


def _data(count: int) -> DataSet:
    return _tiny().data_set("train", count=count)


def _make_channels(folder: Path) -> None:
    write_channels(folder / "channels.h5", _data(3))


def _read_channels(path: Path) -> object:
    file = ChannelFile.open(path)
    file.check_holds(_data(3).channel_hash, "tiny")
    if not file.holds(range(3), 3, "train"):
        raise ValueError(f"{path}: does not hold the samples that were asked for")
    h, rays = file.read(range(3))
    return h, rays.tensors() if rays else None


def _make_partial(folder: Path) -> None:
    """What a run leaves that was killed after its first chunk."""

    def stop(done: int) -> None:
        raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        write_channels(folder / "channels.h5", _data(258), on_progress=stop)
    (folder / "channels.h5.lock").unlink(missing_ok=True)


def _read_partial(path: Path) -> object:
    """Go on from it."""
    h, rays = write_channels(path.with_name("channels.h5"), _data(258)).read(range(258))
    return h, rays.tensors() if rays else None


def _make_traced(folder: Path) -> None:
    """Two users of one and of two paths."""
    users = TracedUsers(
        positions=torch.tensor([[1.0, 2.0, 1.5], [3.0, -4.0, 1.5]]), transmitter=torch.tensor([0, 0]),
        counts=torch.tensor([1, 2]), gain=torch.tensor([-90.5, -101.25]), delays=torch.tensor([0.0, 0.0, 1e-8]),
        angles=torch.arange(12.0).reshape(3, 4) / 8, matrices=torch.eye(2, dtype=torch.complex64).repeat(3, 1, 1),
    )  # fmt: skip
    users.write(folder / "users.safetensors", Site("box", ((0.0, 0.0, 5.0),), (-5.0, -5.0, 5.0, 5.0)), "test")


_OWN = np.linspace(-1.0, 1.0, 30 * 2 * 3).reshape(30, 2, 3) * (1 + 0.5j)


def _make_own(folder: Path) -> None:
    """The same channels in every format."""
    np.save(folder / "own.npy", _OWN)
    np.savez_compressed(folder / "own.npz", h=_OWN)
    scipy.io.savemat(folder / "own.mat", {"h": _OWN}, do_compression=True)
    with h5py.File(folder / "own.h5", "w", libver="latest") as file:
        file.attrs["site"] = "a street"
        file["h"] = _OWN


def _read_own(path: Path) -> object:
    problem = chanest.own_channels(path, bs=chanest.ula(3), ue=chanest.ula(2), pilots=2)
    return problem.channels(4, seed=0), problem.channels(16, seed=0, split="train")


def _are_channels(found: tuple[Tensor, Tensor]) -> bool:
    """Numbers of another file are right as long as they can be computed with."""
    return all(part.shape[1] == 6 and bool(part.isfinite().all()) for part in found)


def _own(file: str, **more: Any) -> FileKind:
    return FileKind(file, _make_own, _read_own, unprotected=lambda content: True, valid=_are_channels, **more)


def _make_files(files: Mapping[str, bytes], folder: Path) -> None:
    for name, content in files.items():
        (folder / name).write_bytes(content)


def _read_images(images: ImageSet, path: Path) -> object:
    """Without a look at digests it is a ValueError or a set of images; with them it is a sentence or the good images."""

    def files(name: str) -> bytes | None:
        found = path.parent / name
        return found.read_bytes() if found.is_file() else None

    with suppress(ValueError):
        found = images.decode(images.name, {name: images.assemble(name, files) or b"" for name in images.sha256})
        if not _is_image_data(found):
            raise TypeError("the unverified images are not uint8 [samples, height, width] with labels [samples]")
    contents = images.obtain(path.parent, replace_broken=False, report=lambda sentence: None)
    return vars(images.decode(images.name, contents))


def _is_image_data(data: ImageData) -> bool:
    pairs = ((data.train, data.train_labels), (data.test, data.test_labels))
    return all(
        images.dtype == torch.uint8 and images.ndim == 3 and labels.shape == images.shape[:1]
        for images, labels in pairs
    )


def _images(images: ImageSet, stored: Mapping[str, bytes], files: Mapping[str, bytes], file: str) -> FileKind:
    """The kind of an image set. stored: its files as they are stored; files: as they are found; file: the one of these
    that is changed."""
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in stored.items()}
    local = replace(images, sha256=digests, sources=())
    return FileKind(file, partial(_make_files, files), partial(_read_images, local), named=file.split(".")[0])


def _is_unpacked(files: object) -> bool:
    return isinstance(files, dict) and sum(map(len, files.values())) <= LARGEST


_STUDY = Toy(models=("a", "b"), sizes=(1, 2), scale=0.5)
_RECORDS = [
    Record(
        cell=cell, row={"level": -0.5 * place, "nested": {"list": [1, 2]}}, provenance=Provenance(seed=7, seconds=0.25)
    )
    for place, cell in enumerate(_STUDY.cells())
]


def _make_study(folder: Path) -> None:
    """With dates that stay the same, so that kept files can be judged later."""
    names = [_STUDY.cell_id(cell) for cell in _STUDY.cells()]
    about: dict[str, Any] = {
        "study": "toy",
        "configuration": _STUDY.configuration(),
        "started": "2026-01-01T00:00:00+00:00",
        "cells": names,
    }
    write_json(folder / "study.json", about)
    (folder / "rows.jsonl").write_bytes(b"")
    for record in _RECORDS:
        Store(folder).append(record)


def _read_study(path: Path) -> object:
    read = read_study(path.parent, REGISTRY)
    return read.study, read.about, read.records, read.frame.to_json()


def _make_json(folder: Path) -> None:
    write_json(
        folder / "notes.json", {"budget": {"steps": 20, "seconds": 1.5}, "history": [[5, 0.25, -3.5], [10, 0.5, -4.5]]}
    )


def _undigested(kind: FileKind) -> FileKind:
    """The kind as it was before files had a digest: each line of them or the whole is one JSON object."""

    def make(folder: Path) -> None:
        kind.make(folder)
        path = folder / kind.file
        path.write_bytes(re.sub(rb',\s*"digest": "\w+"', b"", path.read_bytes()))

    return replace(kind, make=make, unprotected=lambda content: True, valid=lambda found: finite(plain(found)))


def _without_digest(content: bytes) -> bool:
    return b"digest" not in content


def _other_json(content: bytes) -> bool:
    """Whole, but of another kind: a reader of any JSON cannot tell."""
    return not {"digest", "budget"} <= json.loads(content).keys()


def _are_good_records(found: tuple[object, object, list[Record], str]) -> bool:
    """A line that is gone or cut off is a cell that is still to do; the others are as they were."""
    return all(record in _RECORDS for record in found[2])


def unlike_a_sentence(message: str, name: str) -> str:
    """What keeps a message from being one sentence for people that names the file; empty where nothing does."""
    if not message.isprintable():
        return "a message with control characters or line ends"
    if not 10 < len(message) <= 700:
        return f"a message of {len(message)} characters"
    return "" if name in message else f"a message that does not name {name}"


_SAFETENSORS: dict[str, Any] = {
    "layers": (mutations.safetensors_header, mutations.safetensors_metadata, mutations.safetensors_metadata),
    "unprotected": _without_digest,
}
_HDF5: dict[str, Any] = {"own": (mutations.edit_hdf5,)}
_JSON: dict[str, Any] = {"unprotected": _without_digest, "valid": lambda found: finite(plain(found))}
_PYTHON = {name.removesuffix(".bin"): python_batch(name.removesuffix(".bin")) for name in CIFAR_FILES}
_GZIPPED = {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in MNIST_FILES.items()}

KINDS: dict[str, FileKind] = {
    "scenario": _scenario(_CDL),
    "scenario-paths": _scenario(_PATHS),
    "scenario-clusters": _scenario(_CLUSTERS),
    "scenario-scm": _scenario(_SCM),
    "scenario-cell": _scenario(_CELL),
    "scenario-grid": _scenario(_CDL, _GRID),
    "scenario-file": replace(_scenario(_FILE), read=_read_beside, valid=lambda found: found[0]),
    "weights": FileKind("tiny.gmm.safetensors", _make_weights, partial(_read_estimator, "gmm", _gmm_problem), **_SAFETENSORS),
    "weights-undigested": FileKind(
        "amp.safetensors", partial(_make_files, {"amp.safetensors": (SHIPPED / _AMP).read_bytes()}),
        partial(_read_estimator, "amp", _amp_problem), **_SAFETENSORS,
    ),
    "checkpoint": FileKind("model.safetensors", _make_checkpoint, _read_checkpoint, **_SAFETENSORS),
    "resume": FileKind("run.safetensors", _make_resume, _read_resume, **_SAFETENSORS),
    "calibration": FileKind("tiny.ls.calibration.json", _make_calibration, Calibration.read, **_JSON),
    "channels": FileKind("channels.h5", _make_channels, _read_channels, **_HDF5),
    "channels-partial": FileKind("channels.h5.partial", _make_partial, _read_partial, **_HDF5),
    "traced": FileKind(
        "users.safetensors", _make_traced, lambda path: vars(TracedUsers.read(path)), **_SAFETENSORS
    ),
    "own-npy": _own("own.npy"),
    "own-npz": _own("own.npz"),
    "own-mat": _own("own.mat"),
    "own-hdf5": _own("own.h5", **_HDF5),
    "idx": _images(MNIST, MNIST_FILES, MNIST_FILES, TRAIN_IMAGES),
    "idx-gz": replace(
        _images(MNIST, MNIST_FILES, _GZIPPED, f"{TRAIN_IMAGES}.gz"), layers=(mutations.gzipped,),
    ),
    "cifar10-bin": _images(CIFAR10, CIFAR_FILES, CIFAR_FILES, "data_batch_1.bin"),
    "cifar10-python": _images(CIFAR10, CIFAR_FILES, _PYTHON, "data_batch_1"),
    "cifar10-png": replace(
        _images(CIFAR10, CIFAR_FILES, sheets(), "data_batch_1.png"), own=(mutations.another_picture,)
    ),
    "cifar10-labels": replace(_images(CIFAR10, CIFAR_FILES, sheets(), "train_lables.json"), named="data_batch"),
    "tar": FileKind(
        "files.tgz", partial(_make_files, {"files.tgz": tar({"a": b"A" * 700, "b": b"B" * 50})}),
        lambda path: unpack(path.read_bytes() if path.is_file() else b"", path.name),
        unprotected=lambda content: True, valid=_is_unpacked, layers=(mutations.gzipped,),
    ),
    "study": FileKind("study.json", _make_study, _read_study, **_JSON),
    "rows": FileKind("rows.jsonl", _make_study, _read_study, unprotected=lambda content: True, valid=_are_good_records),
    "json": FileKind("notes.json", _make_json, read_json, unprotected=_other_json, valid=_JSON["valid"]),
}  # fmt: skip
KINDS |= {f"{name}-undigested": _undigested(KINDS[name]) for name in ("calibration", "study", "rows", "json")}
