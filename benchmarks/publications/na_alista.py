"""Neurally augmented ALISTA (Behrens, Sauder, Jung 2021): their matrices, checkpoints and laws of the draws, K = 16 layers."""

from __future__ import annotations

import csv
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from chanest.studies.published import DECIBELS, comparison
from publications import sparse_models
from publications.foreign import foreign_modules
from publications.measuring import Method, measured
from publications.publication import Publication
from publications.sparse_laws import BLOCK, TONES, SparseTaps, SparseVectors
from vlista_core.problems import Batch, Problem
from vlista_core.study import Cell, Context, Row

_LAYERS = 16
_ROWS, _ACTIVE = 250, 50
_TAPS, _ACTIVE_TAPS = 256, 8
_LENGTHS, _TONES = (500, 1000, 2000), (50, 75, 100)
_NAMES = {"ALISTA": "ALISTA", "AGLISTA": "AGLISTA", "NA-ALISTA": "NA_ALISTA_UR_128"}
"""In the paper, and in their code."""
_TEST_SEED, _CALIBRATION_SEED = 2, 3
_ABSENT = ("matplotlib", "matplotlib.pyplot")
_TRIED, _GUESSES, _DESCENTS, _RATE = 96, 100, 60, 0.03
"""To find what a checkpoint lacks: draws, random guesses, and steps from the best of these with their first rate."""
_SPREADS = 0.5, 0.15
"""Deviation of the logarithms of guesses, of all four together and of each."""


def _folder(kind: str, m: int, n: int) -> str:
    """Where their checkpoint and log of a model lie."""
    code = _NAMES[kind]
    if n == _TAPS:
        return f"res/models-comm/model={code}__m={m}__s={_ACTIVE_TAPS}__k={_LAYERS}__noise=GaussianNoise10__n={n}"
    return f"res/models/model={code}__m={m}__s={_ACTIVE}__k={_LAYERS}__noise=GaussianNoise40__n={n}"


@dataclass(frozen=True)
class Setting:
    """One of their problems: the draws, its one Φ, the same with a Φ for each sample, and the name of a recipe."""

    problem: Problem
    matrix: Tensor
    varying: Problem
    recipe: str
    power: Tensor | float
    """Of an entry that is not zero: one for all, or [n]."""


