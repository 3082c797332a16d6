"""The best deviation of VLISTA's posterior for each image of MNIST at half size, found by a grid, and what it follows.

python benchmarks/vlista_deviations.py [--weights FILE] [--images 32]     # without a file: the network as it starts

Every entry of an image's dictionaries has the same deviation; the ELBO of the image is computed for each of a grid, with draws
in pairs of opposite sign. Printed: the best one for all images together, the best of each image, how these vary and follow
‖Φᵀy‖, and what the bound gains by them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

from vlista_core import checkpoint
from vlista_core.data.image_problem import ImageProblem
from vlista_core.experiments import paper_recipe
from vlista_core.experiments.images import images_of
from vlista_core.linops import LinearMap
from vlista_core.models import VLISTA
from vlista_core.models.distributions import DictionaryDistribution, Gaussian
from vlista_core.models.posterior import Posterior

MEASUREMENTS, SEED, PAIRS = 25, 0, 4
GRID = [10.0 ** (step / 16) for step in range(-40, -7)]
"""Deviations that are tried."""


class Fixed(Posterior):
    """A posterior with the mean of a trained one and one deviation for all entries of all images."""

    deviation: float

    def forward(self, code: Tensor, y: Tensor, phi: LinearMap) -> DictionaryDistribution:
        found = super().forward(code, y, phi)
        assert isinstance(found, Gaussian)
        return Gaussian(found.centre, torch.full_like(found.centre, self.deviation))


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--images", type=int, default=32)
    chosen = parser.parse_args()
    problem = ImageProblem(data=images_of("mnist", None, "half"), rows=MEASUREMENTS, centred=True, sharing=1)
    built = (
        paper_recipe.build("vlista", problem, SEED)
        if chosen.weights is None
        else checkpoint.load(chosen.weights, expected=VLISTA)
    )
    assert isinstance(built, VLISTA)
    batch = problem.sample(chosen.images, seed=SEED, split="validation")
    generator = torch.Generator().manual_seed(1)
    noise = [built.draw_noise(len(batch), generator) for _ in range(PAIRS)]
    noise += [[-each for each in draw] for draw in noise]
    own = built.run(batch.y, batch.phi, batch.noise_var, noise[0]).posteriors[0]
    assert isinstance(own, Gaussian)
    built.posterior.__class__ = Fixed
    bounds = []
    for deviation in GRID:
        built.posterior.deviation = deviation
        runs = [built.run(batch.y, batch.phi, batch.noise_var, each) for each in noise]
        likelihood = torch.stack([torch.stack(built.log_likelihoods(run, batch.signal)).sum(0) for run in runs]).mean(0)
        divergence = torch.stack(built.divergences(runs[0])).sum(0)
        bounds.append(likelihood - built.divergence_weight * divergence)
    report(torch.stack(bounds), own.deviation.mean((1, 2)), batch.phi.adjoint(batch.y).norm(dim=1))


def report(bounds: Tensor, own: Tensor, size: Tensor) -> None:
    """bounds: [grid, images]; own: mean deviation that the network gives each image; size: ‖Φᵀy‖ of each."""
    grid = torch.tensor(GRID)
    together = int(bounds.mean(1).argmax())
    each = grid[bounds.argmax(0)]
    gain = bounds.amax(0).mean() - bounds[together].mean()
    print(f"best for all: {GRID[together]:.4f}, bound {float(bounds[together].mean()):.1f} nats an image")
    print(
        f"best of each image: mean {float(each.mean()):.4f}, varies by {float(each.std() / each.mean()):.1%}, "
        f"gains {float(gain):.1f}"
    )
    print(f"correlation of its logarithm with that of ‖Φᵀy‖: {correlation(each, size):.2f}")
    print(
        f"the network's own (first layer): mean {float(own.mean()):.4f}, varies by {float(own.std() / own.mean()):.1%},"
    )
    print(
        f"  correlation with ‖Φᵀy‖ {correlation(own, size):.2f}, with the best of each image {correlation(own, each):.2f}"
    )


def correlation(first: Tensor, second: Tensor) -> float:
    """Of logarithms: [images] each."""
    return float(torch.corrcoef(torch.stack([first.log(), second.log()]))[0, 1])


if __name__ == "__main__":
    main()
