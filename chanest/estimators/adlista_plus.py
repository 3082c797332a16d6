"""A-DLISTA+: the paper's idea, a dictionary that adapts to the measurement, taken as far as it goes.

In A-DLISTA a network makes step and threshold of every layer fit the sample. Here it makes the dictionary fit: layer t has a
posterior over a family of dictionaries, of which only the covariance R_t they give the channel matters, and takes the best
step for it, ĥ_t = R_tΦᴴ(ΦR_tΦᴴ + σ²I)⁻¹y, with the actual Φ. What the network of a layer sees is how the likelihood of y
would rise with the weight of each member of the family: the gradient with respect to the dictionary, as the layers of A-DLISTA
have that with respect to the code. The first layer has the covariance of the ensemble, so it is the LMMSE estimate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Self, cast

import torch
from torch import Tensor, nn

from chanest.arrays import Array
from chanest.estimators.base import Fit, array_configuration, array_from
from chanest.estimators.codebook import CovarianceCodebook
from chanest.estimators.family import FamilyEstimator
from chanest.estimators.gate import ScoreGate, fit_gates, gate_features
from chanest.estimators.linear import with_noise
from chanest.estimators.spread import gaussian
from chanest.estimators.toeplitz import LagTable, View
from vlista_core.checkpoint import register_model
from vlista_core.estimate import Estimate, Measurement
from vlista_core.linalg import cholesky
from vlista_core.linops import LinearMap
from vlista_core.tensorfile import Json

if TYPE_CHECKING:
    from chanest.problem import ChannelProblem

CODES, HIDDEN, ROUNDS = 384, 256, 2
_CODES_LARGE, _LARGE = 96, 512
_CHUNK_ENTRIES = 2**20


class _Layer(NamedTuple):
    """A covariance at work on a measurement: R's spectrum, the Cholesky factor of C = ΦRΦᴴ + σ²I, and u = C⁻¹y."""

    spectrum: Tensor
    factor: Tensor
    whitened: Tensor


@register_model
class ADLISTAPlus(FamilyEstimator):
    """Layers of an exact step each, with a covariance that gates choose from a codebook by what y shows."""

    name = "a-dlista+"
    summary = "ours: the dictionary's covariance adapts to y, layer by layer, and each step is exact"
    needs_fit = True
    half_precision = True

    def __init__(
        self,
        rx: Array,
        tx: Array,
        *,
        codes: int = CODES,
        hidden: int = HIDDEN,
        rounds: int = ROUNDS,
    ) -> None:
        """codes: members of the codebook, hidden: width of a gate, rounds: gates; there is one solve more than gates."""
        super().__init__(rx.ports * tx.ports)
        self.layout = LagTable(rx, tx)
        self.settings = {"codes": codes, "hidden": hidden, "rounds": rounds}
        self.codebook = CovarianceCodebook(self.layout, codes)
        generator = torch.Generator().manual_seed(0)
        self.gates = nn.ModuleList(ScoreGate(codes, hidden, generator) for _ in range(rounds))

    @classmethod
    def build(cls, problem: ChannelProblem) -> Self:
        if problem.subcarriers > 1:
            raise ValueError(
                f"{cls.name} is for one subcarrier so far; {problem.scenario.name} has {problem.subcarriers}"
            )
        return cls(*problem.arrays, codes=CODES if problem.signal_length <= _LARGE else _CODES_LARGE)

    def chunk(self, measured: Measurement) -> int:
        """So few that what they need stays near the processor."""
        return max(1, _CHUNK_ENTRIES // (measured.phi.shape[0] * self.signal_length))

    def log_prior_weights(self) -> Tensor:
        return self.codebook.prior.log()

    def log_weights(self, measured: Measurement) -> Tensor:
        return self._weights(measured, View(self.layout, measured.phi), len(self.gates))

    def infer_given(self, measured: Measurement, log_weights: Tensor) -> Estimate:
        return self._filtered(measured, View(self.layout, measured.phi), log_weights)

    def infer(self, measured: Measurement) -> Estimate:
        view = View(self.layout, measured.phi)
        return self._filtered(measured, view, self._weights(measured, view, len(self.gates)))

    def _filtered(self, measured: Measurement, view: View, log_weights: Tensor) -> Estimate:
        layer = self._layer(measured, view, self.codebook.table(log_weights.exp()))
        return Estimate(self.layout.apply(layer.spectrum, measured.phi.adjoint(layer.whitened)))

    def spread_given(
        self, measured: Measurement, found: Estimate, log_weights: Tensor, probes: LinearMap | None
    ) -> Tensor:
        return gaussian(self.layout.matrix(self.codebook.table(log_weights.exp())), measured, probes)[1]

    def _weights(self, measured: Measurement, view: View, gates: int) -> Tensor:
        """Logarithms of the members' weights after the first gates: [batch, codes]."""
        weights = self.codebook.prior.log().expand(len(measured.y), -1)
        for t, gate in enumerate(list(self.gates)[:gates]):
            weights = gate(self._features(measured, view, weights, first=t == 0))
        return weights

    def seen_by(self, measured: Measurement, gate: int) -> Tensor:
        """What a gate gets to see after those before it: [batch, features]."""
        view = View(self.layout, measured.phi)
        return self._features(measured, view, self._weights(measured, view, gate), first=gate == 0)

    def _features(self, measured: Measurement, view: View, weights: Tensor, *, first: bool) -> Tensor:
        """Scores of the members: how the likelihood of y would rise with their weights, ∂ log p(y)/∂w_k = tr(R_k Q).

        Q = Φᴴ(uuᴴ - C⁻¹)Φ with u = C⁻¹y and C = ΦRΦᴴ + σ²I for the current R.
        """
        layer = self._layer(measured, view, self.codebook.ensemble() if first else self.codebook.table(weights.exp()))
        outer = layer.whitened[:, :, None] * layer.whitened[:, None, :].conj()
        scores = self.codebook.scores(view.pulled_back(outer - torch.cholesky_inverse(layer.factor)))
        return gate_features(weights, scores, measured.noise_var, measured.y.abs().square().mean(1))

    def _layer(self, measured: Measurement, view: View, table: Tensor) -> _Layer:
        spectrum = self.layout.spectrum(table)
        factor = cholesky(with_noise(view.seen(table, spectrum), measured.noise_var))
        return _Layer(spectrum, factor, torch.cholesky_solve(measured.y[..., None], factor)[..., 0])

    def configuration(self) -> dict[str, Json]:
        arrays: dict[str, Json] = {
            "rx": array_configuration(self.layout.rx), "tx": array_configuration(self.layout.tx)
        }  # fmt: skip
        return {"signal_length": self.signal_length, **arrays, **self.settings}

    @classmethod
    def from_configuration(cls, configuration: dict[str, Json]) -> Self:
        rx, tx = (array_from(configuration[end]) for end in ("rx", "tx"))
        settings = {name: cast(int, configuration[name]) for name in ("codes", "hidden", "rounds")}
        return cls(rx, tx, **settings)

    def fit(self, problem: ChannelProblem, plan: Fit) -> dict[str, Json]:
        """Codebook first, then gate after gate, each on fresh training draws whose rays tell the right covariance."""
        return fit_gates(self, problem, plan)
