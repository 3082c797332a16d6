"""The networks of `product-lmmse`, the powers of the directions of both ends for each sample, and how they learn.

What is seen of a direction looks alike wherever it lies, but for how wide clusters appear. So there are convolutions round the
circle of phases, the same for all directions, with features that say where a direction lies. A mean over all directions lets
the rest of the spectrum have a say.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from chanest.bases.draws import PooledDraws
from chanest.bases.site import gathered, validated
from chanest.bases.unfolded import grouped_nmse_db
from chanest.covariances.ends import EndDirections
from chanest.fit import Clock, Fit
from chanest.networks.weighing import descend
from chanest.problem import ChannelProblem
from chanest.recordings import Recordings
from vlista_core.draws import sample_generators
from vlista_core.estimate import Measurement
from vlista_core.gaussian import condition
from vlista_core.models.augmentation import initialise
from vlista_core.problems import Batch
from vlista_core.prox import squared_modulus
from vlista_core.tensorfile import Json

if TYPE_CHECKING:
    from chanest.estimators.product_lmmse import ProductLMMSE

_SEEN = 3
"""Numbers that a network sees of each direction besides its place."""
_LINEAR_KERNEL, _PLANAR_KERNEL = 9, 5
"""Points of a convolution along an axis, for arrays of one row or column and for others."""
_BLOCKS = 4
_LEAST, _UNIT = 1e-12, 2.0
"""The least ratio whose logarithm is taken, and the unit of logarithms: nats that networks see as one."""
_NOISE = 1e-5, 1e3
"""The least and the most σ² that networks are told, far beyond what they are trained with."""
_BATCH, _RATE = 128, 2e-3
_TOWARDS_NOISE = 2.0
"""Half of the training draws are in the lowest quarter of the range of SNRs, where spectra are hardest to find."""
_SNRS_DB = (-10.0, 0.0, 10.0, 20.0)
_VALIDATED = 300
_ADDED = 0.5
"""Noise added to recordings where they train, as a share of the noise they have."""


class Block(nn.Module):
    """x + W₂ gelu(W₁ * x + c): W₁ a convolution over directions, c from the mean of x over all of them and the noise."""

    def __init__(self, width: int, kernel: tuple[int, int]) -> None:
        super().__init__()
        around = (kernel[0] // 2, kernel[1] // 2)
        self.spread = nn.Conv2d(width, width, kernel, padding=around, padding_mode="circular")
        self.context = nn.Linear(width + 1, width)
        self.mix = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        """x: [batch, width, columns, rows], noise: [batch, 1]."""
        context = self.context(torch.cat([x.mean((2, 3)), noise], 1))
        mixed: Tensor = self.mix(nn.functional.gelu(self.spread(x) + context[:, :, None, None]))
        return x + mixed


class EndNetwork(nn.Module):
    """What to add to the logarithms of the powers of an end's directions, and to that of its total power."""

    def __init__(self, end: EndDirections, width: int) -> None:
        super().__init__()
        self.end = end
        linear = 1 in end.axes
        longest = _LINEAR_KERNEL if linear else _PLANAR_KERNEL
        columns, rows = (min(longest, points - 1 + points % 2) for points in end.axes)
        self.first = nn.Conv2d(_SEEN + len(end.places), width, 1)
        self.blocks = nn.ModuleList(Block(width, (columns, rows)) for _ in range(_BLOCKS))
        self.last = nn.Conv2d(width, 1, 1)
        self.usual = nn.Parameter(torch.zeros(end.count))
        """Of each direction, whatever is seen."""
        self.total = nn.Linear(width, 1)

    def forward(self, seen: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """seen: [batch, _SEEN, G], noise: [batch, 1] -> [batch, G] and [batch, 1]."""
        places = self.end.places.to(seen).expand(len(seen), -1, -1)
        hidden = self.first(torch.cat([seen, places], 1).unflatten(2, self.end.axes))
        for block in self.blocks:
            hidden = block(hidden, noise)
        return self.last(hidden).flatten(1) + self.usual, self.total(hidden.mean((2, 3)))


class Look(nn.Module):
    """The networks of both ends."""

    def __init__(self, rx: EndDirections, tx: EndDirections, width: int) -> None:
        super().__init__()
        self.departing, self.arriving = EndNetwork(tx, width), EndNetwork(rx, width)

    def forward(self, ends: tuple[Tensor, Tensor], noise: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """ends: [batch, _SEEN, G_t] and [batch, _SEEN, G_r] -> changes of the logarithms of powers, of that of their total."""
        departing, first = self.departing(ends[0], noise)
        arriving, second = self.arriving(ends[1], noise)
        return (departing, arriving), first + second


class SpectrumNetwork(nn.Module):
    """Powers of departures, which add up to one, and of arrivals, from looks at the spectra of both ends."""

    def __init__(
        self, rx: EndDirections, tx: EndDirections, looks: int, width: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.counts = tx.count, rx.count
        with torch.random.fork_rng(devices=[]):
            self.looks = nn.ModuleList(Look(rx, tx, width) for _ in range(looks))
        initialise(self, generator)
        with torch.no_grad():  # Powers start equal, and change as the network learns.
            for module in self.modules():
                if isinstance(module, Block):
                    module.mix.weight.zero_()
                elif isinstance(module, EndNetwork):
                    module.last.weight.zero_()
                    module.total.weight.zero_()

    def forward(self, energy: Tensor, seen: Tensor, noise_var: Tensor) -> tuple[Tensor, Tensor]:
        """See `ProductLMMSE.spectrum`: [batch, G_t, G_r] each; noise_var: [batch] -> [batch, G_t], [batch, G_r]."""
        noise_var = noise_var.clamp(*_NOISE)
        noise = noise_var.log()[:, None]
        logs = [energy.new_zeros(len(energy), count) for count in self.counts]
        gain = energy.new_zeros(len(energy), 1)
        for look in self.looks:
            departing, arriving = (each.softmax(1)[:, :, None] for each in logs)
            ends = (
                _features(energy @ arriving, seen @ arriving, noise_var, logs[0]),
                _features(energy.mT @ departing, seen.mT @ departing, noise_var, logs[1]),
            )
            changes, total = look(ends, noise / _UNIT)
            logs, gain = [log + change for log, change in zip(logs, changes, strict=True)], gain + total
        departing, arriving = (each.softmax(1) for each in logs)
        return departing, gain.exp() * arriving


def _features(energy: Tensor, seen: Tensor, noise_var: Tensor, logs: Tensor) -> Tensor:
    """How far a direction is above the noise, which power it shows, and which it is taken to have: [batch, _SEEN, G].

    energy, seen: [batch, G, 1], noise_var: [batch], logs: [batch, G].
    """
    above = (energy[:, :, 0] / noise_var[:, None]).clamp_min(_LEAST).log()
    shown = (energy / seen.clamp_min(_LEAST))[:, :, 0].clamp_min(_LEAST).log()
    return torch.stack([above, shown, logs - logs.mean(1, keepdim=True)], 1) / _UNIT


def fit_spectra(estimator: "ProductLMMSE", problem: ChannelProblem, plan: Fit) -> dict[str, Json]:
    """Fit within the budget; leaves `estimator` trained and says what was done."""
    clock = Clock(plan)
    draws = PooledDraws.within(problem, plan, towards_noise=_TOWARDS_NOISE)
    clock.report("channels")
    drawn = 0

    def loss() -> Tensor:
        nonlocal drawn
        drawn += _BATCH
        return error(estimator, draws.sample(_BATCH, seed=plan.seed, split="train", start=drawn))

    optimizer = torch.optim.Adam(estimator.parameters(), _RATE)
    steps = descend(optimizer, loss, clock, "training", longest_gradient=1.0)
    estimator.eval()
    facts: dict[str, Json] = {"channels": len(draws.channels), "steps": steps, "batch_size": _BATCH, "rate": _RATE}
    return {**facts, **estimator.validation(problem, plan, _VALIDATED, _SNRS_DB)}


def fit_spectra_from_pilots(estimator: "ProductLMMSE", recordings: Recordings, plan: Fit) -> dict[str, Json]:
    """Fit within the budget to recordings, by `blind_error`."""
    clock, every = Clock(plan), gathered(recordings, plan)
    clock.report("recordings")
    (generator,) = sample_generators(plan.seed, "train", [0], "spectra")

    def loss() -> Tensor:
        some = torch.randint(len(every.y), (_BATCH,), generator=generator)
        return blind_error(estimator, every.select(some), generator)

    optimizer = torch.optim.Adam(estimator.parameters(), _RATE)
    steps = descend(optimizer, loss, clock, "training", longest_gradient=1.0)
    estimator.eval()

    def evidence(measured: Measurement) -> Tensor:
        return condition(estimator.prior(measured), measured).log_evidence

    facts: dict[str, Json] = {"recordings": len(every.y), "steps": steps, "batch_size": _BATCH, "rate": _RATE}
    return {**facts, **validated(recordings, evidence, plan, _VALIDATED)}


def error(estimator: "ProductLMMSE", batch: Batch) -> Tensor:
    """NMSE in dB of the estimate of a batch, the mean over groups of like SNR."""
    return grouped_nmse_db(_estimated(estimator, Measurement(batch.y, batch.phi, batch.noise_var)), batch).mean()


def blind_error(estimator: "ProductLMMSE", measured: Measurement, generator: torch.Generator) -> Tensor:
    """Mean of |Φĥ - Φh|²/σ² but for a constant, by y alone.

    With noise z of the law of n, y + √a z and y - z/√a have independent errors: the estimate is from the one, and the other
    stands for the truth. Where there are as many pilots as antennas all of the channel is seen; where there are fewer, what is
    not seen is left to the network, which is the same for all directions.
    """
    noise = torch.randn(measured.y.shape, dtype=measured.y.dtype, generator=generator)
    noise = measured.noise_var.sqrt()[:, None] * noise
    given = Measurement(measured.y + _ADDED**0.5 * noise, measured.phi, (1.0 + _ADDED) * measured.noise_var)
    left = measured.phi.apply(_estimated(estimator, given)) - (measured.y - noise / _ADDED**0.5)
    return (squared_modulus(left).mean(1) / measured.noise_var).mean()


def _estimated(estimator: "ProductLMMSE", measured: Measurement) -> Tensor:
    """The estimate, to be differentiated: [batch, n].

    Where u solves Cu = y, so does u + C⁻¹(y - Cu), which has the right gradient with C⁻¹ and the u in it held fixed: products
    with Φ and R alone are differentiated, no factorisation.
    """
    prior, phi = estimator.prior(measured), measured.phi
    with torch.no_grad():
        posterior = condition(prior, measured)
        held = posterior.whitened
    again = phi.apply(prior.apply(phi.adjoint(held))) + measured.noise_var[:, None] * held
    whitened = held + posterior.solve(measured.y - again)
    found: Tensor = prior.apply(phi.adjoint(whitened))
    return found