class NeurallyAugmented(Publication):
    """Their networks on fresh draws of their laws, ours trained here on the same laws."""

    name: ClassVar[str] = "na-alista"
    repository: ClassVar[str] = "feeds/na-alista"
    commit: ClassVar[str] = "40597f05e3ef179e4ae44173d25674640db7d27a"
    files: ClassVar[tuple[str, ...]] = (
        *(f"res/matrices/{_ROWS}_{n}/{each}.npy" for n in _LENGTHS for each in ("phi", "W_frob")),
        *(
            f"{_folder(kind, m, n)}/{each}"
            for kind in _NAMES
            for m, n in (*((_ROWS, n) for n in _LENGTHS), *((m, _TAPS) for m in _TONES))
            for each in ("checkpoint", "train_log")
        ),
    )

    def comparisons(self, samples: int | None) -> tuple[str, ...]:
        settings = [*(f"{m} tones" for m in _TONES), *(f"{_ROWS}x{n}" for n in _LENGTHS)]
        return tuple(
            comparison(self.name, each, "10 dB" if "tones" in each else "40 dB", samples or 4 * BLOCK)
            for each in settings
        )

    def compare(self, cell: Cell, context: Context) -> Row:
        name = str(cell["setting"])
        setting = self._setting(name)
        draws = Draws(setting.problem, -(-int(str(cell["samples"])) // BLOCK))
        with self._code() as (vectors, taps):
            theirs = [self._method(kind, name, setting, draws, taps if "tones" in name else vectors) for kind in _NAMES]
            mine = [
                sparse_models.trained_method(
                    kind,
                    setting.varying if kind == "a-dlista-adaptive" else setting.problem,
                    setting.matrix,
                    recipes[setting.recipe],
                    context.scratch / f"{self.name}.{name.replace(' ', '-')}.{kind}.training",
                    draws.batch,
                )
                for kind, recipes in sparse_models.RECIPES.items()
            ]
            signals = [draws.batch(number).signal for number in range(draws.count)]
            found = measured([*theirs, *mine], signals)
        known = Method("support known", lambda i: sparse_models.support_known(draws.batch(i), setting.power))
        row: Row = {"measure": DECIBELS, "theirs": list(found[: len(theirs)]), "ours": list(found[len(theirs) :])}
        return {**row, "bounds": list(measured([known], signals)), "seed": _TEST_SEED}

    def _setting(self, name: str) -> Setting:
        if "tones" in name:
            law = SparseTaps(tones=int(name.split()[0]))
            return Setting(law, law.matrix(), SparseTaps(tones=law.tones, varying=True), str(law.tones), law.powers())
        n = int(name.split("x")[1])
        matrix = torch.from_numpy(np.load(self.clone / f"res/matrices/{_ROWS}_{n}/phi.npy")).float()
        fixed = SparseVectors(length=n, rows=_ROWS, active=_ACTIVE, matrix=matrix)
        return Setting(fixed, matrix, SparseVectors(length=n, rows=_ROWS, active=_ACTIVE), str(n), 1.0)

    def _code(self) -> AbstractContextManager[list[Any]]:
        return foreign_modules(self.clone, ("utils.all_models", "utils.all_models_comm"), _ABSENT)

    def _method(self, kind: str, name: str, setting: Setting, draws: Draws, code: Any) -> Method:
        """One of their networks with its checkpoint, and the lowest error in its log."""
        law = setting.problem
        if isinstance(law, SparseTaps):
            m, n = law.tones, _TAPS
            model = _their_taps(getattr(code, _NAMES[kind]), law)
        else:
            m, n = setting.matrix.shape
            weights = np.load(self.clone / f"res/matrices/{m}_{n}/W_frob.npy")
            unshrunk = np.linspace((_ACTIVE * 1.2) // _LAYERS, _ACTIVE * 1.2, _LAYERS).astype(int)
            model = getattr(code, _NAMES[kind])(m, n, _ACTIVE, _LAYERS, unshrunk, setting.matrix.numpy(), weights)
        folder = self.clone / _folder(kind, m, n)
        model.load(str(folder / "checkpoint"))
        run = _runner(model, isinstance(law, SparseTaps))
        if kind == "NA-ALISTA":
            _find_constants(model.regressor, run, Draws(law, 1, seed=_CALIBRATION_SEED))
        with (folder / "train_log").open(encoding="utf-8") as log:
            printed = min(float(line["test_dbs"]) for line in csv.DictReader(log))
        return Method(kind, lambda i: run(draws.given(i)), printed=round(printed, 2))


class Draws:
    """Test draws in batches of theirs, made once."""

    def __init__(self, problem: Problem, count: int, seed: int = _TEST_SEED) -> None:
        self.count = count
        if isinstance(problem, SparseTaps):
            self._made = [problem.on_all_tones(number, seed=seed) for number in range(count)]
        else:
            batches = [problem.sample(BLOCK, seed=seed, start=BLOCK * number) for number in range(count)]
            self._made = [(batch, batch.y) for batch in batches]

    def batch(self, number: int) -> Batch:
        """What ours are given, with the truth."""
        return self._made[number][0]

    def given(self, number: int) -> Tensor:
        """What theirs are given: [512, m], or [512, 1024] for tones."""
        return self._made[number][1]


def _their_taps(build: Callable[..., Any], law: SparseTaps) -> Any:
    """A network of theirs for taps, whose Φ is given as two functions on pairs of reals."""
    mask = torch.zeros(TONES)
    mask[law.published_tones()] = 1.0

    def forward(x: Tensor) -> Tensor:
        return torch.view_as_real(torch.fft.fft(_complex(x), TONES, dim=1, norm="ortho") * mask)

    def backward(y: Tensor) -> Tensor:
        return torch.view_as_real(torch.fft.ifft(_complex(y) * mask, dim=1, norm="ortho")[:, : law.length].contiguous())

    unshrunk = np.linspace((_ACTIVE_TAPS * 1.5) // _LAYERS, _ACTIVE_TAPS * 1.5, _LAYERS).astype(int).clip(3, 10)
    return build(law.tones, law.length, _ACTIVE_TAPS, _LAYERS, unshrunk, forward, backward, 1)


def _runner(model: Any, pairs: bool) -> Callable[[Tensor], Tensor]:
    """A network of theirs as a function of y."""
    if pairs:
        return lambda y: _complex(model(torch.view_as_real(y), None)[0])
    return lambda y: model(y, None)[0]


def _find_constants(regressor: Any, run: Callable[[Tensor], Tensor], draws: Draws) -> None:
    """Their network standardises its inputs by constants of the first batch of its training, which no checkpoint holds.

    The mean and deviation of both norms over a batch, as a new run takes them, are not those that the checkpoints were trained
    with, and that costs up to 20 dB. So the four are looked for: at random around these, then by descent from the best, on
    draws of their own.
    """
    names = "bl1_mean", "bl1_std", "cl1_mean", "cl1_std"
    given, signal = draws.given(0)[:_TRIED], draws.batch(0).signal[:_TRIED]
    with torch.no_grad():
        run(draws.given(0))
    first = torch.tensor([float(getattr(regressor, name)) for name in names])

    def error(logs: Tensor) -> Tensor:
        """ln of the error with the first constants times exp(logs)."""
        for name, value in zip(names, first * logs.exp(), strict=True):
            setattr(regressor, name, value)
        return (run(given) - signal).abs().square().sum().log()

    for parameter in regressor.parameters():
        parameter.requires_grad_(False)
    generator = torch.Generator().manual_seed(_CALIBRATION_SEED)
    common, own = _SPREADS
    guesses = common * torch.randn(_GUESSES, 1, generator=generator) + own * torch.randn(
        _GUESSES, len(names), generator=generator
    )
    with torch.no_grad():
        logs = min((torch.zeros(len(names)), *guesses), key=lambda each: float(error(each))).clone()
    best, least = logs.clone(), float("inf")
    logs.requires_grad_(True)
    optimizer = torch.optim.Adam([logs], _RATE)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, _DESCENTS)
    for _ in range(_DESCENTS):
        here = error(logs)
        if here.item() < least:
            best, least = logs.detach().clone(), here.item()
        optimizer.zero_grad()
        here.backward()
        optimizer.step()
        rates.step()
    for name, value in zip(names, (first * best.exp()).tolist(), strict=True):
        setattr(regressor, name, value)


def _complex(pairs: Tensor) -> Tensor:
    return torch.view_as_complex(pairs.contiguous())
