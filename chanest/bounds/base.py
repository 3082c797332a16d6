"""What all bounds share: they are told the truth, so they take a whole ChannelBatch and are no estimators."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from chanest.channels.rays import Rays
from chanest.frontend import FrontEnd, whitened_measurement
from chanest.problem import ChannelBatch, ChannelProblem
from vlista_core.estimate import Estimate, Measurement
from vlista_core.gaussian import Covariance, condition

_CHUNK = 8


class Bound(ABC):
    """A limit on what estimators of one problem can reach, from the truth behind the samples.

    It has no `estimate`, is not in the registry of estimators and carries its label into every table and legend.
    """

    name: ClassVar[str]
    """As in the registry of bounds and in result files."""
    label: ClassVar[str]
    """A few words for tables and legends."""
    summary: ClassVar[str]
    """One line: what is known, and what the bound is."""
    passable: ClassVar[bool] = False
    """Whether an estimator may do better on average: then tables call it a reference, and not a bound."""

    def __init__(self, problem: ChannelProblem) -> None:
        if not self.applies(problem):
            raise ValueError(f"the bound {self.name} does not apply to {problem.scenario.name}: {self.summary}")
        self.problem = problem

    @classmethod
    def word(cls) -> str:
        """What tables call it."""
        return "reference" if cls.passable else "bound"

    @classmethod
    @abstractmethod
    def applies(cls, problem: ChannelProblem) -> bool:
        """Whether the bound holds for the channels of `problem` and can be computed."""

    @abstractmethod
    def bound(self, batch: ChannelBatch) -> Estimate:
        """The signal that an estimator with the knowledge of the bound would give."""

    def errors(self, batch: ChannelBatch) -> Tensor:
        """The bound on ‖ĥ - h‖² of every sample: [batch], float64."""
        return (self.bound(batch).signal - batch.signal).abs().square().sum(1, dtype=torch.float64)

    def nmse_db(self, batch: ChannelBatch) -> float:
        """The bound on the NMSE of `batch`, ratio of sums, in dB."""
        power = batch.signal.abs().square().sum(dtype=torch.float64)
        return float(10.0 * torch.log10(self.errors(batch).sum() / power))


@dataclass(frozen=True)
class Truth:
    """A few samples with what is behind them, in double precision and with white noise."""

    index: Tensor
    """Which of the batch they are: [batch]."""
    signal: Tensor
    """vec(H): [batch, n], complex128."""
    measured: Measurement
    """What was measured of it."""
    known: Rays | None
    """None where nobody knows the rays."""

    @property
    def rays(self) -> Rays:
        """What is behind the channels; ValueError where nobody knows."""
        if self.known is None:
            raise ValueError(
                "batch must come with the rays behind its channels, as from ChannelProblem.sample, got None"
            )
        return self.known


def chunks(batch: ChannelBatch, problem: ChannelProblem) -> Iterator[Truth]:
    """The samples of `batch`, a few at a time; ValueError where they are none of `problem`."""
    if batch.signal.shape[1] != problem.signal_length:
        raise ValueError(
            f"batch must hold channels of {problem.scenario.name}, {problem.signal_length} entries each, "
            f"got {batch.signal.shape[1]}"
        )
    if not isinstance(batch.phi, FrontEnd):
        raise ValueError(f"batch.phi must be a FrontEnd, got {type(batch.phi).__name__}")
    for index in torch.split(torch.arange(len(batch)), _CHUNK):
        phi, y = batch.phi.select(index).cast(torch.complex128), batch.y[index].to(torch.complex128)
        white = whitened_measurement(Measurement(y, phi, batch.noise_var[index].double()))
        known = None if batch.rays is None else batch.rays.select(index)
        yield Truth(index, batch.signal[index].to(torch.complex128), white, known)


class Genie(Bound):
    """An LMMSE filter with a covariance that a helper gives."""

    def bound(self, batch: ChannelBatch) -> Estimate:
        parts = [condition(self.prior(truth.rays), truth.measured).mean for truth in chunks(batch, self.problem)]
        return Estimate(torch.cat(parts).to(batch.signal.dtype))

    @abstractmethod
    def prior(self, rays: Rays) -> Covariance:
        """R of the channels with these rays, as the helper knows it."""
