"""Delay SBL: sparse Bayesian learning over delays, with which all pilot symbols and antennas of a user are one look at them.

The covariance of the ensemble knows that there are delays up to some microseconds; a user has a few of them. Here h of each
transmit port has R = R_t ⊗ D diag(γ) Dᴴ ⊗ R_r: D is a grid of delays finer than the bandwidth tells apart, R_t and R_r are
those of the ensemble, and γ raises the evidence of y, from the mean profile of delays. Ports are estimated by themselves, as
pilots of several users are.
"""

import math
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor, nn

from chanest.bases.estimator import SNRS_DB, GaussianEstimator, validation_draws
from chanest.covariances.delays import DelayCovariance
from chanest.fit import Fit
from chanest.problem import ChannelProblem
from vlista_core.estimate import Estimate, Measurement
from vlista_core.gaussian import condition
from vlista_core.linops import LinearMap
from vlista_core.prox import squared_modulus
from vlista_core.tensorfile import Json

_OVERSAMPLING, _MARGIN = 2, 2
"""Delays of the grid per resolvable delay, and how many more at either end than channels show."""
_OUTSIDE, _LEAST = 1e-5, 1e-2
"""Share of power that may lie beyond the grid; least power of a delay before y, in units of the mean."""
_STEPS = (2, 4, 6, 9)
_FEWEST, _BLOCK = 64, 16
_TRAINED_ENTRIES, _BLOCK_ENTRIES, _SCORED_ENTRIES = 2**27, 2**23, 2**23
"""Numbers in all training channels, in those worked with at once, and in those of validation at each SNR."""
_LONGEST = 4096
"""Entries of h up to which pilots that ports share are taken, with all of C formed."""


