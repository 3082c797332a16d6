"""How `universal` learns: channels of broad families; arrays, pilots and front ends change with every batch.

Weights are shared by all atoms of all grids, so most is learned on small arrays, where a step takes a tenth of the time.
Channels are of the family `clusters`, over all of its ranges or, for a share of the batches, over those that TR 38.901 speaks
of in general: many clusters of twenty rays, narrow at the base station and wide at the user, all near the horizon. Another
share is of users of a cell of TR 38.901. Nothing else is drawn from: CDL, streets, the spatial channel model and whatever users
bring are unseen. Channels are of unit power each, and so blind to path loss.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypedDict

import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from chanest.arrays import Array, Polarization, Sector, upa
from chanest.bases.site import SiteDraws, learn_site, validated
from chanest.channels.clusters import ClusterSource, Range
from chanest.channels.source import ChannelSource, Direction
from chanest.channels.system_level import BS_SECTOR, UE_SECTOR, Environment, SystemLevelSource
from chanest.fit import Clock, Fit
from chanest.frontend import BeamformingMap
from chanest.networks.universal import Answer, UniversalNetwork, scaled
from chanest.networks.weighing import descend
from chanest.pilots import BeamKind, draw_beams, draw_combiners
from chanest.problem import ChannelProblem
from chanest.recordings import Recordings
from vlista_core.draws import sample_generators
from vlista_core.estimate import Measurement
from vlista_core.prox import squared_modulus
from vlista_core.tensorfile import Json

if TYPE_CHECKING:
    from chanest.estimators.universal import Universal


class Ranges(TypedDict):
    """Fields of `ClusterSource`."""

    clusters: tuple[int, int]
    specular: float
    bs_spread: Range
    ue_spread: Range
    zenith_ratio: Range
    concentrated: float
    concentration: Range
    level: float
    elevation: Range
    shadowing_db: Range
    line_of_sight: float
    k_factor_db: Range


SMALL = (
    ((1, 8), (1, 1)), ((1, 16), (1, 1)), ((1, 12), (1, 4)), ((2, 4), (1, 2)), ((4, 4), (1, 1)), ((4, 4), (1, 2)),
    ((1, 16), (1, 2)), ((3, 5), (2, 2)), ((2, 8), (1, 2)), ((1, 1), (4, 4)), ((1, 2), (1, 16)),
)  # fmt: skip
"""(Rows, columns) of transmitter and receiver."""
LARGE = (
    ((4, 8), (2, 2)), ((1, 32), (1, 2)), ((8, 8), (2, 2)), ((6, 6), (1, 2)), ((8, 8), (1, 1)), ((8, 4), (2, 2)),
    ((1, 40), (1, 1)), ((10, 5), (1, 1)), ((1, 1), (1, 48)),
)  # fmt: skip
_DUAL, _HYBRID, _TILTED, _CELLS, _MANY = 0.15, 0.15, 0.3, 0.2, 0.15
"""Shares of batches: two polarisations at both ends, fewer chains than antennas, arrays that tilt, users of a cell, many wide
clusters."""
_SPECULAR = 0.4
"""Share of the channels of the family `clusters` whose clusters have no spread."""
_MANY_CLUSTERS: Ranges = {
    "clusters": (5, 24), "specular": 0.0, "bs_spread": (1.0, 6.0), "ue_spread": (5.0, 20.0), "zenith_ratio": (0.2, 0.7),
    "concentrated": 0.8, "concentration": (1.0, 30.0), "level": 1.0, "elevation": (2.0, 15.0), "shadowing_db": (2.0, 6.0),
    "line_of_sight": 0.2, "k_factor_db": (-5.0, 10.0),
}  # fmt: skip
"""Ranges of the family `clusters` of which TR 38.901 speaks in general, none of them of a profile: see `ClusterSource`."""
_ENVIRONMENTS: tuple[Environment, ...] = ("umi", "uma", "rma", "inh")
_MOST_MEASUREMENTS = 128
_SNR_DB, _LOW_SNR_DB = (-12.0, 40.0), (-8.0, 20.0)
"""Of one half of the batches, and of the other."""
_GRID, _EARLY = 0.5, 0.12
"""Weights of the loss of the grid alone, and of each layer before an answer."""
_LEAST_ERROR, _NEAR_DB = 1e-5, 3.0
"""What is added to an NMSE before the logarithm; how near in SNR samples of one kind are that are judged together."""
_BATCH, _RATE, _DECAY = 64, 3e-3, 0.995
"""Samples of a step, the rate at first, and what the running mean of the weights keeps at every step."""
_LARGE_SHARES = (0.1, 0.6)
"""Of batches with large arrays, at the beginning and at the end."""
_VALIDATED = 200
_DOUBT_BATCHES, _LARGEST_RATIO = 24, 10.0
"""Of the fit of `doubt`: batches, and the largest ratio of an error to its variance that counts."""
TUNED_BATCH, _TUNING_RATE = 32, 1e-3
"""Samples of a step, and its rate at first, where weights are tuned to a site."""
_SITE, _SITE_CLASSES, _FROM_SITE = 0.3, 64, 20_000
"""From pilots: share of the budget in which the site is learned, by how many classes, and channels that are drawn from it."""
_TUNED_DOUBT_BATCHES, _RECORDINGS_VALIDATED = 6, 64
_BEAMS: tuple[BeamKind, ...] = ("quantised", "phases", "gaussian", "dft")


class Drawn(NamedTuple):
    """A batch of one pair of arrays: h [batch, n], what is measured of it, and the arrays."""

    signal: Tensor
    measured: Measurement
    rx: Array
    tx: Array
    one_kind: bool = False
    """Whether the channels are alike enough for their errors to be added up."""


class BroadDraws:
    """Training batches, each a function of (seed, number)."""

    def __init__(self, seed: int, batch_size: int) -> None:
        self.seed, self.batch_size = seed, batch_size

    def draw(self, number: int, *, large: float) -> Drawn:
        """Batch `number`. large: the share of batches with large arrays."""
        (generator,) = sample_generators(self.seed, "train", [number], "universal")
        rx, tx = self._arrays(generator, large)
        source, one_kind = self._source(generator, rx, tx)
        signal = self._channels(number, source)
        phi = self._front_end(generator, rx, tx)
        low, high = _LOW_SNR_DB if _uniform(generator) < 0.4 else _SNR_DB
        noise_var = 10 ** (-(low + (high - low) * torch.rand(len(signal), generator=generator)) / 10)
        arriving = torch.randn(len(signal), phi.pilots * phi.antennas, dtype=signal.dtype, generator=generator)
        y = phi.apply(signal) + phi.combine(noise_var.sqrt()[:, None] * arriving)
        return Drawn(signal, Measurement(y, phi, noise_var), rx, tx, one_kind)

    def _arrays(self, generator: torch.Generator, large: float) -> tuple[Array, Array]:
        pairs = LARGE if _uniform(generator) < large else SMALL
        sent, received = pairs[int(_uniform(generator) * len(pairs))]
        slants: Polarization = "cross" if _uniform(generator) < _DUAL and pairs is SMALL else "V"
        return upa(*received, polarization=slants), upa(*sent, polarization=slants)

    def _source(self, generator: torch.Generator, rx: Array, tx: Array) -> tuple[ChannelSource, bool]:
        """The source of a batch, and whether its channels are of one kind."""
        tilt = 0.5 if _uniform(generator) < _TILTED else 0.0
        kind, which = _uniform(generator), int(_uniform(generator) * len(_ENVIRONMENTS))
        direction: Direction = "downlink" if tx.ports >= rx.ports else "uplink"
        bs, ue = (tx, rx) if direction == "downlink" else (rx, tx)
        if kind < _CELLS:
            base, user = (replace(sector, tilt_spread=tilt / 2) for sector in (BS_SECTOR, UE_SECTOR))
            environment = _ENVIRONMENTS[which]
            cell = SystemLevelSource(
                bs, ue, direction=direction, environment=environment, bs_sector=base, ue_sector=user
            )
            return cell, True
        around = Sector(yaw_spread=math.pi, tilt_spread=tilt)
        if kind < _CELLS + _MANY:
            ahead = _uniform(generator) < 0.6
            sector = replace(BS_SECTOR, tilt_spread=tilt / 2) if ahead else around
            many = ClusterSource(
                bs, ue, direction=direction, bs_sector=sector, ue_sector=replace(around, tilt_spread=tilt / 2),
                bs_ahead=ahead, one_spread=_uniform(generator) < 0.7, **_MANY_CLUSTERS,
            )  # fmt: skip
            return many, True
        broad = ClusterSource(bs, ue, direction=direction, bs_sector=around, ue_sector=around, specular=_SPECULAR)
        return broad, False

    def _channels(self, number: int, source: ChannelSource) -> Tensor:
        """Channels of unit power each: [batch, n]."""
        first = number * self.batch_size
        rays = source.rays(range(first, first + self.batch_size), seed=self.seed, split="train")
        h = source.factors(rays.without_padding()).narrowband().mT.flatten(1)
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
    """Train the layers within the budget, then set the doubt; says what was done, and the NMSE on `problem`."""
    clock, draws, numbers = Clock(plan), BroadDraws(plan.seed, _BATCH), iter(range(2**30))
    first, last = _LARGE_SHARES
    averaged = AveragedModel(estimator.network, multi_avg_fn=get_ema_multi_avg_fn(_DECAY))

    def layers_loss() -> Tensor:
        averaged.update_parameters(estimator.network)
        gone = min(1.0, clock.share())
        return loss(estimator.network, draws.draw(next(numbers), large=first + (last - first) * gone))

    optimizer = torch.optim.Adam(estimator.network.parameters(), _RATE)
    steps = descend(optimizer, layers_loss, clock, "layers", until=1.0, longest_gradient=1.0)
    estimator.network.load_state_dict(averaged.module.state_dict())
    set_doubt(estimator, [draws.draw(next(numbers), large=0.3) for _ in range(_DOUBT_BATCHES)])
    estimator.for_problem(problem).eval()
    trained_on: list[Json] = ["clusters", *_ENVIRONMENTS]
    facts: dict[str, Json] = {"steps": steps, "batch_size": _BATCH, "rate": _RATE, "trained_on": trained_on}
    return {**facts, **estimator.validation(problem, plan, _VALIDATED)}


def tune_universal(estimator: "Universal", drawn: Callable[[int], Drawn], plan: Fit) -> dict[str, Json]:
    """Go on from the weights that there are, on the channels of one site, then set the doubt for it.

    drawn: batch `number`, of at least one and at most a few dozen samples.
    """
    clock, numbers = Clock(plan), iter(range(2**30))

    def layers_loss() -> Tensor:
        return loss(estimator.network, drawn(next(numbers)))

    optimizer = torch.optim.Adam(estimator.network.parameters(), _TUNING_RATE)
    steps = descend(optimizer, layers_loss, clock, "layers", until=1.0, longest_gradient=1.0)
    set_doubt(estimator, [drawn(next(numbers)) for _ in range(_TUNED_DOUBT_BATCHES)])
    estimator.eval()
    return {"steps": steps, "batch_size": TUNED_BATCH, "rate": _TUNING_RATE}


def tune_from_pilots(estimator: "Universal", recordings: Recordings, plan: Fit) -> dict[str, Json]:
    """Learn what channels the site has from its recordings, then tune the layers to channels like that."""
    site = learn_site(recordings, _SITE_CLASSES, plan.part(_SITE))
    pool = SiteDraws(site, _FROM_SITE, plan.seed)

    def drawn(number: int) -> Drawn:
        _, signal, measured = pool.pairs(TUNED_BATCH, seed=plan.seed, number=number)
        return Drawn(signal, measured, recordings.rx, recordings.tx)

    rest = replace(plan.telling(_SITE, 1.0), seconds=(1.0 - _SITE) * plan.seconds)
    facts = {**site.facts, **tune_universal(estimator, drawn, rest)}

    def evidence(measured: Measurement) -> Tensor:
        found = estimator.infer(measured).log_evidence
        assert found is not None
        return found

    return {**facts, **validated(recordings, evidence, plan, _RECORDINGS_VALIDATED)}


@torch.no_grad()
def set_doubt(estimator: "Universal", batches: list[Drawn]) -> None:
    """Let the variances be right, by the mean of logarithms, where a model has the word.

    The mean of the ratios themselves would be that of the few samples that fail.
    """
    ratios: tuple[list[Tensor], list[Tensor]] = ([], [])
    for drawn in batches:
        estimator.rx, estimator.tx = drawn.rx, drawn.tx
        answer = estimator.answer(drawn.measured)
        signal, grid, paths = drawn.signal / answer.unit[:, None], answer.grid, answer.paths
        alone = torch.ones(len(signal), dtype=torch.bool)
        if paths is not None:
            used = paths.weight > 0.5
            alone[paths.some[used]] = False
            wrong = squared_modulus(paths.looks[-1].posterior.mean - signal[paths.some]).mean(1)
            ratios[1].append((wrong / estimator.path_variance(answer, paths).mean(1).clamp_min(1e-30))[used])
        wrong = squared_modulus(grid.posterior.mean - signal).mean(1)
        ratios[0].append((wrong / estimator.grid_variance(answer).mean(1).clamp_min(1e-30))[alone])
    for place, values in enumerate(map(torch.cat, ratios)):
        if len(values):
            held = values.clamp(1.0 / _LARGEST_RATIO, _LARGEST_RATIO)
            estimator.doubt[place] = held.log().mean().exp().clamp_min(1.0)


def loss(network: UniversalNetwork, drawn: Drawn) -> Tensor:
    """Mean over samples of the logarithm of the NMSE of the answer, and with smaller weights of what led to it.

    Of channels of one kind it is the logarithm of the mean NMSE of those with nearly the same SNR: weak estimates count as they
    do in a table. Among channels of many kinds these would be all that counts.
    """
    measured, unit = scaled(drawn.measured)
    signal = drawn.signal / unit[:, None]

    level_db = -10 * drawn.measured.noise_var.log10()
    near = torch.softmax(-0.5 * ((level_db[:, None] - level_db) / _NEAR_DB).square(), 1)

    def error(mean: Tensor, truth: Tensor = signal, near: Tensor = near) -> Tensor:
        wrong = squared_modulus(mean - truth).sum(1) / squared_modulus(truth).sum(1)
        wrong = near @ wrong if drawn.one_kind else wrong
        return torch.log(wrong + _LEAST_ERROR).mean()

    looks, paths = network(measured, drawn.rx, drawn.tx)
    answer = Answer(measured, unit, looks[-1], paths)
    total = error(answer.mean) + _GRID * error(looks[-1].posterior.mean)
    total = total + _EARLY * sum((error(look.posterior.mean) for look in looks[:-1]), total.new_zeros(()))
    if paths is not None:
        share = len(paths.some) / len(signal)
        own = torch.eye(len(paths.some))
        of_paths = [error(look.posterior.mean, signal[paths.some], own) for look in paths.looks[1:]]
        total = total + _EARLY * share * sum(of_paths, total.new_zeros(()))
    return total


def _uniform(generator: torch.Generator) -> float:
    return float(torch.rand((), generator=generator))
