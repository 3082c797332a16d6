"""A-DLISTA on channels: step and shrinkage adapt to the measurement atom by atom, not by one number a layer.

h = Ψx with an atom for every pair of a direction of departure and one of arrival, the directions learned. A layer steps along
the gradient of the whitened residual, x = η_θ(p ∘ (ΦΨ)ᴴC⁻¹y) with C = ΦΨ diag(p) (ΦΨ)ᴴ + σ²I and the soft threshold η_θ: the
powers p of the atoms are their steps and what they are shrunk by, and with the right p one layer is enough. The first layer has
the mean powers of training channels and only looks; an augmentation network sees (ΦΨ)ᴴy and (ΦΨ)ᴴC⁻¹y and gives the powers of
the last. ΦΨ is not formed.

`a-dlista-scalar` has the paper's augmentation, one step and one threshold a layer. How this one learns: `adlista_fit`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, cast

import torch
from torch import Tensor, nn

from chanest.arrays import Array
from chanest.estimators.adlista_fit import fit_adlista
from chanest.estimators.base import ChannelEstimator, Fit, array_configuration, array_from
from chanest.estimators.covariance_step import factorised
from chanest.estimators.directions import Directions, SeenDirections
from chanest.estimators.powers import PowerAugmentation
from chanest.estimators.spread import gaussian
from chanest.estimators.toeplitz import LagTable
from chanest.scenario import CdlSection
from vlista_core.checkpoint import register_model
from vlista_core.estimate import Estimate, Measurement
from vlista_core.linops import LinearMap
from vlista_core.prox import soft_threshold, squared_modulus
from vlista_core.tensorfile import Json

if TYPE_CHECKING:
    from chanest.problem import ChannelProblem

_FEWEST_DIRECTIONS, _MOST_DIRECTIONS = 16, 96
"""At an end; twice as many as elements in between. Channels of several models come from more places: half as many again, up
to twice the most."""
_PROFILES, _HIDDEN = 192, 144
_PROFILES_LARGE, _LARGE = 80, 512
_CHUNK_ENTRIES = 2**21


@register_model
class ADLISTAEstimator(ChannelEstimator):
    """One layer to look and one to answer; the powers of all atoms come from what the first one sees."""

    name = "a-dlista"
    summary = "A-DLISTA: step and shrinkage adapt to each measurement, for every atom of a learned dictionary"
    needs_fit = True
    half_precision = True

    def __init__(
        self,
        rx: Array,
        tx: Array,
        *,
        departures: int,
        arrivals: int,
        profiles: int = _PROFILES,
        hidden: int = _HIDDEN,
    ) -> None:
        """departures, arrivals: directions at the transmitter and the receiver; profiles, hidden: of the augmentation."""
        super().__init__(rx.ports * tx.ports)
        self.layout = LagTable(rx, tx)
        self.sizes = {"departures": departures, "arrivals": arrivals, "profiles": profiles, "hidden": hidden}
        self.departing = nn.Parameter(torch.zeros(departures, 2))
        self.arriving = nn.Parameter(torch.zeros(arrivals, 2))
        self.mean_powers = nn.Parameter(torch.zeros(departures * arrivals))
        """Logarithms."""
        self.misfit = nn.Parameter(torch.tensor(-7.0))
        """Logarithm of what no atom holds, which counts as noise: E|h|² is one."""
        self.threshold = nn.Parameter(torch.tensor(-4.6))
        """Logarithm of θ in units of the root mean square of the sample's code."""
        generator = torch.Generator().manual_seed(0)
        self.augmentation = PowerAugmentation(departures * arrivals, profiles, hidden, generator)

    @classmethod
    def build(cls, problem: ChannelProblem) -> Self:
        if problem.subcarriers > 1:
            raise ValueError(
                f"{cls.name} is for one subcarrier so far; {problem.scenario.name} has {problem.subcarriers}: "
                "a-dlista-scalar takes any number"
            )
        rx, tx = problem.arrays
        channel = problem.scenario.channel
        mixed = isinstance(channel, CdlSection) and len(channel.models) > 1
        each, most = (3, 2 * _MOST_DIRECTIONS) if mixed else (2, _MOST_DIRECTIONS)
        arrivals, departures = (min(most, max(_FEWEST_DIRECTIONS, each * array.elements)) for array in (rx, tx))
        profiles = _PROFILES if problem.signal_length <= _LARGE else _PROFILES_LARGE
        return cls(rx, tx, departures=departures, arrivals=arrivals, profiles=profiles)

    @property
    def directions(self) -> Directions:
        """Ψ."""
        return Directions(self.layout, self.departing, self.arriving)

    def chunk(self, measured: Measurement) -> int:
        """So few that what they need stays near the processor."""
        return max(1, _CHUNK_ENTRIES // (measured.phi.shape[0] * self.signal_length))

    def infer(self, measured: Measurement) -> Estimate:
        noisy, seen = self.with_misfit(measured), SeenDirections(self.directions, measured.phi)
        powers = self.powers(noisy, *self.look(noisy, seen))
        _, whitened = factorised(noisy, seen.covariance(powers))
        code = self.code(powers, measured.phi.adjoint(whitened))
        return Estimate(self.directions.apply(code), code.flatten(1))

    def code(self, powers: Tensor, pulled: Tensor) -> Tensor:
        """x = η_θ(p ∘ Ψᴴv). powers: [batch, departures, arrivals], pulled: v = ΦᴴC⁻¹y, [batch, n] -> as the powers."""
        moved = powers * self.directions.adjoint(pulled)
        power = squared_modulus(moved).mean((1, 2), keepdim=True)
        return soft_threshold(moved, self.threshold.exp() * torch.sqrt(power + torch.finfo(power.dtype).tiny))

    def spread(self, measured: Measurement, found: Estimate, probes: LinearMap | None) -> Tensor:
        noisy = self.with_misfit(measured)
        powers = self.powers(noisy, *self.look(noisy, SeenDirections(self.directions, measured.phi)))
        return gaussian(self.layout.matrix(self.directions.table(powers)), noisy, probes)[1]

    def with_misfit(self, measured: Measurement) -> Measurement:
        """The measurement with what no atom holds added to its noise."""
        return Measurement(measured.y, measured.phi, measured.noise_var + self.misfit.exp())

    def look(self, measured: Measurement, seen: SeenDirections) -> tuple[Tensor, Tensor]:
        """The first layer: powers of (ΦΨ)ᴴy and of (ΦΨ)ᴴC⁻¹y with the mean powers of training channels. [batch, atoms] each."""
        mean = self.mean_powers.exp().reshape(1, len(self.departing), -1)
        _, whitened = factorised(measured, seen.covariance(mean))
        pulled = torch.cat([measured.phi.adjoint(values) for values in (measured.y, whitened)])
        raw, white = squared_modulus(self.directions.adjoint(pulled)).flatten(1).chunk(2)
        return raw, white

    def powers(self, measured: Measurement, raw: Tensor, white: Tensor) -> Tensor:
        """p of the last layer from what the first one saw: [batch, departures, arrivals]."""
        found: Tensor = self.augmentation([raw, white], self.scalars(measured))
        return found.reshape(len(found), len(self.departing), -1)

    def scalars(self, measured: Measurement) -> list[Tensor]:
        """What the augmentation sees of the sample besides: noise and power of y, [batch] each."""
        return [measured.noise_var, squared_modulus(measured.y).mean(1)]

    def configuration(self) -> dict[str, Json]:
        rx, tx = (array_configuration(array) for array in (self.layout.rx, self.layout.tx))
        return {"signal_length": self.signal_length, "rx": rx, "tx": tx, **self.sizes}

    @classmethod
    def from_configuration(cls, configuration: dict[str, Json]) -> Self:
        rx, tx = (array_from(configuration[end]) for end in ("rx", "tx"))
        sizes = {name: cast(int, configuration[name]) for name in ("departures", "arrivals", "profiles", "hidden")}
        return cls(rx, tx, **sizes)

    def fit(self, problem: ChannelProblem, plan: Fit) -> dict[str, Json]:
        """Directions and profiles from the rays of training channels, then the augmentation, then all of it together."""
        return fit_adlista(self, problem, plan)
