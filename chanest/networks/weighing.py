"""Networks that weigh the members of a family by powers that y has on them, and how they learn."""

import math
from collections.abc import Callable, Iterable
from itertools import pairwise

import torch
from torch import Tensor, nn

from chanest.fit import Clock
from vlista_core.models.augmentation import initialise


class WeighingNetwork(nn.Module):
    """Two hidden layers on standardised inputs: numbers of the members and of the sample in, one per member out."""

    def __init__(self, inputs: int, hidden: int, members: int, generator: torch.Generator) -> None:
        super().__init__()
        self.centre: Tensor = nn.Buffer(torch.zeros(inputs))
        self.spread: Tensor = nn.Buffer(torch.ones(inputs))
        with torch.random.fork_rng(devices=[]):
            self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise((inputs, hidden, hidden, members)))
        initialise(self, generator)

    def standardised(self, features: Tensor) -> Tensor:
        """What the first layer gets: [batch, inputs]."""
        return (features - self.centre) / self.spread

    @torch.no_grad()
    def standardise(self, features: Tensor) -> None:
        """Take centre and spread of the inputs from samples of them: [samples, inputs]."""
        self.centre, self.spread = features.mean(0), features.std(0) + 1e-3


def log_powers(powers: Iterable[Tensor]) -> Tensor:
    """Logarithms of powers, side by side. powers: [batch, any number] each."""
    return torch.cat([power.clamp_min(torch.finfo(power.dtype).tiny) for power in powers], 1).log()


def dropped(values: Tensor, share: float, generator: torch.Generator | None) -> Tensor:
    """The values with a share of them set to zero at random and the others scaled up; as they are without a generator."""
    if generator is None:
        return values
    kept = torch.rand(values.shape, generator=generator, device=generator.device) >= share
    return values * kept.to(values.device) / (1.0 - share)


def descend(
    optimizer: torch.optim.Optimizer,
    loss: Callable[[], Tensor],
    clock: Clock,
    words: str,
    *,
    until: float = 1.0,
    most: float = math.inf,
    longest_gradient: float = math.inf,
) -> int:
    """Steps with a cosine rate until that share of the budget is gone or for `most` steps; returns their number, at least 1."""
    (group,) = optimizer.param_groups
    rate, begin, steps = group["lr"], clock.share(), 0
    while steps == 0 or (steps < most and clock.share() < until):
        gone = max(steps / most, min(1.0, (clock.share() - begin) / max(until - begin, 1e-9)))
        group["lr"] = rate * (0.5 + 0.5 * math.cos(math.pi * gone)) * min(1.0, (steps + 1) / 100)
        value = loss()
        optimizer.zero_grad()
        torch.autograd.backward(value)
        if longest_gradient == math.inf or bool(
            torch.isfinite(nn.utils.clip_grad_norm_(group["params"], longest_gradient))
        ):
            optimizer.step()
        steps += 1
        clock.tick()
        if steps % 20 == 0:
            clock.report(f"{words} {float(value.detach()):.2f}")
    return steps
