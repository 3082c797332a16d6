"""LISTA-CPSS (Chen et al. 2018): their 1,000 test vectors of length 500, a matrix from their generator, ours trained on it.

Their networks are TensorFlow 1 and come without weights, so nothing of theirs can be run; their matrix has no seed, so it is
drawn here with one.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from chanest.studies.published import DECIBELS, comparison
from publications import sparse_models
from publications.foreign import foreign_modules
from publications.measuring import Method, measured
from publications.publication import Publication
from publications.sparse_laws import SparseVectors
from vlista_core.counter import normals, sample_keys
from vlista_core.linops import DenseMap
from vlista_core.problems import Batch
from vlista_core.solvers import AMP, VAMP
from vlista_core.study import Cell, Context, Row

_VECTORS = "data/xtest_n500_p10.npy"
_ROWS, _SEED = 250, 0
_BATCH, _ITERATIONS = 250, 16


class SupportSelection(Publication):
    """Ours on their vectors. Where weights of theirs turn up, they go into `theirs`."""

    name: ClassVar[str] = "lista-cpss"
    repository: ClassVar[str] = "xchen-tamu/linear-lista-cpss"
    commit: ClassVar[str] = "1598fbc1d889ab27c088ef82f071b1217902c49e"
    files: ClassVar[tuple[str, ...]] = (_VECTORS,)

    def comparisons(self, samples: int | None) -> tuple[str, ...]:
        return (comparison(self.name, "250x500, their vectors", "40 dB", samples or 1000),)

    def compare(self, cell: Cell, context: Context) -> Row:
        snr_db, matrix = float(str(cell["at"]).removesuffix(" dB")), self._matrix()
        batches = self._batches(matrix, int(str(cell["samples"])), snr_db)
        law = SparseVectors(length=matrix.shape[1], rows=_ROWS, snr_db=snr_db, matrix=matrix)
        any_phi = SparseVectors(length=matrix.shape[1], rows=_ROWS, snr_db=snr_db)
        methods = []
        for kind, recipes in sparse_models.RECIPES.items():
            problem = any_phi if kind == "a-dlista-adaptive" else law
            checkpoint = context.scratch / f"{self.name}.{kind}.training"
            methods.append(
                sparse_models.trained_method(kind, problem, matrix, recipes["500"], checkpoint, batches.__getitem__)
            )
        for solver in (AMP(iterations=_ITERATIONS), VAMP(iterations=_ITERATIONS)):
            methods.append(sparse_models.method_of(type(solver).__name__, solver, batches.__getitem__))
        signals = [batch.signal for batch in batches]
        known = Method("support known", lambda i: sparse_models.support_known(batches[i], 1.0))
        return {
            "measure": DECIBELS,
            "theirs": [{"name": "LISTA-CPSS", "found": None}],
            "ours": list(measured(methods, signals)),
            "bounds": list(measured([known], signals)),
            "seed": _SEED,
        }

    def _matrix(self) -> Tensor:
        """A matrix of their generator, which draws from NumPy's global one: [250, 500]."""
        state = np.random.get_state()  # noqa: NPY002
        try:
            with foreign_modules(self.clone, ("utils.prob",), ("tensorflow",)) as (code,):
                np.random.seed(_SEED)  # noqa: NPY002
                return torch.from_numpy(code.random_A(_ROWS, 500)).float()
        finally:
            np.random.set_state(state)  # noqa: NPY002

    def _batches(self, matrix: Tensor, samples: int, snr_db: float) -> list[Batch]:
        """Their vectors through the matrix; the noise has the deviation of the entries of Ax, times 10^(-snr/20)."""
        vectors = torch.from_numpy(np.load(self.clone / _VECTORS)).float().mT[:samples].contiguous()
        clean = vectors @ matrix.mT
        deviation = clean.std(1, correction=0) * 10 ** (-snr_db / 20)
        keys = sample_keys(_SEED, "test", range(len(vectors)), stream="lista-cpss noise")
        y = clean + normals(keys, (_ROWS,)) * deviation[:, None]
        whole = Batch(vectors, y, DenseMap(matrix), deviation.square(), code=vectors)
        numbers = torch.arange(len(vectors)).split(_BATCH)
        return [Batch(vectors[some], y[some], whole.phi, whole.noise_var[some], code=vectors[some]) for some in numbers]
