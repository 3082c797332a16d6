"""SBL over the rays of a site: sparse Bayesian learning that starts from what training channels are made of.

Where the arrays do not turn, the directions of the rays are the same for all channels, and what changes is which direction
of departure meets which of arrival. So h = Σ x_ij a_t,i ⊗ a_r,j over the pairs (i, j) that occur, x_ij ~ CN(0, γ_ij), and γ
starts at the mean power of each pair in the training channels: the first estimate is the LMMSE estimate. Then γ follows y.

y ~ CN(0, C) with C = ΦRΦᴴ + σ²I and R = Σ γ_ij (a_t,i a_t,iᴴ) ⊗ (a_r,j a_r,jᴴ), a table of lags. With v = ΦᴴC⁻¹y,
q_ij = |(a_t,i ⊗ a_r,j)ᴴv|² and s_ij = E q_ij, a step of EM is γ ← γ(1 + γ(q - s)). A longer one, γ(1 + κγ(q - s)), has the same
fixed points and needs a few only. κ goes to zero with the SNR: where the noise is high one y says little of γ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Self, cast

import torch
from torch import Tensor

from chanest.arrays import Array
from chanest.estimators.base import ChannelEstimator, Fit, array_configuration, array_from
from chanest.estimators.codebook import k_means
from chanest.estimators.linear import with_noise
from chanest.estimators.spread import gaussian
from chanest.estimators.toeplitz import LagTable, View
from vlista_core.checkpoint import register_model
from vlista_core.estimate import Estimate, Measurement
from vlista_core.linalg import cholesky
from vlista_core.linops import LinearMap
from vlista_core.metrics import nmse_db
from vlista_core.tensorfile import Json

if TYPE_CHECKING:
    from chanest.problem import ChannelProblem

MOST_DIRECTIONS = 512
"""At each end; where training channels have more, their k-means are taken."""
ITERATIONS = 4
LONGEST_STEP, NOISE_OF_HALF = 5.0, 0.02
"""κ = 5 / (1 + σ²/0.02), with σ² relative to E|h|² = 1."""
_LARGEST_CHANGE = 3.0
_SAME = 1e4
_BLOCK = 500
_MOST_SAMPLES, _SAMPLES_A_SECOND = 10_000, 50
_CHUNK_ENTRIES = 2**22
_FLOOR = 1e-7
_SNRS_DB, _SCORED = (0.0, 10.0, 20.0, 30.0), 32


class _Step(NamedTuple):
    """R's spectrum, the Cholesky factor of C, and v = ΦᴴC⁻¹y."""

    spectrum: Tensor
    factor: Tensor
    pulled: Tensor


