"""How much SSIM can m numbers per image carry? A decoder with no structure at all, trained on SSIM itself.

python benchmarks/ssim_ceiling.py [--measurements 1] [--rows gaussian|learned] [--data cifar10] [--minutes 5] [--phi-seed 0]

It says what is out of reach of any network on the same measurements. "gaussian" is the Φ of the tables with one Φ for all
images; "learned" rows are trained with the decoder, so they are about the best that any Φ with so many rows can do.
"""

from __future__ import annotations

import argparse
import time
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from vlista_core.data.image_problem import ImageProblem
from vlista_core.data.images import load_images
from vlista_core.metrics import ssim
from vlista_core.models.augmentation import initialise

WIDTH, BATCH, RATE = 1024, 128, 1e-3
TRAINED_ON = 45_000
TEST_IMAGES = 1000


class Decoder(nn.Module):
    """An image from y, by two hidden layers and the mean image."""

    def __init__(self, problem: ImageProblem, rows: Tensor, *, learned: bool) -> None:
        super().__init__()
        self.problem = problem
        self.rows = nn.Parameter(rows.clone(), requires_grad=learned)
        sizes = [len(rows), WIDTH, WIDTH]
        hidden = [module for a, b in pairwise(sizes) for module in (nn.Linear(a, b), nn.GELU())]
        self.layers = nn.Sequential(*hidden, nn.Linear(WIDTH, rows.shape[1]))
        initialise(self.layers, torch.Generator().manual_seed(0))

    def forward(self, images: Tensor) -> Tensor:
        """images: [batch, n], centred -> what is made of their measurements, [batch, height, width]."""
        y = images @ (self.rows / self.rows.norm(dim=1, keepdim=True)).mT
        return self.problem.images(self.layers(y))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--measurements", type=int, default=1)
    parser.add_argument("--rows", choices=("gaussian", "learned"), default="gaussian")
    parser.add_argument("--data", choices=("mnist", "cifar10"), default="cifar10")
    parser.add_argument("--folder", type=Path, help="where the data set is, or is to be kept")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--phi-seed", type=int, default=0)
    chosen = parser.parse_args()
    data = load_images(chosen.data, chosen.folder)
    problem = ImageProblem(data=data, rows=chosen.measurements, centred=True, fixed_phi_seed=chosen.phi_seed)
    gaussian = problem.fixed_phi
    if gaussian is None:
        raise TypeError("a problem with one Φ has that Φ")
    decoder = Decoder(problem, gaussian, learned=chosen.rows == "learned")
    steps, best = train(decoder, 60.0 * chosen.minutes)
    test = problem.signals(range(TEST_IMAGES), seed=0, split="test")
    value = float(score(decoder, test).mean())
    mean = float(ssim(problem.images(torch.zeros_like(test)), problem.images(test)).mean())
    print(f"{chosen.data}, m = {chosen.measurements}, {chosen.rows} rows, {steps} steps, validation {best:.4f}")
    print(f"SSIM of {TEST_IMAGES:,} test images: {value:.4f} (the mean training image: {mean:.4f})")


def train(decoder: Decoder, seconds: float) -> tuple[int, float]:
    """Adam with a falling rate until the time is up; leaves the weights that did best on validation images."""
    problem, start, steps = decoder.problem, time.perf_counter(), 0
    validation = problem.signals(range(500), seed=0, split="validation")
    every = problem.data.train[:TRAINED_ON].flatten(1).float() / 255.0 - problem.offset
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(decoder.parameters(), RATE)
    kept, best = {name: value.clone() for name, value in decoder.state_dict().items()}, 0.0
    while (gone := (time.perf_counter() - start) / seconds) < 1.0:
        optimizer.param_groups[0]["lr"] = RATE * (1.0 - gone)
        images = every[torch.randint(len(every), (BATCH,), generator=generator)]
        loss = 1.0 - ssim(decoder(images), problem.images(images)).mean()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        steps += 1
        if steps % 100 == 0 and (found := float(score(decoder, validation).mean())) > best:
            kept, best = {name: value.clone() for name, value in decoder.state_dict().items()}, found
    decoder.load_state_dict(kept)
    return steps, best


@torch.no_grad()
def score(decoder: Decoder, images: Tensor) -> Tensor:
    """SSIM of each image: [images]."""
    return ssim(decoder(images), decoder.problem.images(images))


if __name__ == "__main__":
    main()