class DelaySBL(GaussianEstimator):
    """ĥ = E[h | y] with the powers of delays that y shows."""

    name = "delay-sbl"
    summary = "ours: sparse Bayesian learning over the delays of each user, for pilots that tell ports apart"
    needs_fit = True
    slots = True

    def __init__(
        self, *, snapshots: int, subcarriers: int, ports: int, antennas: int, delays: int, steps: int = _STEPS[0]
    ) -> None:
        """ports: transmit antennas of all users; antennas: N_r; delays: G; steps: of the fixed point for γ."""
        super().__init__(snapshots * subcarriers * ports * antennas)
        self.subcarriers, self.ports, self.steps = subcarriers, ports, steps
        self.time: Tensor = nn.Buffer(torch.eye(snapshots, dtype=torch.complex64))
        self.space: Tensor = nn.Buffer(torch.eye(antennas, dtype=torch.complex64))
        self.positions: Tensor = nn.Buffer(torch.zeros(delays))
        self.profile: Tensor = nn.Buffer(torch.full((delays,), 1 / max(delays, 1)))

    @classmethod
    def build(cls, problem: ChannelProblem) -> Self:
        antennas = problem.arrays[0].ports
        ports = problem.signal_length // (problem.snapshots * problem.subcarriers * antennas)
        sizes = {"snapshots": problem.snapshots, "subcarriers": problem.subcarriers, "ports": ports}
        return cls(**sizes, antennas=antennas, delays=1)

    def chunk(self, measured: Measurement) -> int:
        return max(1, _BLOCK_ENTRIES // self.signal_length)

    def spread_chunk(self, measured: Measurement) -> int:
        return self.chunk(measured)

    def ensemble(self) -> DelayCovariance:
        """R before y, with the mean powers of the delays."""
        numbers = torch.arange(self.subcarriers, dtype=torch.float64, device=self.positions.device)
        phases = -2 * math.pi / self.subcarriers * numbers[:, None] * self.positions.double()
        delays = torch.polar(torch.ones_like(phases), phases).to(self.time.dtype)
        profile = self.profile.expand(1, self.ports, -1)
        return DelayCovariance(self.time[None], delays[None], profile, self.space[None])

    def prior(self, measured: Measurement) -> DelayCovariance:
        """R of these samples."""
        ensemble = self.ensemble().cast(measured.y.dtype)
        adapted = ensemble.adapted(measured, self.steps)
        if adapted is not None:
            return adapted
        if self.signal_length > _LONGEST:
            raise ValueError(
                f"{self.name} is for pilots that no two ports share and that no beams carry, where a channel has more than "
                f"{_LONGEST} entries; this one has {self.signal_length}, for which there is slot-lmmse"
            )
        return ensemble

    def infer(self, measured: Measurement) -> Estimate:
        """`code` is √γ, from which `spread` goes on."""
        prior = self.prior(measured)
        powers = prior.powers.expand(len(measured.y), -1, -1)
        return Estimate(condition(prior, measured).mean, code=powers.flatten(1).sqrt().to(measured.y.dtype))

    def spread(self, measured: Measurement, found: Estimate, probes: LinearMap | None) -> Tensor:
        assert found.code is not None
        powers = squared_modulus(found.code).unflatten(1, (self.ports, -1))
        prior = replace(self.ensemble().cast(measured.y.dtype), powers=powers)
        return condition(prior, measured, probes).variance

    def fit(self, problem: ChannelProblem, plan: Fit) -> dict[str, Json]:
        """R_t, R_r, the delays and their mean powers from training channels, the number of steps from validation draws."""
        count = min(problem.scenario.data.train, max(_FEWEST, _TRAINED_ENTRIES // problem.signal_length))
        if plan.steps is not None:
            count = min(count, plan.steps * _FEWEST)
        self._learn(problem, plan, count)
        scored = max(8, min(200, _SCORED_ENTRIES // problem.signal_length))
        draws = validation_draws(problem, plan, scored)
        tried: dict[int, float] = {}
        for steps in _STEPS:
            self.steps = steps
            tried[steps] = sum(self.nmse_db(batch) for batch in draws) / len(draws)
        self.steps = min(tried, key=lambda each: tried[each])
        self.reconfigure(delays=len(self.positions), steps=self.steps)
        told: dict[str, Json] = {"delays": len(self.positions), "steps": self.steps, "slots": count}
        return {**told, "validation_nmse_db": tried[self.steps], "snr_db": list(SNRS_DB)}

    def _learn(self, problem: ChannelProblem, plan: Fit, count: int) -> None:
        snapshots, antennas = problem.snapshots, self.space.shape[0]
        time = torch.zeros(snapshots, snapshots, dtype=torch.complex128)
        space = torch.zeros(antennas, antennas, dtype=torch.complex128)
        length = _OVERSAMPLING * self.subcarriers
        window = torch.hann_window(self.subcarriers + 2)[1:-1] if self.subcarriers > 1 else torch.ones(1)
        shown = torch.zeros(length, dtype=torch.float64)
        for block in plan.blocks(count, max(_BLOCK, _BLOCK_ENTRIES // problem.signal_length), "covariance"):
            h = problem.channels(len(block), seed=plan.seed, split="train", start=block.start)
            grid = h.reshape(len(block), snapshots, self.subcarriers, -1, antennas)
            along, across = grid.transpose(0, 1).flatten(1), grid.flatten(0, 3).mT
            time += along @ along.mH
            space += across @ across.mH
            first = grid[:, 0].flatten(2).movedim(1, 2) * window
            shown += torch.fft.ifft(first, length).abs().square().double().sum((0, 1))
        power = space.diagonal().real.mean() / (count * snapshots * self.subcarriers * self.ports)
        self.time = (time / time.diagonal().real.mean()).to(torch.complex64)
        self.space = (power * space / space.diagonal().real.mean()).to(torch.complex64)
        positions, profile = _support(shown)
        self.positions, self.profile = positions / _OVERSAMPLING, profile.float()


def _support(shown: Tensor) -> tuple[Tensor, Tensor]:
    """The shortest stretch of a circle of delays that holds all power but `_OUTSIDE`, and its margins: numbers and powers.

    shown: [length] -> [G] each; powers have the sum one.
    """
    length = len(shown)
    share = shown / shown.sum()
    sums = torch.cat([torch.zeros(1, dtype=share.dtype), share.repeat(2).cumsum(0)])
    for width in range(1, length + 1):
        held = sums[width : width + length] - sums[:length]
        if float(held.max()) >= 1 - _OUTSIDE:
            start = int(held.argmax())
            break
    first, last = start - _MARGIN * _OVERSAMPLING, start + width + _MARGIN * _OVERSAMPLING
    numbers = torch.arange(first, max(first + 1, min(last, first + length)))
    powers = share[numbers % length]
    powers = powers + _LEAST * powers.mean()
    turned = numbers - length * round(float(numbers.double().mean()) / length)
    return turned.float(), powers / powers.sum()
