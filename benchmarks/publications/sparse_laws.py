"""The two laws that NA-ALISTA's code draws from, as Problems: sparse vectors through a Gaussian Φ, sparse taps on a few tones.

Both define the noise by its deviation as their code does, which is not what the words "40 dB" and "10 dB" lead one to expect.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from vlista_core.counter import normals, sample_keys, uniforms
from vlista_core.draws import Split
from vlista_core.linops import DenseMap
from vlista_core.problems import Batch, Problem

TONES, BLOCK = 1024, 512
"""Length of the Fourier transform, and samples of a batch of theirs."""
_FIRST, _LAST = 212, TONES - 212
_TONE_SEED = 322
_DECAY = 2.5


@dataclass(frozen=True, kw_only=True)
class SparseVectors(Problem):
    """y = Φx + n, each entry of x non-zero with probability active/n, then N(0, 1).

    The noise of a sample has the deviation of the m entries of its own Φx, times 10^(-snr/20).
    """

    length: int
    rows: int
    active: float = 50.0
    snr_db: float = 40.0
    matrix: Tensor | None = field(default=None, compare=False)
    """The one Φ, [m, n]; None draws one with unit columns for every sample."""

    @property
    def signal_length(self) -> int:
        return self.length

    @property
    def measurements(self) -> int:
        return self.rows

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    def sample(
        self, count: int, *, seed: int, split: Split = "test", start: int = 0, snr_db: float | None = None
    ) -> Batch:
        def keys(stream: str) -> Tensor:
            return sample_keys(seed, split, range(start, start + count), stream=f"sparse vectors {stream}")

        silent = uniforms(keys("support"), self.length) > self.active / self.length
        signal = normals(keys("values"), (self.length,)).masked_fill_(silent, 0.0)
        phi = DenseMap(self._drawn(keys("phi")) if self.matrix is None else self.matrix)
        clean = phi.apply(signal)
        deviation = clean.std(1) * 10 ** (-(self.snr_db if snr_db is None else snr_db) / 20)
        noise = normals(keys("noise"), (self.rows,)) * deviation[:, None]
        return Batch(signal, clean + noise, phi, deviation.square(), code=signal)

    def _drawn(self, keys: Tensor) -> Tensor:
        matrices = normals(keys, (self.rows, self.length))
        return matrices.div_(torch.linalg.vector_norm(matrices, dim=1, keepdim=True))


@dataclass(frozen=True, kw_only=True)
class SparseTaps(Problem):
    """y = Φx + n: 256 taps of falling power, 8 of them non-zero, on some of the 1,024 tones of a unitary Fourier transform.

    Their noise has one deviation for each tone: that of the real or imaginary part, over all 1,024 tones, of the measurement of
    *another* sample, number tone // 2 of the batch of 512, times 10^(-snr/20).
    """

    tones: int
    """How many are drawn, with repetition; `rows` are left."""
    length: int = 256
    active: float = 8.0
    snr_db: float = 10.0
    varying: bool = False
    """Draw as many tones anew for every sample, in place of the published ones."""

    @property
    def signal_length(self) -> int:
        return self.length

    @property
    def measurements(self) -> int:
        return len(self.published_tones())

    @property
    def dtype(self) -> torch.dtype:
        return torch.complex64

    def published_tones(self) -> Tensor:
        """The tones of their code, in order and each once."""
        drawn = np.random.RandomState(_TONE_SEED).choice(list(range(_FIRST, _LAST)), self.tones)
        return torch.from_numpy(np.unique(drawn))

    def matrix(self) -> Tensor:
        """The one Φ of the published tones: [m, 256]."""
        return self._rows(self.published_tones())

    def powers(self) -> Tensor:
        """Of the taps that are not zero, so that E‖x‖² = 1: [256]."""
        falling = torch.exp(-2.0 * _DECAY / self.length * torch.arange(self.length))
        return falling * self.length / (self.active * falling.sum())

    def sample(
        self, count: int, *, seed: int, split: Split = "test", start: int = 0, snr_db: float | None = None
    ) -> Batch:
        blocks = range(start // BLOCK, (start + count - 1) // BLOCK + 1)
        parts = [self._block(number, seed, split, self.snr_db if snr_db is None else snr_db)[0] for number in blocks]
        offset = start - blocks.start * BLOCK
        chosen = slice(offset, offset + count)
        signal, y, noise_var = (
            torch.cat([getattr(part, name) for part in parts])[chosen] for name in ("signal", "y", "noise_var")
        )
        maps = [part.phi.materialize() for part in parts]
        phi = DenseMap(torch.cat(maps)[chosen] if self.varying else maps[0][0])
        return Batch(signal, y, phi, noise_var, code=signal)

    def on_all_tones(self, number: int, *, seed: int, split: Split = "test") -> tuple[Batch, Tensor]:
        """Batch `number` of 512 samples, and what their networks are given of it: [512, 1024], noise alone on other tones."""
        return self._block(number, seed, split, self.snr_db)

    def _block(self, number: int, seed: int, split: Split, snr_db: float) -> tuple[Batch, Tensor]:
        indices = range(BLOCK * number, BLOCK * (number + 1))

        def keys(stream: str) -> Tensor:
            return sample_keys(seed, split, indices, stream=f"sparse taps {stream}")

        silent = uniforms(keys("support"), self.length) > self.active / self.length
        values = normals(keys("values"), (self.length,), dtype=self.dtype)
        signal = (values * self.powers().sqrt()).masked_fill_(silent, 0.0)
        spectrum = torch.fft.fft(signal, TONES, norm="ortho")
        if self.varying:
            seen = _FIRST + uniforms(keys("tones"), _LAST - _FIRST).topk(self.measurements).indices
        else:
            seen = self.published_tones().expand(BLOCK, -1)
        clean = torch.zeros_like(spectrum).scatter_(1, seen, spectrum.gather(1, seen))
        deviation = torch.view_as_real(clean).std(1).flatten() * 10 ** (-snr_db / 20)
        noise = normals(keys("noise"), (TONES,), dtype=self.dtype, std=math.sqrt(2.0)) * deviation
        noisy = clean + noise
        noise_var = 2.0 * deviation.square()[seen].mean(1)
        phi = DenseMap(self._rows(seen) if self.varying else self.matrix()[None].expand(BLOCK, -1, -1))
        return Batch(signal, noisy.gather(1, seen), phi, noise_var, code=signal), noisy

    def _rows(self, tones: Tensor) -> Tensor:
        """Rows of the unitary Fourier matrix on the taps: [..., m] -> [..., m, 256]."""
        turns = tones[..., None] * torch.arange(self.length) % TONES
        return torch.polar(torch.tensor(TONES**-0.5), 2.0 * math.pi / TONES * -turns.float())
