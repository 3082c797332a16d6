"""Images seen through random matrices: the paper's MNIST and CIFAR-10 problems."""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from vlista_core.counter import normals, sample_keys, uniforms
from vlista_core.data.image_set import ImageData
from vlista_core.devices import Device
from vlista_core.draws import Split
from vlista_core.linops import DenseMap, GroupedMap, LinearMap
from vlista_core.problems import Batch, Problem, check_count

HELD_OUT = 5000
"""Training images at the end that are kept for validation: at most this many, and at most a tenth of them."""


@dataclass(frozen=True, kw_only=True)
class ImageProblem(Problem):
    """y = Φs + n with s an image in [0, 1], Φ ~ N(0, 1/m) drawn anew for each sample.

    Training draws images at random; sample i of validation and test is image i of its set, in order. Φ is a function of (seed,
    split, index), so that no split shares one with another, and no data set of matrices sits in memory.
    """

    data: ImageData
    rows: int
    """m, the number of measurements."""
    centred: bool = False
    """Let s be the image less the mean training image: a receiver that knows the mean may subtract its Φ-image from y."""
    snr_db: float | None = None
    """E‖Φs‖²/E‖n‖² over the training images, in dB, the mean counted in any case; None is noiseless."""
    sharing: int = 16
    """Training samples in a row that share one Φ, so that products are of matrices; validation and test samples share none."""
    fixed_phi_seed: int | None = None
    """One matrix, drawn from this seed, serves every sample of every split."""
    classes: tuple[int, ...] | None = None
    """Only images with these labels."""
    power_db: float = 0.0
    """Half the range, in dB, over which the power of a Φ is uniform: a receiver whose gain differs from sample to sample."""
    device: Device = field(default="cpu", compare=False)
    """Where the tensors of a batch are made; no draw depends on it."""

    def __post_init__(self) -> None:
        check_count("rows", self.rows)
        check_count("sharing", self.sharing)
        known = sorted(set(self.data.train_labels.tolist()))
        if self.classes is not None and not set(self.classes) <= set(known):
            raise ValueError(f"classes must be among {known}, got {list(self.classes)}")

    @property
    def side(self) -> tuple[int, int]:
        """Height and width."""
        return self.data.train.shape[1], self.data.train.shape[2]

    @property
    def signal_length(self) -> int:
        return self.side[0] * self.side[1]

    @property
    def measurements(self) -> int:
        return self.rows

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    @cached_property
    def offset(self) -> Tensor:
        """What is subtracted from images, the mean training image or nothing: [n]."""
        if not self.centred:
            return torch.zeros(self.signal_length, device=self.device)
        images = self._images["train"]
        total = torch.stack([part.sum(0, dtype=torch.float64) for part in torch.split(images, 4096)]).sum(0)
        return (total / (255.0 * len(images))).float().flatten()

    @cached_property
    def energy(self) -> float:
        """E‖image‖² over the training images."""
        images = self._images["train"]
        total = sum(float(part.double().square().sum()) for part in torch.split(images, 4096))
        return total / (255.0**2 * len(images))

    @cached_property
    def fixed_phi(self) -> Tensor | None:
        """The one matrix [m, n] of a fixed-Φ problem; None where Φ varies."""
        if self.fixed_phi_seed is None:
            return None
        return self._matrices(range(1), self.fixed_phi_seed, "train", "fixed phi")[0]

    def on(self, device: Device) -> Self:
        return self if torch.device(device) == torch.device(self.device) else replace(self, device=device)

    def sample(
        self, count: int, *, seed: int, split: Split = "test", start: int = 0, snr_db: float | None = None
    ) -> Batch:
        check_count("count", count)
        check_count("start", start, least=0)
        indices = range(start, start + count)
        signal = self.signals(indices, seed=seed, split=split)
        phi = self._phi(indices, seed, split)
        noise_var = self.noise_variance(self.snr_db if snr_db is None else snr_db)
        y = phi.apply(signal)
        if noise_var > 0:
            keys = sample_keys(seed, split, indices, stream="image noise", device=self.device)
            y += normals(keys, (self.rows,), std=math.sqrt(noise_var))
        return Batch(signal, y, phi, torch.full((count,), noise_var, device=self.device))

    def signals(self, indices: range, *, seed: int, split: Split) -> Tensor:
        """The true signals: [len(indices), n]."""
        images = self._images[split]
        if split == "train":
            keys = sample_keys(seed, split, indices, stream="image", device=self.device)
            chosen = (uniforms(keys, 1)[:, 0] * len(images)).ceil().long() - 1
        else:
            chosen = self._range(indices) % len(images)
        return images[chosen].flatten(1).float() / 255.0 - self.offset

    def images(self, signal: Tensor) -> Tensor:
        """Signals as images again, within [0, 1]: [batch, n] -> [batch, height, width]."""
        return (signal + self.offset.to(signal.device)).clamp(0.0, 1.0).reshape(-1, *self.side)

    def noise_variance(self, snr_db: float | None) -> float:
        """E|n|² per entry: E‖Φs‖² = E‖s‖² for entries of variance 1/m."""
        return 0.0 if snr_db is None else self.energy / self.rows * math.pow(10.0, -snr_db / 10.0)

    @cached_property
    def _images(self) -> dict[Split, Tensor]:
        """The images of each split, uint8 [images, height, width], put on the device once."""
        cut = len(self.data.train) - min(HELD_OUT, len(self.data.train) // 10)
        labelled: dict[Split, tuple[Tensor, Tensor]] = {
            "train": (self.data.train[:cut], self.data.train_labels[:cut]),
            "validation": (self.data.train[cut:], self.data.train_labels[cut:]),
            "test": (self.data.test, self.data.test_labels),
        }
        if self.classes is not None:
            wanted = torch.tensor(self.classes)
            labelled = {
                split: (images[torch.isin(labels, wanted)], labels) for split, (images, labels) in labelled.items()
            }
        return {split: images.to(self.device) for split, (images, _) in labelled.items()}

    def _phi(self, indices: range, seed: int, split: Split) -> LinearMap:
        fixed = self.fixed_phi
        if fixed is not None:
            return DenseMap(fixed)
        members = self.sharing if split == "train" else 1
        numbers = range(indices.start // members, (indices.stop - 1) // members + 1)
        matrices = self._matrices(numbers, seed, split, "image phi")
        if indices.start % members or len(indices) % members:
            return DenseMap(matrices[self._range(indices) // members - numbers.start])
        return DenseMap(matrices) if members == 1 else GroupedMap(matrices, members)

    def _matrices(self, numbers: range, seed: int, split: Split, stream: str) -> Tensor:
        """Φ of each number: [len(numbers), m, n]."""
        keys = sample_keys(seed, split, numbers, stream=stream, device=self.device)
        matrices = normals(keys, (self.rows, self.signal_length), std=1.0 / math.sqrt(self.rows))
        if self.power_db > 0:
            levels = uniforms(sample_keys(seed, split, numbers, stream=f"{stream} power", device=self.device), 1)
            matrices *= torch.pow(10.0, self.power_db * (2.0 * levels - 1.0) / 20.0).float()[:, :, None]
        return matrices

    def _range(self, indices: range) -> Tensor:
        return torch.arange(indices.start, indices.stop, device=self.device)
