"""SBL over the rays of a site: sparse Bayesian learning that starts from what training channels are made of.

Where the arrays do not turn, the directions of the rays are the same for all channels, and what changes is which direction
of departure meets which of arrival. So h = Σ x_ij a_t,i ⊗ a_r,j over the pairs (i, j) that occur, x_ij ~ CN(0, γ_ij), and γ
starts at the mean power of each pair in the training channels: the first estimate is the LMMSE estimate. Then γ follows y.

y ~ CN(0, C) with C = ΦRΦᴴ + σ²I and R = Σ γ_ij (a_t,i a_t,iᴴ) ⊗ (a_r,j a_r,jᴴ), a table of lags. With v = ΦᴴC⁻¹y,
q_ij = |(a_t,i ⊗ a_r,j)ᴴv|² and s_ij = E q_ij, a step of EM is γ ← γ(1 + γ(q - s)). A longer one, γ(1 + κγ(q - s)), has the same
fixed points and needs a few only. κ goes to zero with the SNR: where the noise is high one y says little of γ.
"""

from typing import Self

import torch
from torch import Tensor, nn

from chanest.arrays import Array
from chanest.bases.estimator import GaussianEstimator
from chanest.covariances.directions import DirectionCovariance, Directions, distinct, ray_phases
from chanest.covariances.lag_layout import LagLayout
from chanest.covariances.lags import BeamView, LagCovariance
from chanest.fit import Fit
from chanest.problem import ChannelProblem
from vlista_core.estimate import Measurement
from vlista_core.gaussian import condition
from vlista_core.tensorfile import Json

MOST_DIRECTIONS = 512
"""At each end; where training channels have more, their k-means are taken."""
ITERATIONS = 4
LONGEST_STEP, NOISE_OF_HALF = 5.0, 0.02
"""κ = 5 / (1 + σ²/0.02), with σ² relative to E|h|² = 1."""
_LARGEST_CHANGE = 3.0
_BLOCK = 500
_MOST_SAMPLES, _SAMPLES_PER_SECOND = 10_000, 50
_CHUNK_ENTRIES = 2**22
_FLOOR = 1e-7
_SNRS_DB, _SCORED = (0.0, 10.0, 20.0, 30.0), 32


class RaySBL(GaussianEstimator):
    """A variance for every pair of directions that training channels have rays in, adapted to y by accelerated EM."""

    name = "ray-sbl"
    summary = "SBL over the pairs of directions that rays of training channels have, from their mean powers"
    needs_fit = True
    learns_from_rays = True
    narrowband = True
    one_polarisation = True

    def __init__(self, rx: Array, tx: Array, *, arrivals: int = 1, departures: int = 1) -> None:
        """arrivals, departures: directions at the receiver and at the transmitter."""
        super().__init__(rx.ports * tx.ports)
        self.layout = LagLayout(rx, tx)
        self.arriving: Tensor = nn.Buffer(torch.zeros(arrivals, 2))
        self.departing: Tensor = nn.Buffer(torch.zeros(departures, 2))
        self.powers: Tensor = nn.Buffer(torch.zeros(departures, arrivals))

    @classmethod
    def build(cls, problem: ChannelProblem) -> Self:
        return cls(*problem.arrays)

    @property
    def directions(self) -> Directions:
        """The dictionary: all pairs of directions."""
        return Directions.of(self.departing, self.arriving, self.layout)

    def chunk(self, measured: Measurement) -> int:
        return max(1, _CHUNK_ENTRIES // (measured.phi.shape[0] ** 2 + self.powers.numel()))

    def prior(self, measured: Measurement) -> LagCovariance:
        """R with the γ that y asks for."""
        view, directions = BeamView(self.layout, measured.phi), self.directions
        variances = self.powers.flatten().expand(len(measured.y), -1)
        length = (LONGEST_STEP / (1 + measured.noise_var / NOISE_OF_HALF))[:, None]
        for _ in range(ITERATIONS):
            step = condition(self.covariance(variances, directions, view), measured)
            found = directions.adjoint(step.gradient).abs().square()
            expected = directions.sums(view.pulled_back(step.precision))
            change = 1 + length * variances * (found - expected)
            variances = variances * change.clamp(1 / _LARGEST_CHANGE, _LARGEST_CHANGE)
        return self.covariance(variances, directions, view)

    def covariance(self, variances: Tensor, directions: Directions, view: BeamView | None = None) -> LagCovariance:
        """R of each sample. variances: γ, [batch, departures·arrivals]."""
        table = DirectionCovariance(variances, directions).as_lags.table
        table[:, 0, table.shape[2] // 2] += _FLOOR
        return LagCovariance(table, self.layout, view)

    def fit(self, problem: ChannelProblem, plan: Fit) -> dict[str, Json]:
        """Directions and powers from the rays of training channels."""
        samples = max(_BLOCK, min(_MOST_SAMPLES, int(_SAMPLES_PER_SECOND * plan.size)))
        parts = []
        for block in plan.telling(0.0, 0.8).blocks(samples, _BLOCK, "rays"):
            factors = problem.source.factors(problem.rays(block, seed=plan.seed, split="train"))
            power = factors.gains.abs().square().sum((1, 2)).flatten() * problem.source.scale**2
            parts.append((*ray_phases(factors, self.layout), power))
        departing, arriving, powers = (torch.cat(each) for each in zip(*parts, strict=True))
        self.arriving, which_arrival = distinct(arriving, MOST_DIRECTIONS, plan.seed)
        self.departing, which_departure = distinct(departing, MOST_DIRECTIONS, plan.seed)
        pair = which_departure * len(self.arriving) + which_arrival
        total = torch.zeros(len(self.departing) * len(self.arriving), dtype=torch.float64)
        total.index_add_(0, pair, powers.double())
        self.powers = (total / samples).float().reshape(len(self.departing), len(self.arriving))
        self.reconfigure(arrivals=len(self.arriving), departures=len(self.departing))
        scores = self.validation(problem, plan, _SCORED, _SNRS_DB)
        plan.report(1.0, "validation")
        return {"samples": samples, "pairs": int((self.powers > 0).sum()), **scores}
