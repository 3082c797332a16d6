"""Gated LMMSE, ours: the paper's idea that what adapts should adapt to the measurement, applied to the covariance.

There is a posterior over a family of dictionaries, of which only the covariance R that they give the channel matters, and a
layer takes the best step for its R, ĥ = RΦᴴ(ΦRΦᴴ + σ²I)⁻¹y, with the actual Φ. The first layer has the covariance of the
ensemble: it is the LMMSE estimate. A gate then sees gradients, as the networks of A-DLISTA do: Φᴴy, that of the squared error
at h = 0, and v = ΦᴴC⁻¹y, that of the likelihood, through the power they have for each member of the family; it proposes
weights. The few members it holds most probable are verified by their exact likelihoods. The last layer has the mean covariance
by these weights.
"""

from typing import Self

import torch
from torch import Tensor

from chanest.arrays import Array
from chanest.bases.family import FamilyEstimator
from chanest.bases.guard import Guarded
from chanest.covariances.families import CovarianceCodebook
from chanest.covariances.lag_layout import LagLayout
from chanest.covariances.lags import BeamView
from chanest.fit import Fit
from chanest.networks.gate import KINDS, Gate, fit_gate, fit_gate_from_pilots
from chanest.networks.weighing import log_powers
from chanest.problem import ChannelProblem
from chanest.recordings import Recordings
from vlista_core.estimate import Estimate, Measurement
from vlista_core.gaussian import condition
from vlista_core.linops import LinearMap
from vlista_core.tensorfile import Json

CODES, HIDDEN, VERIFIED = 384, 384, 2
_CODES_LARGE, _LARGE = 96, 512
_CODES_DUAL = 256
"""Tables of two polarisations are ten times as long."""
_CHUNK_ENTRIES = 2**20


class GatedLMMSE(FamilyEstimator, Guarded):
    """An exact step with a covariance that a gate chooses from a codebook by what y shows, checked by likelihoods."""

    name = "gated-lmmse"
    summary = "ours: the covariance adapts to y, proposed by a network and verified by likelihoods; each step is exact"
    exported_as = ("pt2",)
    needs_fit = True
    learns_from_pilots = True
    learns_from_rays = True
    half_precision = True
    narrowband = True
    mode_by_mode = True

    def __init__(
        self, rx: Array, tx: Array, *, codes: int = CODES, hidden: int = HIDDEN, verified: int = VERIFIED
    ) -> None:
        """codes: members of the codebook, hidden: width of the gate, verified: members whose likelihoods are worked out."""
        super().__init__(rx.ports * tx.ports)
        self.layout = LagLayout(rx, tx)
        self.verified, self.hidden = verified, hidden
        self.resize(codes)

    def resize(self, codes: int) -> None:
        """Another number of members, and nothing learned."""
        self.codebook = CovarianceCodebook(self.layout, codes)
        self.gate = Gate(codes, self.hidden, torch.Generator().manual_seed(0))

    @classmethod
    def build(cls, problem: ChannelProblem) -> Self:
        rx, tx = problem.arrays
        codes = CODES if len(rx.slants) == len(tx.slants) == 1 else _CODES_DUAL
        return cls(rx, tx, codes=codes if problem.signal_length <= _LARGE else _CODES_LARGE)

    def chunk(self, measured: Measurement) -> int:
        """Small enough to stay in cache."""
        return max(1, _CHUNK_ENTRIES // (measured.phi.shape[0] * self.signal_length))

    def log_prior_weights(self) -> Tensor:
        return self.codebook.prior.log()

    def log_weights(self, measured: Measurement) -> Tensor:
        return self._weights(measured, BeamView(self.layout, measured.phi))

    def infer(self, measured: Measurement) -> Estimate:
        view = BeamView(self.layout, measured.phi)
        weights = self._weights(measured, view).exp()
        own = condition(self.codebook.mixture(weights, view), measured)
        return self.weighed(measured, own, Estimate(own.mean))

    def spread(self, measured: Measurement, found: Estimate, probes: LinearMap | None) -> Tensor:
        prior = self.codebook.mixture(self.log_weights(measured).exp())
        through = condition(prior, measured, probes)
        return self.spread_weighed(measured, through, probes)

    def infer_given(self, measured: Measurement, log_weights: Tensor) -> Estimate:
        return Estimate(condition(self.codebook.mixture(log_weights.exp()), measured).mean)

    def spread_given(
        self, measured: Measurement, found: Estimate, log_weights: Tensor, probes: LinearMap | None
    ) -> Tensor:
        return condition(self.codebook.mixture(log_weights.exp()), measured, probes).variance

    def _weights(self, measured: Measurement, view: BeamView) -> Tensor:
        """Logarithms of the members' weights: [batch, codes]."""
        return self._verified(measured, view, self.gate(self._features(measured, view)))

    def seen_by_gate(self, measured: Measurement) -> Tensor:
        """What the gate gets to see: [batch, features]."""
        return self._features(measured, BeamView(self.layout, measured.phi))

    def _features(self, measured: Measurement, view: BeamView) -> Tensor:
        """Powers of Φᴴy and of v = ΦᴴC⁻¹y for each member, C = ΦRΦᴴ + σ²I for the R of the ensemble; noise; power of y."""
        first = condition(self.codebook.ensemble(view), measured)
        pulled = torch.cat([measured.phi.adjoint(measured.y), first.gradient])
        powers = self.codebook.scores(self.layout.products(pulled)).unflatten(0, (KINDS, -1))
        scalars = [value[:, None] for value in (measured.noise_var, measured.y.abs().square().mean(1))]
        return log_powers([*powers, *scalars])

    def _verified(self, measured: Measurement, view: BeamView, proposed: Tensor) -> Tensor:
        """The most probable members share their weight by p(y | k)·p(k); the others keep theirs. [batch, codes], logarithms."""
        count = min(self.verified, proposed.shape[1])
        if count < 2:
            return proposed
        weight, chosen = proposed.topk(count, 1)
        evidence = self.codebook.prior.log()[chosen] + torch.stack(
            [condition(self.codebook.member(member, view), measured).log_evidence for member in chosen.unbind(1)], 1
        )
        return proposed.scatter(1, chosen, evidence.log_softmax(1) + weight.logsumexp(1, keepdim=True))

    def fit(self, problem: ChannelProblem, plan: Fit) -> dict[str, Json]:
        """The codebook first, then the gate on fresh training draws whose rays tell the right covariance."""
        return fit_gate(self, problem, plan)

    def fit_from_pilots(self, recordings: Recordings, plan: Fit) -> dict[str, Json]:
        """The codebook by the evidence of recordings, then the gate on channels drawn from it."""
        return fit_gate_from_pilots(self, recordings, plan)
