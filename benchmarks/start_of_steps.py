"""What the first steps and thresholds, and their rate, are worth to DLISTA by the paper's recipe: CIFAR-10, m = 100.

python benchmarks/start_of_steps.py [--steps 60]     # six runs, a quarter of a second a step each on one core

A-DLISTA whose augmentation gives all samples and layers the same is DLISTA with one step and one threshold for all layers, at
a sixth of the time. Printed: the validation error of the centred images in dB, every ten steps, from the start of A-DLISTA's
own grid, from DLISTA's, and from the geometric means of DLISTA's over its layers, with γ and θ at the rate of the augmentation
and of the reconstruction.
"""

from __future__ import annotations

import argparse

import torch

from vlista_core.data.image_problem import ImageProblem
from vlista_core.dictionaries import LearnedDictionary
from vlista_core.experiments import paper_recipe
from vlista_core.experiments.images import images_of
from vlista_core.experiments.paper_recipe import AUGMENTATION, RECONSTRUCTION, WEIGHT_DECAY, PaperTraining
from vlista_core.experiments.recipes import started
from vlista_core.models import ADLISTA, DLISTA
from vlista_core.models.layer import LayerChoice
from vlista_core.training import Trainer

MEASUREMENTS, SEED, EVERY = 100, 0, 10
Start = list[tuple[float, float]]
"""Step and threshold of each layer."""


class AtRates(PaperTraining):
    """The paper's training with a rate of its own for steps and thresholds."""

    rate = RECONSTRUCTION

    def parameter_groups(self) -> list[dict[str, object]]:
        named = list(self.network.named_parameters())
        learned = [value for name, value in named if name.startswith("dictionaries.")]
        scalars = [value for name, value in named if not name.startswith("dictionaries.")]
        return [{"params": learned, "lr": RECONSTRUCTION}, {"params": scalars, "lr": self.rate}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=60)
    steps = parser.parse_args().steps
    problem = ImageProblem(data=images_of("cifar10", None), rows=MEASUREMENTS, centred=True, sharing=1)
    starts = starts_of(problem)
    for name, start in starts.items():
        print(f"{name}: steps and thresholds {', '.join(f'{step:.4f} {level:.4f}' for step, level in start)}")
        for rate in (AUGMENTATION, RECONSTRUCTION):
            found = errors(problem, start, rate, steps)
            print(f"  at the rate {rate:g}: {', '.join(f'{error:.2f}' for error in found)}", flush=True)


@torch.no_grad()
def starts_of(problem: ImageProblem) -> dict[str, Start]:
    n = problem.signal_length
    psi = LearnedDictionary.random(n, n, generator=torch.Generator().manual_seed(SEED))
    augmented = started(ADLISTA(psi, layers=3, augmentation="paper"), problem, SEED)
    batch = problem.sample(1, seed=SEED, split="train")
    own = [
        (float(layer.step), float(layer.threshold)) for layer in augmented.unroll(batch.y, batch.phi, batch.noise_var)
    ]
    plain = started(DLISTA(psi, layers=3), problem, SEED)
    pairs = torch.tensor([[float(step), float(level)] for step, level in plain.scalars(batch.noise_var)])
    means = pairs.log().mean(0).exp().tolist()
    return {
        "A-DLISTA's own grid": own,
        "DLISTA's": [(step, level) for step, level in pairs.tolist()],
        "DLISTA's, means over the layers": [(means[0], means[1])] * len(pairs),
    }


def errors(problem: ImageProblem, start: Start, rate: float, steps: int) -> list[float]:
    network = paper_recipe.build("dlista", problem, SEED)
    assert isinstance(network, DLISTA)
    network.start_at([LayerChoice(0.0, *each) for each in start])
    training = AtRates(network)
    training.rate = rate
    trainer = Trainer(
        steps=steps, batch_size=128, schedule="constant", learning_rate=RECONSTRUCTION, weight_decay=WEIGHT_DECAY,
        validation_samples=256, validate_every=EVERY, accelerator="cpu",
    )  # fmt: skip
    return [record.validation for record in trainer.fit(training, problem, seed=SEED).history]


if __name__ == "__main__":
    main()
