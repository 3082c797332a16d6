"""Speed and memory of the networks as ratios, measured in one run.

python benchmarks/model_speed.py            the A-DLISTA forward against plain reads of Φ; a training step factored and formed
python benchmarks/model_speed.py --memory   one VLISTA training step at n = b = 1024, batch 32, with the paper's prior (minutes)
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import torch
from timing import best_time, forget_peak, memory
from torch import Tensor

from vlista_core.dictionaries import LearnedDictionary
from vlista_core.linops import DenseMap, IdentityMap, LinearMap
from vlista_core.models import ADLISTA, VLISTA
from vlista_core.models.dlista import LikelihoodBlock
from vlista_core.models.layer import Layer
from vlista_core.problems import Batch


def draw(batch: int, m: int, n: int) -> Batch:
    generator = torch.Generator().manual_seed(0)
    phi = DenseMap(torch.randn(batch, m, n, generator=generator) / m**0.5)
    signal = torch.rand(batch, n, generator=generator)
    return Batch(signal, phi.apply(signal), phi, torch.zeros(batch))


class FormedADLISTA(ADLISTA):
    """The same network with ΦΨ_t formed in every layer."""

    def unroll(self, y: Tensor, phi: LinearMap, noise_var: Tensor) -> list[Layer]:
        block = LikelihoodBlock(y, phi, noise_var, self.augmentation)
        layers = []
        for t in range(self.layers):
            block.phi = DenseMap((phi @ self.dictionary(t)).materialize())
            layer = block.layer(IdentityMap(block.phi.shape[1]))
            layers.append(replace(layer, dictionary=self.dictionary(t)))
        return layers


def forward_against_reads() -> None:
    batch, n = draw(32, 500, 1024), 1024
    model = ADLISTA(LearnedDictionary(torch.eye(n)), layers=3).eval()
    phi = batch.phi.materialize()
    with torch.no_grad():
        forward = best_time(lambda: model(batch.y, batch.phi, batch.noise_var))
    reads = best_time(lambda: [phi.sum() for _ in range(6)])
    print("A-DLISTA (adaptive), three layers, m = 500, n = b = 1024, batch 32:")
    print(f"  forward {forward * 1e3:.1f} ms, six plain reads of Φ {reads * 1e3:.1f} ms: ratio {forward / reads:.2f}")


def step_against_formed() -> None:
    batch, n = draw(128, 100, 784), 784
    times = {}
    losses = {}
    for kind in (ADLISTA, FormedADLISTA):
        model = kind(LearnedDictionary.random(n, n, generator=torch.Generator().manual_seed(1)), layers=3)
        optimizer = torch.optim.Adam(model.parameters(), fused=True)

        def step(model: ADLISTA = model, optimizer: torch.optim.Adam = optimizer) -> float:
            optimizer.zero_grad()
            loss = model.training_loss(batch, generator=torch.Generator())
            loss.backward()
            optimizer.step()
            return float(loss.detach())

        losses[kind] = step()
        times[kind] = best_time(step)
    factored, formed = times[ADLISTA], times[FormedADLISTA]
    print(
        f"training step, MNIST size, m = 100, batch 128 (first losses {losses[ADLISTA]:.5f}, {losses[FormedADLISTA]:.5f}):"
    )
    print(f"  formed {formed * 1e3:.0f} ms, factored {factored * 1e3:.0f} ms: {formed / factored:.1f} times faster")


def memory_of_vlista(prior_width: int, batch_size: int) -> None:
    batch = draw(batch_size, 500, 1024)
    model = VLISTA(LearnedDictionary(torch.eye(1024)), 500, prior_width=prior_width)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    forget_peak()
    start = time.perf_counter()
    loss = model.training_loss(batch, generator=torch.Generator().manual_seed(0))
    loss.backward()
    optimizer.step()
    seconds = time.perf_counter() - start
    print(
        f"VLISTA, n = b = 1024, m = 500, three layers, batch {batch_size}, prior width {prior_width}: "
        f"peak of the process {memory('VmHWM') / 1024:.2f} GiB, {seconds:.0f} s per step"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--memory", action="store_true", help="measure the VLISTA training step instead")
    parser.add_argument("--prior-width", type=int, default=32)
    parser.add_argument("--batch", type=int, default=32)
    chosen = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    if chosen.memory:
        memory_of_vlista(chosen.prior_width, chosen.batch)
    else:
        forward_against_reads()
        step_against_formed()


if __name__ == "__main__":
    main()
