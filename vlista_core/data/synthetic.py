"""Sparse vectors seen through random matrices: the paper's synthetic problem and the standard benchmarks."""

import math
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from vlista_core.counter import normals, sample_keys, uniforms
from vlista_core.devices import Device
from vlista_core.draws import Split
from vlista_core.linops import DenseMap
from vlista_core.problems import Batch, Problem, check_count


@dataclass(frozen=True, kw_only=True)
class SyntheticProblem(Problem):
    """y = Φx + n with Gaussian Φ and a sparse Gaussian x; the dictionary is canonical, so the signal is the code.

    Φ is drawn anew for each sample from (seed, split, index), so that a data set never sits in memory; with
    `fixed_phi_seed` one matrix, drawn from that seed, serves every sample of every split.
    """

    length: int
    """n, the number of unknowns."""
    rows: int
    """m, the number of measurements."""
    sparsity: float = 0.1
    """Probability that an entry is non-zero."""
    nonzeros: int | None = None
    """Exactly this number of non-zero entries in each sample, in place of independent ones."""
    unit_columns: bool = True
    """Scale each column of Φ to norm 1; otherwise entries are N(0, 1/m)."""
    snr_db: float | None = None
    """E‖Φx‖²/E‖n‖² over the ensemble, in dB; None is noiseless."""
    fixed_phi_seed: int | None = None
    dtype: torch.dtype = torch.float32
    device: Device = field(default="cpu", compare=False)
    """Where the tensors of a batch are made; no draw depends on it."""

    def __post_init__(self) -> None:
        check_count("length", self.length)
        check_count("rows", self.rows)
        if not 0.0 < self.sparsity <= 1.0:
            raise ValueError(f"sparsity must lie in (0, 1], got {self.sparsity}")
        if self.nonzeros is not None and not 1 <= self.nonzeros <= self.length:
            raise ValueError(f"nonzeros must lie in [1, {self.length}] or be None, got {self.nonzeros}")

    @property
    def signal_length(self) -> int:
        return self.length

    @property
    def measurements(self) -> int:
        return self.rows

    def on(self, device: Device) -> Self:
        return self if torch.device(device) == torch.device(self.device) else replace(self, device=device)

    def sample(
        self, count: int, *, seed: int, split: Split = "test", start: int = 0, snr_db: float | None = None
    ) -> Batch:
        check_count("count", count)
        check_count("start", start, least=0)
        indices = range(start, start + count)

        def keys(stream: str) -> Tensor:
            return sample_keys(seed, split, indices, stream=f"synthetic {stream}", device=self.device)

        values = normals(keys("values"), (self.length,), dtype=self.dtype)
        signal = values.masked_fill_(~self._active(uniforms(keys("support"), self.length)), 0.0)
        fixed = self.fixed_phi()
        phi = DenseMap(self._matrices(keys("phi")) if fixed is None else fixed)
        noise_var = self.noise_variance(self.snr_db if snr_db is None else snr_db)
        y = phi.apply(signal)
        if noise_var > 0:
            y = y + normals(keys("noise"), (self.rows,), dtype=self.dtype, std=math.sqrt(noise_var))
        variances = torch.full((count,), noise_var, dtype=signal.real.dtype, device=self.device)
        return Batch(signal, y, phi, variances, code=signal)

    def noise_variance(self, snr_db: float | None) -> float:
        """E|n|² per entry for an SNR defined over the ensemble: E‖Φx‖² = E‖x‖² for columns of unit mean square."""
        if snr_db is None:
            return 0.0
        active = self.nonzeros if self.nonzeros is not None else self.sparsity * self.length
        return active / self.rows * math.pow(10.0, -snr_db / 10.0)

    def fixed_phi(self) -> Tensor | None:
        """The one matrix [m, n] of a fixed-Φ problem; None where Φ varies."""
        if self.fixed_phi_seed is None:
            return None
        return self._matrices(
            sample_keys(self.fixed_phi_seed, "train", range(1), stream="fixed phi", device=self.device)
        )[0]

    def _active(self, chances: Tensor) -> Tensor:
        """Which entries are not zero. chances: uniform numbers [batch, n]."""
        if self.nonzeros is None:
            return chances <= self.sparsity
        return chances <= chances.kthvalue(self.nonzeros, dim=1, keepdim=True).values

    def _matrices(self, keys: Tensor) -> Tensor:
        """Φ of each key [batch, 2]: N(0, 1/m), columns scaled to norm 1 on demand; [batch, m, n]."""
        matrices = normals(keys, (self.rows, self.length), dtype=self.dtype, std=1.0 / math.sqrt(self.rows))
        if self.unit_columns:
            matrices /= torch.linalg.vector_norm(matrices, dim=1, keepdim=True)
        return matrices


def benchmark(name: str, *, snr_db: float | None = 40.0, fixed_phi_seed: int | None = None) -> SyntheticProblem:
    """The set-ups that ALISTA, NALISTA and HyperLISTA report on: '250x500', '250x1000' or '250x2000'.

    Each has unit columns and 50 non-zeros on average, whatever its length.
    """
    lengths = {f"250x{n}": n for n in (500, 1000, 2000)}
    if name not in lengths:
        raise ValueError(f"name must be one of {', '.join(lengths)}, got {name!r}")
    n = lengths[name]
    return SyntheticProblem(length=n, rows=250, sparsity=50 / n, snr_db=snr_db, fixed_phi_seed=fixed_phi_seed)
