"""Sparse vectors seen through random matrices: the paper's synthetic problem and the standard benchmarks."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vlista_core.draws import Split, for_each_sample, sample_generators
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

    def sample(
        self, count: int, *, seed: int, split: Split = "test", start: int = 0, snr_db: float | None = None
    ) -> Batch:
        check_count("count", count)
        check_count("start", start, least=0)
        generators = sample_generators(seed, split, range(start, start + count), stream="synthetic")
        signal = torch.zeros(count, self.length, dtype=self.dtype)
        noise = torch.empty(count, self.rows, dtype=self.dtype)
        fixed = self.fixed_phi()
        matrices = torch.empty(count, self.rows, self.length, dtype=self.dtype) if fixed is None else fixed

        def draw(position: int) -> None:
            generator = generators[position]
            self._draw_code(signal[position], generator)
            noise[position].normal_(generator=generator)
            if fixed is None:
                _draw_matrix(matrices[position], generator, self.unit_columns)

        for_each_sample(draw, count)
        phi = DenseMap(matrices)
        noise_var = self.noise_variance(self.snr_db if snr_db is None else snr_db)
        y = phi.apply(signal) + math.sqrt(noise_var) * noise
        return Batch(signal, y, phi, torch.full((count,), noise_var, dtype=signal.real.dtype), code=signal)

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
        matrix = torch.empty(self.rows, self.length, dtype=self.dtype)
        [generator] = sample_generators(self.fixed_phi_seed, "train", [0], stream="fixed phi")
        _draw_matrix(matrix, generator, self.unit_columns)
        return matrix

    def _draw_code(self, code: Tensor, generator: torch.Generator) -> None:
        """Fill one sample [n] in place."""
        if self.nonzeros is None:
            active = torch.rand(self.length, generator=generator, dtype=torch.float64) < self.sparsity
        else:
            active = torch.zeros(self.length, dtype=torch.bool)
            active[torch.randperm(self.length, generator=generator)[: self.nonzeros]] = True
        values = torch.randn(self.length, generator=generator, dtype=self.dtype)
        code.copy_(torch.where(active, values, torch.zeros_like(values)))


def benchmark(name: str, *, snr_db: float | None = 40.0, fixed_phi_seed: int | None = None) -> SyntheticProblem:
    """The set-ups that ALISTA, NALISTA and HyperLISTA report on: '250x500', '250x1000' or '250x2000'.

    Each has unit columns and 50 non-zeros on average, whatever its length.
    """
    lengths = {f"250x{n}": n for n in (500, 1000, 2000)}
    if name not in lengths:
        raise ValueError(f"name must be one of {', '.join(lengths)}, got {name!r}")
    n = lengths[name]
    return SyntheticProblem(length=n, rows=250, sparsity=50 / n, snr_db=snr_db, fixed_phi_seed=fixed_phi_seed)


def _draw_matrix(matrix: Tensor, generator: torch.Generator, unit_columns: bool) -> None:
    """Fill one Φ [m, n] in place with N(0, 1/m), columns scaled to norm 1 on demand."""
    matrix.normal_(generator=generator)
    if unit_columns:
        matrix.div_(torch.linalg.vector_norm(matrix, dim=0))
    else:
        matrix.mul_(1.0 / math.sqrt(matrix.shape[0]))
