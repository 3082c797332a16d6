"""A-DLISTA+: the paper's idea, a dictionary that adapts to the measurement, taken as far as it goes.

In A-DLISTA a network makes step and threshold of every layer fit the sample. Here it makes the dictionary fit: there is a
posterior over a family of dictionaries, of which only the covariance R they give the channel matters, and a layer takes the
best step for its R, ĥ = RΦᴴ(ΦRΦᴴ + σ²I)⁻¹y, with the actual Φ. The first layer has the covariance of the ensemble: it is the
LMMSE estimate. A gate then sees gradients, as the networks of A-DLISTA do: Φᴴy, that of the squared error at h = 0, and
v = ΦᴴC⁻¹y, that of the likelihood, through the power they have for each member of the family; it proposes weights. The few
members it holds most probable are verified by their exact likelihoods. The last layer has the mean covariance by these weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, cast

import torch
from torch import Tensor

from chanest.arrays import Array
from chanest.estimators.base import Fit, array_configuration, array_from
from chanest.estimators.codebook import CovarianceCodebook
from chanest.estimators.covariance_step import covariance_step
from chanest.estimators.family import FamilyEstimator
from chanest.estimators.gate import KINDS, Gate, fit_gate, gate_features
from chanest.estimators.spread import gaussian
from chanest.estimators.toeplitz import LagTable, View
from vlista_core.checkpoint import register_model
from vlista_core.estimate import Estimate, Measurement
from vlista_core.linops import LinearMap
from vlista_core.tensorfile import Json

if TYPE_CHECKING:
    from chanest.problem import ChannelProblem

CODES, HIDDEN, VERIFIED = 384, 384, 2
_CODES_LARGE, _LARGE = 96, 512
_CHUNK_ENTRIES = 2**20


@register_model
class ADLISTAPlus(FamilyEstimator):
    """An exact step with a covariance that a gate chooses from a codebook by what y shows, checked by likelihoods."""

    name = "a-dlista+"
    summary = "ours: the dictionary's covariance adapts to y, proposed by a network and verified; each step is exact"
    needs_fit = True
    half_precision = True

    def __init__(
        self, rx: Array, tx: Array, *, codes: int = CODES, hidden: int = HIDDEN, verified: int = VERIFIED
    ) -> None:
        """codes: members of the codebook, hidden: width of the gate, verified: members whose likelihoods are worked out."""
        super().__init__(rx.ports * tx.ports)
        self.layout = LagTable(rx, tx)
        self.settings = {"codes": codes, "hidden": hidden, "verified": verified}
        self.codebook = CovarianceCodebook(self.layout, codes)
        self.gate = Gate(codes, hidden, torch.Generator().manual_seed(0))

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
        return self._weights(measured, View(self.layout, measured.phi))

    def infer_given(self, measured: Measurement, log_weights: Tensor) -> Estimate:
        return self._filtered(measured, View(self.layout, measured.phi), log_weights)

    def infer(self, measured: Measurement) -> Estimate:
        view = View(self.layout, measured.phi)
        return self._filtered(measured, view, self._weights(measured, view))

    def _filtered(self, measured: Measurement, view: View, log_weights: Tensor) -> Estimate:
        layer = covariance_step(measured, view, self.codebook.table(log_weights.exp()))
        return Estimate(self.layout.apply(layer.spectrum, measured.phi.adjoint(layer.whitened)))

    def spread_given(
        self, measured: Measurement, found: Estimate, log_weights: Tensor, probes: LinearMap | None
    ) -> Tensor:
        return gaussian(self.layout.matrix(self.codebook.table(log_weights.exp())), measured, probes)[1]

    def _weights(self, measured: Measurement, view: View) -> Tensor:
        """Logarithms of the members' weights: [batch, codes]."""
        return self._verified(measured, view, self.gate(self._features(measured, view)))

    def seen_by_gate(self, measured: Measurement) -> Tensor:
        """What the gate gets to see: [batch, features]."""
        return self._features(measured, View(self.layout, measured.phi))

    def _features(self, measured: Measurement, view: View) -> Tensor:
        """Powers of Φᴴy and of v = ΦᴴC⁻¹y for each member, C = ΦRΦᴴ + σ²I for the R of the ensemble; noise; power of y."""
        layer = covariance_step(measured, view, self.codebook.ensemble())
        pulled = torch.cat([measured.phi.adjoint(values) for values in (measured.y, layer.whitened)])
        powers = self._powers(pulled).chunk(KINDS)
        scalars = [value[:, None] for value in (measured.noise_var, measured.y.abs().square().mean(1))]
        return gate_features([*powers, *scalars])

    def _powers(self, v: Tensor) -> Tensor:
        """vᴴR_k v of every member: [batch, n] -> [batch, codes]."""
        return self.codebook.scores(self.layout.products(v))

    def _verified(self, measured: Measurement, view: View, proposed: Tensor) -> Tensor:
        """The most probable members share their weight by p(y | k)·p(k); the others keep theirs. [batch, codes], logarithms."""
        count = min(self.settings["verified"], proposed.shape[1])
        if count < 2:
            return proposed
        weight, chosen = proposed.topk(count, 1)
        evidence = self.codebook.prior.log()[chosen] + torch.stack(
            [self._log_density(measured, view, member) for member in chosen.unbind(1)], 1
        )
        return proposed.scatter(1, chosen, evidence.log_softmax(1) + weight.logsumexp(1, keepdim=True))

    def _log_density(self, measured: Measurement, view: View, member: Tensor) -> Tensor:
        """log p(y | k) up to a constant. member: k of each sample, [batch] -> [batch]."""
        layer = covariance_step(measured, view, self.codebook.member(member))
        fit = (measured.y.conj() * layer.whitened).real.sum(1)
        return -fit - 2 * layer.factor.diagonal(dim1=1, dim2=2).real.log().sum(1)

    def configuration(self) -> dict[str, Json]:
        arrays: dict[str, Json] = {
            "rx": array_configuration(self.layout.rx), "tx": array_configuration(self.layout.tx)
        }  # fmt: skip
        return {"signal_length": self.signal_length, **arrays, **self.settings}

    @classmethod
    def from_configuration(cls, configuration: dict[str, Json]) -> Self:
        rx, tx = (array_from(configuration[end]) for end in ("rx", "tx"))
        settings = {name: cast(int, configuration[name]) for name in ("codes", "hidden", "verified")}
        return cls(rx, tx, **settings)

    def fit(self, problem: ChannelProblem, plan: Fit) -> dict[str, Json]:
        """The codebook first, then the gate on fresh training draws whose rays tell the right covariance."""
        return fit_gate(self, problem, plan)