@register_model
class RaySBL(ChannelEstimator):
    """A variance for every pair of directions that training channels have rays in, adapted to y by accelerated EM."""

    name = "ray-sbl"
    summary = "SBL over the pairs of directions that rays of training channels have, from their mean powers"
    needs_fit = True

    def __init__(self, rx: Array, tx: Array, *, arrivals: int = 1, departures: int = 1) -> None:
        """arrivals, departures: directions at the receiver and at the transmitter."""
        super().__init__(rx.ports * tx.ports)
        self.layout = LagTable(rx, tx)
        self.arriving: Tensor
        self.departing: Tensor
        self.powers: Tensor
        self.register_buffer("arriving", torch.zeros(arrivals, 2))
        self.register_buffer("departing", torch.zeros(departures, 2))
        self.register_buffer("powers", torch.zeros(departures, arrivals))

    @classmethod
    def build(cls, problem: ChannelProblem) -> Self:
        if problem.subcarriers > 1:
            raise ValueError(f"{cls.name} is for one subcarrier; {problem.scenario.name} has {problem.subcarriers}")
        return cls(*problem.arrays)

    def chunk(self, measured: Measurement) -> int:
        return max(1, _CHUNK_ENTRIES // (measured.phi.shape[0] ** 2 + self.powers.numel()))

    def infer(self, measured: Measurement) -> Estimate:
        view = View(self.layout, measured.phi)
        step = self._step(measured, view, self._variances(measured, view))
        return Estimate(self.layout.apply(step.spectrum, step.pulled))

    def spread(self, measured: Measurement, found: Estimate, probes: LinearMap | None) -> Tensor:
        variances = self._variances(measured, View(self.layout, measured.phi))
        return gaussian(self.layout.matrix(self._table(variances)), measured, probes)[1]

    def _variances(self, measured: Measurement, view: View) -> Tensor:
        """γ given y: [batch, departures, arrivals]."""
        variances = self.powers.expand(len(measured.y), -1, -1)
        length = (LONGEST_STEP / (1 + measured.noise_var / NOISE_OF_HALF))[:, None, None]
        for _ in range(ITERATIONS):
            step = self._step(measured, view, variances)
            change = 1 + length * variances * (self._found(step.pulled) - self._expected(view, step.factor))
            variances = variances * change.clamp(1 / _LARGEST_CHANGE, _LARGEST_CHANGE)
        return variances

    def _step(self, measured: Measurement, view: View, variances: Tensor) -> _Step:
        table = self._table(variances)
        spectrum = self.layout.spectrum(table)
        factor = cholesky(with_noise(view.seen(table, spectrum), measured.noise_var))
        whitened = torch.cholesky_solve(measured.y[..., None], factor)[..., 0]
        return _Step(spectrum, factor, measured.phi.adjoint(whitened))

    def _table(self, variances: Tensor) -> Tensor:
        """R of each sample as a table of lags: [batch, receive lags, transmit lags]."""
        across = variances.mT.to(torch.complex64) @ _ramps(self.departing, _transmit_lags(self.layout.tx))
        table = _ramps(self.arriving, self.layout.receive_lags).mT @ across
        table[:, 0, table.shape[2] // 2] += _FLOOR
        return table

    def _found(self, pulled: Tensor) -> Tensor:
        """q_ij = |(a_t,i ⊗ a_r,j)ᴴv|². pulled: v [batch, n] -> [batch, departures, arrivals]."""
        receive = _ramps(self.arriving, _elements(self.layout.rx)).mH
        transmit = _ramps(self.departing, _elements(self.layout.tx)).conj()
        return (transmit @ pulled.reshape(len(pulled), -1, len(receive)) @ receive).abs().square()

    def _expected(self, view: View, factor: Tensor) -> Tensor:
        """s_ij = (a_t,i ⊗ a_r,j)ᴴΦᴴC⁻¹Φ(a_t,i ⊗ a_r,j): [batch, departures, arrivals]."""
        sums = view.pulled_back(torch.cholesky_inverse(factor))
        sums[:, 1:] *= 2
        transmit = _ramps(self.departing, _transmit_lags(self.layout.tx)).conj()
        return (transmit @ sums.mT @ _ramps(self.arriving, self.layout.receive_lags).mH).real

    def configuration(self) -> dict[str, Json]:
        departures, arrivals = self.powers.shape
        rx, tx = (array_configuration(array) for array in (self.layout.rx, self.layout.tx))
        sizes: dict[str, Json] = {"arrivals": arrivals, "departures": departures}
        return {"signal_length": self.signal_length, "rx": rx, "tx": tx, **sizes}

    @classmethod
    def from_configuration(cls, configuration: dict[str, Json]) -> Self:
        rx, tx = (array_from(configuration[end]) for end in ("rx", "tx"))
        sizes = {name: cast(int, configuration[name]) for name in ("arrivals", "departures")}
        return cls(rx, tx, **sizes)

    def fit(self, problem: ChannelProblem, plan: Fit) -> dict[str, Json]:
        """Directions and powers from the rays of training channels."""
        samples = max(_BLOCK, min(_MOST_SAMPLES, int(_SAMPLES_A_SECOND * plan.seconds)))
        arriving, departing, powers = [], [], []
        for first in range(0, samples, _BLOCK):
            indices = range(first, min(samples, first + _BLOCK))
            factors = problem.source.factors(problem.source.rays(indices, seed=plan.seed, split="train"))
            arriving.append(_phases(factors.rx, self.layout.rx))
            departing.append(_phases(factors.tx, self.layout.tx))
            powers.append(factors.gains.abs().square().sum((1, 2)).flatten() * problem.source.scale**2)
            plan.report(0.8 * indices.stop / samples, "rays")
        self.arriving, which_arrival = _distinct(torch.cat(arriving), plan.seed)
        self.departing, which_departure = _distinct(torch.cat(departing), plan.seed)
        pair = which_departure * len(self.arriving) + which_arrival
        total = torch.zeros(len(self.departing) * len(self.arriving), dtype=torch.float64)
        total.index_add_(0, pair, torch.cat(powers).double())
        self.powers = (total / samples).float().reshape(len(self.departing), len(self.arriving))
        scores: list[Json] = []
        for place, snr in enumerate(_SNRS_DB):
            batch = problem.sample(_SCORED, seed=plan.seed, split="validation", snr_db=snr)
            scores.append(nmse_db(self.estimate(batch.y, batch.phi, batch.noise_var).signal, batch.signal))
            plan.report(0.8 + 0.2 * (place + 1) / len(_SNRS_DB), "validation")
        pairs = int((self.powers > 0).sum())
        return {"samples": samples, "pairs": pairs, "validation_snr_db": list(_SNRS_DB), "validation_nmse_db": scores}


def _elements(array: Array) -> list[tuple[int, int]]:
    """(column, row) of the elements in the order of vec(H)."""
    return [(column, row) for column in range(array.columns) for row in range(array.rows)]


def _transmit_lags(array: Array) -> list[tuple[int, int]]:
    """(columns, rows) between two transmit elements, in the order of a table."""
    return [(c, r) for c in range(1 - array.columns, array.columns) for r in range(1 - array.rows, array.rows)]


def _ramps(phases: Tensor, places: list[tuple[int, int]]) -> Tensor:
    """exp(j·phases·place). phases: [directions, 2] a column and a row -> [directions, places]."""
    angle = phases @ torch.tensor(places, dtype=phases.dtype, device=phases.device).mT
    return torch.polar(torch.ones_like(angle), angle)


def _phases(steering: Tensor, array: Array) -> Tensor:
    """The phase from one column to the next and from one row to the next. [batch, rays, N] -> [batch·rays, 2]."""
    grid = steering.reshape(-1, array.columns, array.rows)
    steps = [grid.narrow(axis, min(1, grid.shape[axis] - 1), 1)[:, 0, 0] / grid[:, 0, 0] for axis in (1, 2)]
    return torch.stack(steps, 1).angle()


def _distinct(phases: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """The different ones among `phases` [rays, 2], or so many k-means of them, and which of them each ray has."""
    found, which = torch.unique((phases * _SAME).round(), dim=0, return_inverse=True)
    if len(found) > MOST_DIRECTIONS:  # On the torus: -π and π are one place.
        which, _ = k_means(torch.cat([phases.cos(), phases.sin()], 1), MOST_DIRECTIONS, seed)
        used, which = torch.unique(which, return_inverse=True)
        found = found[: len(used)]
    turns = torch.polar(torch.ones_like(phases), phases)
    mean = torch.zeros(len(found), 2, dtype=turns.dtype).index_add_(0, which, turns)
    return mean.angle(), which
