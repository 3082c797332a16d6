"""What a base station has recorded: y, Φ and σ² of slots that were sent, and no channel.

`fit_from_pilots` of an estimator gets this in place of a problem, so that it cannot see the truth: no attribute holds it.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from chanest.arrays import Array
from chanest.frontend import BeamformingMap
from chanest.problem import ChannelProblem
from vlista_core.draws import Split
from vlista_core.estimate import Measurement
from vlista_core.problems import check_count
from vlista_core.prox import squared_modulus

_SHARES = {"train": 0.8, "validation": 0.1, "test": 0.1}
"""Of recordings of your own, in their order."""
_FEWEST = 10


class Recordings(ABC):
    """Measurements of one site: y = Φh + n with beams that change from one to the next, h unknown for good."""

    rx: Array
    tx: Array

    @abstractmethod
    def available(self, split: Split) -> int:
        """How many different ones a split has."""

    @abstractmethod
    def measured(self, count: int, *, seed: int, split: Split, start: int = 0) -> Measurement:
        """Recordings start … start + count - 1 of a split."""

    @property
    def signal_length(self) -> int:
        """n."""
        return self.rx.ports * self.tx.ports


class ScenarioRecordings(Recordings):
    """What a scenario would record: its draws without their channels and rays, at SNRs of its range."""

    def __init__(self, problem: ChannelProblem) -> None:
        self.rx, self.tx = problem.arrays
        sizes = problem.scenario.data
        self._available = {"train": sizes.train, "validation": sizes.validation, "test": sizes.test}

        def measured(count: int, seed: int, split: Split, start: int) -> Measurement:
            batch = problem.sample(count, seed=seed, split=split, start=start)
            return Measurement(batch.y, batch.phi, batch.noise_var)

        self._measured = measured

    def available(self, split: Split) -> int:
        return self._available[split]

    def measured(self, count: int, *, seed: int, split: Split, start: int = 0) -> Measurement:
        return self._measured(count, seed, split, start)


@dataclass(frozen=True)
class RecordedPilots(Recordings):
    """Recordings of your own; see `recorded_pilots`."""

    rx: Array
    tx: Array
    held: Measurement
    unit: float
    """What y was divided by, so that E|h|² = 1: divide what is to be estimated by it too, and σ² by its square."""

    def available(self, split: Split) -> int:
        first, last = self._range(split)
        return last - first

    def measured(self, count: int, *, seed: int, split: Split, start: int = 0) -> Measurement:
        """In their order, from the first again after the last; the seed changes nothing."""
        check_count("count", count)
        first, last = self._range(split)
        return self.held.select(first + torch.arange(start, start + count) % (last - first))

    def _range(self, split: Split) -> tuple[int, int]:
        every, shares = len(self.held.y), list(_SHARES)
        before = sum(_SHARES[each] for each in shares[: shares.index(split)])
        return round(before * every), round((before + _SHARES[split]) * every)


def recorded_pilots(problem: ChannelProblem, y: Tensor, beams: Tensor, noise_var: Tensor) -> RecordedPilots:
    """Recordings of your own between the arrays of a problem, of which nothing else is taken; for `train_estimator`.

    y: [N, T·N_r], what the receive antennas had of each of T pilots, pilot by pilot; beams: [N, N_t, T], complex, others in
    every recording or most; noise_var: σ² per antenna, [N]. They are scaled to E|h|² = 1.
    """
    rx, tx = problem.arrays
    phi = BeamformingMap.of(beams, antennas=rx.ports)
    Measurement.checked(y, phi, noise_var)
    if beams.shape[1] != tx.ports:
        raise ValueError(f"beams must have {tx.ports} rows, the antennas that send, got {beams.shape[1]}")
    if len(y) < _FEWEST:
        raise ValueError(f"y must have at least {_FEWEST} recordings, got {len(y)}")
    power = squared_modulus(y).double().sum() - y.shape[1] * noise_var.double().sum()
    gain = float(power / phi.squared_frobenius_norm().double().sum())
    if not gain > 0:
        raise ValueError(f"noise_var must be below the mean power of y, got {float(noise_var.mean()):g} in the mean")
    scaled = Measurement(y / gain**0.5, phi, noise_var / gain)
    return RecordedPilots(rx, tx, scaled, gain**0.5)
