"""Dictionaries Ψ: [n, atoms], signal = Ψ code. Fixed ones are orthonormal where they can be; all are LinearMaps.

pywavelets, SciPy and scikit-learn are imported where they are used: a network needs none of them.
"""

import math
from abc import abstractmethod
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vlista_core.configured import Configured, argument
from vlista_core.linops import DenseMap, LinearMap

_LEAST_POWER = 1e-6


def dct(height: int, width: int, dtype: torch.dtype = torch.float32) -> DenseMap:
    """Orthonormal two-dimensional cosine basis for images stacked row by row: [h·w, h·w]."""
    from scipy.fft import dct as scipy_dct

    vertical, horizontal = (scipy_dct(np.eye(size), norm="ortho", axis=0).T for size in (height, width))
    return DenseMap(torch.from_numpy(np.kron(vertical, horizontal)).to(dtype), rows_orthonormal=True)


def wavelet(
    height: int, width: int, *, name: str = "db4", levels: int | None = None, dtype: torch.dtype = torch.float32
) -> DenseMap:
    """Orthonormal periodised wavelet basis for images of any size, stacked row by row: [h·w, h·w].

    Each level splits the approximation in both directions. A side of odd length keeps its last entry among the
    approximations, which leaves the basis orthonormal at every size. `levels` None goes on while a side has 8 or more.
    """
    import pywt

    if name not in pywt.wavelist(kind="discrete") or not pywt.Wavelet(name).orthogonal:
        raise ValueError(f"name must be an orthogonal wavelet of pywavelets such as haar, db4 or sym4, got {name!r}")
    if levels is not None and levels < 1:
        raise ValueError(f"levels must be at least 1 or None, got {levels}")
    analysis = np.eye(height * width).reshape(height, width, height * width)
    rows, columns, level = height, width, 0
    while (min(rows, columns) >= 8) if levels is None else (level < levels and min(rows, columns) >= 2):
        split_rows, split_columns = (_analysis_matrix(size, name) for size in (rows, columns))
        approximation = np.tensordot(split_rows, analysis[:rows, :columns], axes=1)
        analysis[:rows, :columns] = np.einsum("ij,rjs->ris", split_columns, approximation)
        rows, columns, level = (rows + 1) // 2, (columns + 1) // 2, level + 1
    synthesis = analysis.reshape(height * width, height * width).T
    return DenseMap(torch.from_numpy(np.ascontiguousarray(synthesis)).to(dtype), rows_orthonormal=True)


def sparse_pca(images: Tensor, atoms: int, *, alpha: float = 0.01, iterations: int = 200, seed: int = 0) -> DenseMap:
    """Sparse principal components of training images, unit norm, completed by the mean image as the first atom.

    images: [samples, n] -> [n, atoms]. The mean is an atom because a code must be able to express the offset that the
    decomposition subtracts. Components that the penalty removed altogether are drawn as random unit vectors.
    """
    if images.ndim != 2 or images.shape[0] < 2:
        raise ValueError(f"images must be [samples, n] with at least two samples, got {[*images.shape]}")
    if not atoms >= 2:
        raise ValueError(f"atoms must be at least 2, got {atoms}")
    from sklearn.decomposition import MiniBatchSparsePCA

    values: NDArray[np.float64] = images.double().cpu().numpy()
    model = MiniBatchSparsePCA(n_components=atoms - 1, alpha=alpha, max_iter=iterations, random_state=seed)
    components = np.vstack([values.mean(axis=0), model.fit(values).components_])
    norms = np.linalg.norm(components, axis=1, keepdims=True)
    random = np.random.default_rng(seed).standard_normal(components.shape)
    random /= np.linalg.norm(random, axis=1, keepdims=True)
    unit = np.where(norms > 0, components / np.where(norms > 0, norms, 1.0), random)
    return DenseMap(torch.from_numpy(np.ascontiguousarray(unit.T)).to(images.dtype))


def principal_directions(signals: Tensor) -> tuple[Tensor, Tensor]:
    """Orthonormal directions about zero in order of their power, and the powers. [samples, n] -> [n, n], [n]."""
    power, directions = torch.linalg.eigh((signals.mT @ signals).double() / len(signals))
    power = power.clamp_min(_LEAST_POWER * float(power[-1]))
    return directions.flip(1).to(signals.dtype).contiguous(), power.flip(0).to(signals.dtype)


