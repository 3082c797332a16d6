"""Ratios in one run: factored against formed ΦΨ, OMP against scikit-learn, bandwidth of maps, draws against torch.randn.

python benchmarks/linops.py
"""

from __future__ import annotations

import subprocess
import sys
import warnings

import torch
from sklearn.linear_model import orthogonal_mp
from timing import best_time
from torch import Tensor

from vlista_core.counter import normals, sample_keys
from vlista_core.data.synthetic import benchmark
from vlista_core.linops import DenseMap, LinearMap
from vlista_core.prox import soft_threshold
from vlista_core.solvers import OMP

BATCH, M, N, LAYERS = 128, 100, 784, 3


def layers(y: Tensor, phi: DenseMap, psi: DenseMap, *, formed: bool) -> Tensor:
    """Three layers of DLISTA, with ΦΨ as two factors or as one matrix formed in each layer."""
    step, threshold = torch.tensor(0.05), torch.tensor([[0.01]])
    code = torch.zeros(y.shape[0], psi.shape[1])
    for _ in range(LAYERS):
        a: LinearMap = DenseMap((phi @ psi).materialize()) if formed else phi @ psi
        code = soft_threshold(code + step * a.adjoint(y - a.apply(code)), threshold)
    return code


def layer_data() -> tuple[Tensor, DenseMap, DenseMap]:
    generator = torch.Generator().manual_seed(0)
    phi = DenseMap(torch.randn(BATCH, M, N, generator=generator) / M**0.5)
    psi = DenseMap(torch.randn(N, N, generator=generator) / N**0.5)
    return torch.randn(BATCH, M, generator=generator), phi, psi


PEAK = """
import sys, torch
sys.path.insert(0, {folder!r})
from linops import layer_data, layers
from timing import forget_peak, memory
data = layer_data()
layers(data[0][:2], data[1].select(torch.arange(2)), data[2], formed={formed})  # thread pools and work space
forget_peak()
before = memory("VmRSS")
layers(*data, formed={formed})
print(memory("VmHWM") - before)
"""


def peak_memory(formed: bool) -> float:
    """MB that three layers add to the process, in a process of their own."""
    code = PEAK.format(folder=sys.path[0], formed=formed)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def compare_layers() -> None:
    y, phi, psi = layer_data()
    with torch.no_grad():
        gap = (layers(y, phi, psi, formed=True) - layers(y, phi, psi, formed=False)).abs().max()
        formed = best_time(lambda: layers(y, phi, psi, formed=True))
        factored = best_time(lambda: layers(y, phi, psi, formed=False))
    memory = peak_memory(True), peak_memory(False)
    print(f"three layers, m = {M}, n = b = {N}, batch {BATCH} (largest difference {gap:.0e}):")
    print(f"  formed {formed * 1e3:7.1f} ms, factored {factored * 1e3:6.1f} ms: {formed / factored:.1f} times faster")
    print(f"  formed {memory[0]:7.1f} MB, factored {memory[1]:6.1f} MB: {memory[1] / memory[0]:.3f} of the memory")


def compare_omp() -> None:
    batch = benchmark("250x1000").sample(256, seed=0)
    matrices = batch.phi.materialize()
    solver = OMP(n_nonzero=50)

    def peer() -> None:
        warnings.simplefilter(
            "ignore"
        )  # scikit-learn remarks where a sample's residual is down to rounding before 50 atoms
        for y, matrix in zip(batch.y.numpy(), matrices.numpy(), strict=True):
            orthogonal_mp(matrix, y, n_nonzero_coefs=50)

    ours = best_time(lambda: solver.estimate(batch.y, batch.phi, 0.0))
    theirs = best_time(peer)
    size = len(batch)
    print("OMP, 250x1000, 50 atoms, batch 256:")
    per_sample = [seconds / size * 1e3 for seconds in (theirs, ours)]
    print(
        f"  scikit-learn {per_sample[0]:.2f} ms per sample, ours {per_sample[1]:.2f} ms: {theirs / ours:.2f} times faster"
    )


def measure_bandwidth() -> None:
    generator = torch.Generator().manual_seed(0)
    print("one Φ per sample, share of the read bandwidth of phi.sum():")
    for shape, dtype in (((32, 500, 1024), torch.float32), ((256, 96, 256), torch.complex64)):
        matrix = torch.randn(shape, generator=generator, dtype=dtype)
        phi, (size, m, n) = DenseMap(matrix), shape
        x, y = (torch.randn(size, length, generator=generator, dtype=dtype) for length in (n, m))
        plain = torch.view_as_real(matrix) if matrix.is_complex() else matrix
        read = best_time(lambda plain=plain: plain.sum())  # type: ignore[misc]
        apply = best_time(lambda phi=phi, x=x: phi.apply(x))  # type: ignore[misc]
        adjoint = best_time(lambda phi=phi, y=y: phi.adjoint(y))  # type: ignore[misc]
        column = best_time(lambda matrix=matrix, x=x: torch.bmm(matrix, x[:, :, None]))  # type: ignore[misc]
        rate = matrix.numel() * matrix.itemsize / read / 1e9
        print(
            f"  {size}x{m}x{n} {dtype}: sum {rate:.0f} GB/s; apply {read / apply:.0%}, adjoint {read / adjoint:.0%} "
            f"(matrix times column, the obvious form: {read / column:.0%})"
        )


def compare_draws() -> None:
    """The matrices of a training step by counters, on any device the same, against those of torch's generator of the CPU."""
    keys, generator = sample_keys(0, "train", range(BATCH), stream="benchmark"), torch.Generator().manual_seed(0)
    print(f"normal numbers, {BATCH} matrices {M}x{N}:")
    for dtype in (torch.float32, torch.float64):
        ours = best_time(lambda dtype=dtype: normals(keys, (M, N), dtype=dtype))  # type: ignore[misc]
        theirs = best_time(lambda dtype=dtype: torch.randn(BATCH, M, N, generator=generator, dtype=dtype))  # type: ignore[misc]
        each = [seconds / (BATCH * M * N) * 1e9 for seconds in (theirs, ours)]
        print(
            f"  {dtype}: torch.randn {each[0]:.1f} ns each, by counters {each[1]:.1f} ns: {ours / theirs:.2f} of its time"
        )


def main() -> None:
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    compare_layers()
    compare_omp()
    measure_bandwidth()
    compare_draws()


if __name__ == "__main__":
    main()
