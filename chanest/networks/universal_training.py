"""How `universal` learns: channels of the family `clusters`; arrays, pilots and front ends change with every batch.

Weights are shared by all atoms of all grids, so most is learned on small arrays, where a step takes a tenth of the time. No
source but `clusters` is drawn from: everything else is unseen. Channels are of unit power each, and so blind to path loss.
"""

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from chanest.arrays import Array, Polarization, Sector, upa
from chanest.channels.clusters import ClusterSource
from chanest.fit import Clock, Fit
from chanest.frontend import BeamformingMap
from chanest.networks.universal import Look, UniversalNetwork, scaled
from chanest.networks.weighing import descend
from chanest.pilots import BeamKind, draw_beams, draw_combiners
from chanest.problem import ChannelProblem
from vlista_core.draws import sample_generators
from vlista_core.estimate import Measurement
from vlista_core.prox import squared_modulus
from vlista_core.tensorfile import Json

if TYPE_CHECKING:
    from chanest.estimators.universal import Universal

SMALL = (
    ((1, 8), (1, 1)), ((1, 16), (1, 1)), ((1, 12), (1, 4)), ((2, 4), (1, 2)), ((4, 4), (1, 1)), ((4, 4), (1, 2)),
    ((1, 16), (1, 2)), ((3, 5), (2, 2)), ((2, 8), (1, 2)), ((1, 1), (4, 4)), ((1, 2), (1, 16)),
)  # fmt: skip
"""(Rows, columns) of transmitter and receiver."""
LARGE = (
    ((4, 8), (2, 2)), ((1, 32), (1, 2)), ((8, 8), (2, 2)), ((6, 6), (1, 2)), ((8, 8), (1, 1)), ((8, 4), (2, 2)),
    ((1, 40), (1, 1)), ((10, 5), (1, 1)), ((1, 1), (1, 48)),
)  # fmt: skip
_DUAL, _HYBRID, _TILTED = 0.12, 0.15, 0.3
"""Shares of the batches with two polarisations at both ends, with fewer chains than antennas, with arrays that tilt."""
_MOST_MEASUREMENTS = 128
_SNR_DB = (-12.0, 40.0)
_EARLY = 0.12
"""Weight of the loss of each layer before the last."""
_LEAST_ERROR = 1e-5
_BATCH, _RATE, _PRICE_RATE = 32, 5e-3, 0.05
_LAYERS, _PRICES = 0.9, 1.0
"""Shares of the budget after which the layers are trained, and the prices of paths."""
_LARGE_SHARES = (0.1, 0.6)
"""Of batches with large arrays, at the beginning and at the end."""
_VALIDATED = 200
_DOUBT_BATCHES, _LARGEST_RATIO = 8, 10.0
"""Of the fit of `doubt`: batches, and the largest ratio of an error to its variance that counts."""
_BEAMS: tuple[BeamKind, ...] = ("quantised", "phases", "gaussian", "dft")


class Drawn(NamedTuple):
    """A batch of one pair of arrays: h [batch, n], what is measured of it, and the arrays."""

    signal: Tensor
    measured: Measurement
    rx: Array
    tx: Array