def scaled_principal(signals: Tensor, *, exponent: float = 0.25) -> DenseMap:
    """Principal directions of signals about zero, scaled by (power/largest power)^exponent. [samples, n] -> [n, n].

    A place for a learned dictionary to start: a gradient step Ψᵀ then favours what signals are made of, without leaving the
    weak directions behind as the full scale, exponent ½, would.
    """
    directions, power = principal_directions(signals)
    return DenseMap(directions * (power / power[0]) ** exponent)


class LearnedMap(nn.Module, LinearMap, Configured):
    """A dictionary with parameters: a module and a map in one. A subclass says what its plain map is.

    Complex parameters are stored as real pairs, which every optimiser and file format takes, and viewed as complex in use.
    """

    @abstractmethod
    def frozen(self) -> LinearMap:
        """The dictionary as it is now, as a plain map that shares the parameters (and so their gradients)."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.frozen().shape

    def _parts(self) -> Iterator[LinearMap]:
        yield self.frozen()

    def apply(self, x: Tensor) -> Tensor:  # type: ignore[override]  # nn.Module's visitor of the same name is not needed
        return self.frozen().apply(x)

    def adjoint(self, y: Tensor) -> Tensor:
        return self.frozen().adjoint(y)

    def apply_block(self, x: Tensor) -> Tensor:
        return self.frozen().apply_block(x)

    def columns(self, index: Tensor) -> Tensor:
        return self.frozen().columns(index)

    def _column_norms(self) -> Tensor:
        return self.frozen().column_norms()

    def gram(self) -> Tensor:
        return self.frozen().gram()

    def materialize(self) -> Tensor:
        return self.frozen().materialize()

    def cast(self, dtype: torch.dtype) -> LinearMap:  # type: ignore[override]  # a plain map, without parameters
        return self.frozen().cast(dtype)


@argument
class LearnedDictionary(LearnedMap):
    """A dictionary whose entries are all parameters."""

    def __init__(self, matrix: Tensor, *, scaled: bool = False) -> None:
        """matrix: [n, atoms], the starting point.

        scaled: learn atoms that start with unit norm, and keep the norms beside them. Adam's steps are of one size: they
        then move every atom relative to its norm, and do not overwhelm weak ones.
        """
        super().__init__()
        if matrix.ndim != 2 or not (matrix.is_floating_point() or matrix.is_complex()):
            raise ValueError(
                f"matrix must be floating-point or complex [n, atoms], got {matrix.dtype} {[*matrix.shape]}"
            )
        start = matrix.detach().clone()
        norms = start.abs().square().sum(0).sqrt()
        self.scale: Tensor | None
        self.register_buffer("scale", norms if scaled else None)
        if scaled:
            start = start / torch.where(norms > 0, norms, torch.ones_like(norms))
        self.is_complex = start.is_complex()
        self.weight = nn.Parameter(torch.view_as_real(start).contiguous() if self.is_complex else start)

    @classmethod
    def random(
        cls, length: int, atoms: int, *, generator: torch.Generator, dtype: torch.dtype = torch.float32
    ) -> "LearnedDictionary":
        """Gaussian entries with unit-norm columns on average."""
        return cls(torch.randn(length, atoms, generator=generator, dtype=dtype) / math.sqrt(length))

    @property
    def matrix(self) -> Tensor:
        """[n, atoms]."""
        return self._atoms if self.scale is None else self._atoms * self.scale

    @property
    def _atoms(self) -> Tensor:
        return torch.view_as_complex(self.weight) if self.is_complex else self.weight

    def tensors(self) -> tuple[Tensor, ...]:
        return (self._atoms,) if self.scale is None else (self._atoms, self.scale)

    def frozen(self) -> DenseMap:
        return DenseMap(self.matrix)


def _analysis_matrix(size: int, name: str) -> NDArray[np.float64]:
    """One level of the periodised transform of `size` samples, approximations first: orthonormal [size, size]."""
    import pywt

    even = size - size % 2
    approximation, detail = pywt.dwt(np.eye(even), name, mode="periodization", axis=0)
    matrix = np.zeros((size, size))
    half = even // 2
    matrix[:half, :even] = approximation
    matrix[size - half :, :even] = detail
    if size % 2:
        matrix[half, even] = 1.0
    return matrix
