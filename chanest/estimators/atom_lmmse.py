"""Atom LMMSE, ours: built on the paper's idea that what adapts should adapt to the measurement, here the power of every atom.

h = Ψx with an atom for every pair of a direction of departure and one of arrival, the directions learned. A layer steps along
the gradient of the whitened residual, x = η_θ(p ∘ (ΦΨ)ᴴC⁻¹y) with C = ΦΨ diag(p) (ΦΨ)ᴴ + σ²I and the soft threshold η_θ: the
powers p of the atoms are their steps and what they are shrunk by, and with the right p one layer is enough. The first layer has
the mean powers of training channels and only looks; a network sees (ΦΨ)ᴴy and (ΦΨ)ᴴC⁻¹y and gives the powers of the last. ΦΨ is
not formed. How it learns: `chanest.networks.powers`.
"""

from typing import Self

import torch
from torch import Tensor, nn

from chanest.arrays import Array
from chanest.bases.guard import Guarded
from chanest.covariances.directions import DirectionCovariance, Directions, SeenDirections
from chanest.covariances.lag_layout import LagLayout
from chanest.fit import Fit
from chanest.networks.powers import PowerNetwork, fit_powers
from chanest.problem import ChannelProblem
from chanest.scenario import CdlSection
from vlista_core.estimate import Estimate, Measurement
from vlista_core.gaussian import condition
from vlista_core.linops import LinearMap
from vlista_core.prox import soft_threshold, squared_modulus
from vlista_core.tensorfile import Json

_FEWEST_DIRECTIONS, _MOST_DIRECTIONS = 16, 96
"""At an end; twice as many as elements in between. Channels of several models come from more places: half as many again, up
to twice the most."""
_PROFILES, _HIDDEN = 192, 144
_PROFILES_LARGE, _LARGE = 80, 512
_CHUNK_ENTRIES = 2**21


class AtomLMMSE(Guarded):
    """One layer to look and one to answer; the powers of all atoms come from what the first one sees."""

    name = "atom-lmmse"
    summary = "ours: the power of every atom of a learned dictionary adapts to the measurement; each step is exact"
    exported_as = ("pt2",)
    needs_fit = True
    learns_from_rays = True
    half_precision = True
    narrowband = True
    mode_by_mode = True
    one_polarisation = True

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
        """departures, arrivals: directions at the transmitter and the receiver; profiles, hidden: of the network."""
        super().__init__(rx.ports * tx.ports)
        self.layout = LagLayout(rx, tx)
        self.departing = nn.Parameter(torch.zeros(departures, 2))
        self.arriving = nn.Parameter(torch.zeros(arrivals, 2))
        self.mean_powers = nn.Parameter(torch.zeros(departures * arrivals))
        """Logarithms."""
        self.misfit = nn.Parameter(torch.tensor(-7.0))
        """Logarithm of what no atom holds, which counts as noise: E|h|² is one."""
        self.threshold = nn.Parameter(torch.tensor(-4.6))
        """Logarithm of θ in units of the root mean square of the sample's code."""
        generator = torch.Generator().manual_seed(0)
        self.network = PowerNetwork(departures * arrivals, profiles, hidden, generator)

    @classmethod
    def build(cls, problem: ChannelProblem) -> Self:
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
        return Directions.of(self.departing, self.arriving, self.layout)

    def chunk(self, measured: Measurement) -> int:
        """Small enough to stay in cache."""
        return max(1, _CHUNK_ENTRIES // (measured.phi.shape[0] * self.signal_length))

    def infer(self, measured: Measurement) -> Estimate:
        prior, noisy = self.adapted(measured)
        own = condition(prior, noisy)
        code = self.code(prior, own.gradient)
        return self.weighed(measured, own, Estimate(prior.directions.apply(code), code))

    def spread(self, measured: Measurement, found: Estimate, probes: LinearMap | None) -> Tensor:
        prior, noisy = self.adapted(measured)
        through = condition(prior, noisy, probes)
        return self.spread_weighed(measured, through, probes)

    def adapted(self, measured: Measurement) -> tuple[DirectionCovariance, Measurement]:
        """R with the powers that the network gives, and the measurement with the misfit in its noise."""
        noisy, view = self.with_misfit(measured), SeenDirections(self.directions, measured.phi)
        powers = self.powers(noisy, *self.look(noisy, view))
        return DirectionCovariance(powers, view.directions, view), noisy

    def code(self, prior: DirectionCovariance, pulled: Tensor) -> Tensor:
        """x = η_θ(p ∘ Ψᴴv). prior: Ψ with powers p, pulled: v = ΦᴴC⁻¹y, [batch, n] -> [batch, atoms]."""
        moved = prior.powers * prior.directions.adjoint(pulled)
        power = squared_modulus(moved).mean(1, keepdim=True)
        return soft_threshold(moved, self.threshold.exp() * torch.sqrt(power + torch.finfo(power.dtype).tiny))

    def with_misfit(self, measured: Measurement) -> Measurement:
        """The measurement with what no atom holds added to its noise."""
        return Measurement(measured.y, measured.phi, measured.noise_var + self.misfit.exp())

    def look(self, measured: Measurement, view: SeenDirections) -> tuple[Tensor, Tensor]:
        """The first layer: powers of (ΦΨ)ᴴy and of (ΦΨ)ᴴC⁻¹y with the mean powers of training channels. [batch, atoms] each."""
        mean = DirectionCovariance(self.mean_powers.exp()[None], view.directions, view)
        first = condition(mean, measured)
        pulled = torch.cat([measured.phi.adjoint(measured.y), first.gradient])
        raw, white = squared_modulus(view.directions.adjoint(pulled)).unflatten(0, (2, -1))
        return raw, white

    def powers(self, measured: Measurement, raw: Tensor, white: Tensor) -> Tensor:
        """p of the last layer from what the first one saw: [batch, atoms]."""
        found: Tensor = self.network([raw, white], self.scalars(measured))
        return found

    def scalars(self, measured: Measurement) -> list[Tensor]:
        """What the network sees of the sample besides: noise and power of y, [batch] each."""
        return [measured.noise_var, squared_modulus(measured.y).mean(1)]

    def fit(self, problem: ChannelProblem, plan: Fit) -> dict[str, Json]:
        """Directions and profiles from the rays of training channels, then the network, then all of it together."""
        return fit_powers(self, problem, plan)