class BroadDraws:
    """Training batches, each a function of (seed, number)."""

    def __init__(self, seed: int, batch_size: int) -> None:
        self.seed, self.batch_size = seed, batch_size
        self._sources: dict[tuple[Array, Array, bool], ClusterSource] = {}

    def draw(self, number: int, *, large: float) -> Drawn:
        """Batch `number`. large: the share of batches with large arrays."""
        (generator,) = sample_generators(self.seed, "train", [number], "universal")
        rx, tx = self._arrays(generator, large)
        signal = self._channels(number, rx, tx, tilted=_uniform(generator) < _TILTED)
        phi = self._front_end(generator, rx, tx)
        low, high = _SNR_DB
        noise_var = 10 ** (-(low + (high - low) * torch.rand(len(signal), generator=generator)) / 10)
        arriving = torch.randn(len(signal), phi.pilots * phi.antennas, dtype=signal.dtype, generator=generator)
        y = phi.apply(signal) + phi.combine(noise_var.sqrt()[:, None] * arriving)
        return Drawn(signal, Measurement(y, phi, noise_var), rx, tx)

    def _arrays(self, generator: torch.Generator, large: float) -> tuple[Array, Array]:
        pairs = LARGE if _uniform(generator) < large else SMALL
        sent, received = pairs[int(_uniform(generator) * len(pairs))]
        slants: Polarization = "cross" if _uniform(generator) < _DUAL and pairs is SMALL else "V"
        return upa(*received, polarization=slants), upa(*sent, polarization=slants)

    def _channels(self, number: int, rx: Array, tx: Array, *, tilted: bool) -> Tensor:
        """Channels of unit power each: [batch, n]."""
        key = rx, tx, tilted
        if key not in self._sources:
            around = Sector(yaw_spread=math.pi, tilt_spread=0.5 if tilted else 0.0)
            self._sources[key] = ClusterSource(tx, rx, bs_sector=around, ue_sector=around)
        first = number * self.batch_size
        source, indices = self._sources[key], range(first, first + self.batch_size)
        h = source.factors(source.rays(indices, seed=self.seed, split="train")).narrowband().mT.flatten(1)
        return h / squared_modulus(h).mean(1, keepdim=True).clamp_min(1e-30).sqrt()

    def _front_end(self, generator: torch.Generator, rx: Array, tx: Array) -> BeamformingMap:
        """Beams of one kind, from a sixth of the transmit antennas to a fifth more than there are."""
        chains = 0
        if rx.ports >= 4 and _uniform(generator) < _HYBRID:
            chains = max(1, rx.ports // 2)
        most = max(1, min(math.ceil(1.2 * tx.ports), _MOST_MEASUREMENTS // (chains or rx.ports)))
        least = min(most, max(1 if tx.ports < 4 else 3, tx.ports // 6))
        pilots = round(least * (most / least) ** _uniform(generator))
        kind = _BEAMS[int(_uniform(generator) * len(_BEAMS))]
        pilots = min(pilots, tx.ports) if kind == "dft" else pilots
        every = range(self.batch_size)
        beams = torch.stack([draw_beams(kind, tx, pilots, bits=2, generator=generator) for _ in every])
        if not chains:
            return BeamformingMap.of(beams, antennas=rx.ports)
        combiners = [draw_combiners("phases", rx, pilots, chains, bits=2, generator=generator) for _ in every]
        return BeamformingMap.of(beams, torch.stack(combiners))


def fit_universal(estimator: "Universal", problem: ChannelProblem, plan: Fit) -> dict[str, Json]:
    """Train the layers, then the prices of paths, within the budget; says what was done, and the NMSE on `problem`."""
    clock, draws, numbers = Clock(plan), BroadDraws(plan.seed, _BATCH), iter(range(2**30))
    first, last = _LARGE_SHARES

    def layers_loss() -> Tensor:
        gone = min(1.0, clock.share() / _LAYERS)
        return loss(estimator.network, draws.draw(next(numbers), large=first + (last - first) * gone))

    def price_loss() -> Tensor:
        return mixture_loss(estimator, draws.draw(next(numbers), large=0.3))

    optimizer = torch.optim.Adam(estimator.network.parameters(), _RATE)
    steps = descend(optimizer, layers_loss, clock, "layers", until=_LAYERS, longest_gradient=1.0)
    priced = torch.optim.Adam([estimator.price, estimator.steepness], _PRICE_RATE)
    more = descend(priced, price_loss, clock, "prices of paths", until=_PRICES, longest_gradient=1.0)
    doubts = [variance_ratios(estimator, draws.draw(next(numbers), large=0.3)) for _ in range(_DOUBT_BATCHES)]
    set_doubt(estimator, torch.cat(doubts))
    estimator.for_problem(problem).eval()
    facts: dict[str, Json] = {"steps": [steps, more], "batch_size": _BATCH, "rate": _RATE, "trained_on": "clusters"}
    return {**facts, **estimator.validation(problem, plan, _VALIDATED)}


def mixture_loss(estimator: "Universal", drawn: Drawn) -> Tensor:
    """Mean over samples of the logarithm of the NMSE of the mixture of both models; only their weights are learned."""
    estimator.rx, estimator.tx = drawn.rx, drawn.tx
    with torch.no_grad():
        answer = estimator.answer(drawn.measured)
        grid, refined = (answer.unit[:, None] * mean for mean in (answer.grid.posterior.mean, answer.refined.mean))
    mean = grid + estimator.weight(answer.grid, answer.refined) * (refined - grid)
    wrong = squared_modulus(mean - drawn.signal).sum(1) / squared_modulus(drawn.signal).sum(1)
    return torch.log(wrong + _LEAST_ERROR).mean()


@torch.no_grad()
def variance_ratios(estimator: "Universal", drawn: Drawn) -> Tensor:
    """Squared error over variance of both models, and the weight of the one with paths: [batch, 3]."""
    estimator.rx, estimator.tx = drawn.rx, drawn.tx
    answer = estimator.answer(drawn.measured)
    signal = drawn.signal / answer.unit[:, None]
    means = answer.grid.posterior.mean, answer.refined.mean
    ratios = [
        squared_modulus(mean - signal).mean(1) / variance.mean(1).clamp_min(1e-30)
        for mean, variance in zip(means, estimator.variances(answer), strict=True)
    ]
    return torch.stack([*ratios, answer.weight[:, 0]], 1)


def set_doubt(estimator: "Universal", ratios: Tensor) -> None:
    """Let the variances be right, by the mean of logarithms, where a model has the word. ratios: [samples, 3].

    The mean of the ratios themselves would be that of the few samples that fail.
    """
    weight = ratios[:, 2]
    chosen = ratios[weight < 0.5, 0], ratios[weight >= 0.5, 1]
    for place, values in enumerate(chosen):
        if len(values):
            estimator.doubt[place] = (
                values.clamp(1.0 / _LARGEST_RATIO, _LARGEST_RATIO).log().mean().exp().clamp_min(1.0)
            )


def loss(network: UniversalNetwork, drawn: Drawn) -> Tensor:
    """Mean over samples of the logarithm of the NMSE after the last layer, and with a small weight after each other one."""
    measured, unit = scaled(drawn.measured)
    energy = squared_modulus(drawn.signal).sum(1)

    def error(look: Look) -> Tensor:
        wrong = squared_modulus(unit[:, None] * look.posterior.mean - drawn.signal).sum(1) / energy
        return torch.log(wrong + _LEAST_ERROR).mean()

    *early, last = [error(look) for look in network(measured, drawn.rx, drawn.tx)[1:]]
    return last + _EARLY * sum(early, last.new_zeros(()))


def _uniform(generator: torch.Generator) -> float:
    return float(torch.rand((), generator=generator))
