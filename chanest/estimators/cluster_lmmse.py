"""Cluster LMMSE, ours: joint over subcarriers and antennas, with a covariance of clusters that a gate chooses by what y shows.

Given its clusters a wideband channel has R = Σ_p D_p ⊗ T_p ⊗ S_p: each cluster p has its delay, and its directions at the
transmitter and at the receiver. The delays are known on average; which way the two ends are turned is not. There is a codebook
for each end of what it has for all clusters together, so that K_t + K_r members stand for K_t·K_r covariances, and posterior
weights of both give one covariance again, T̄_p ⊗ S̄_p in each part.

All is done in delay modes, the few directions of the subcarriers that carry power. A first step takes every mode by itself with
the covariance of the ensemble: v = ΦᴴC⁻¹y. A gate sees the power that v, and Φᴴy, have for each member, every cluster at its
delay, and gives the weights. The last step is joint and exact: modes are coupled by clusters that share their angles.
"""

from typing import Self

import torch
from torch import Tensor, nn

from chanest.arrays import Array
from chanest.bases.estimator import GaussianEstimator
from chanest.covariances.kronecker import KroneckerCovariance
from chanest.covariances.lag_layout import LagLayout
from chanest.covariances.modes import DecoupledCovariance, ModeCovariance, in_modes
from chanest.covariances.parts import SideCodebook
from chanest.fit import Fit
from chanest.networks.sides import SidesGate, fit_sides
from chanest.networks.weighing import log_powers
from chanest.problem import ChannelProblem
from vlista_core.estimate import Measurement
from vlista_core.gaussian import condition
from vlista_core.prox import squared_modulus
from vlista_core.tensorfile import Json

_TRANSMIT, _RECEIVE, _HIDDEN = 64, 48, 384
_CHUNK = 2
"""C of a sample has some 1,000 × 1,000 entries: two stay in cache."""


class ClusterLMMSE(GaussianEstimator):
    """A look at the delay modes one by one, a gate for both ends, then one exact joint step."""

    name = "cluster-lmmse"
    summary = "ours: joint over delay and angle; the covariance of clusters adapts to y at both ends"
    alike_subcarriers = True
    needs_fit = True
    learns_from_rays = True
    one_polarisation = True
    longest = 1024
    per_subcarrier = True

    def __init__(
        self,
        rx: Array,
        tx: Array,
        *,
        subcarriers: int,
        modes: int,
        parts: int,
        rank: int,
        transmit: int = _TRANSMIT,
        receive: int = _RECEIVE,
        hidden: int = _HIDDEN,
    ) -> None:
        """modes: delay modes, parts: clusters, rank: columns of each D_p, transmit, receive: members of the codebooks."""
        super().__init__(subcarriers * rx.ports * tx.ports)
        self.layout = LagLayout(rx, tx)
        self.modes: Tensor = nn.Buffer(torch.zeros(subcarriers, modes, dtype=torch.complex64))
        self.columns: Tensor = nn.Buffer(torch.zeros(parts, rank, modes, dtype=torch.complex64))
        self.tx, self.rx = SideCodebook(tx, parts, transmit), SideCodebook(rx, parts, receive)
        self.gate = SidesGate(transmit, receive, hidden, torch.Generator().manual_seed(0))

    @classmethod
    def build(cls, problem: ChannelProblem) -> Self:
        return cls(*problem.arrays, subcarriers=problem.subcarriers, modes=1, parts=1, rank=1)

    def chunk(self, measured: Measurement) -> int:
        return _CHUNK

    def prior(self, measured: Measurement) -> ModeCovariance:
        transmit, receive = self.gate(self.seen_by_gate(in_modes(measured, self.modes)))
        return ModeCovariance(self.modes[None], self.clusters(transmit.exp(), receive.exp()))

    def clusters(self, transmit: Tensor, receive: Tensor) -> KroneckerCovariance:
        """R in delay modes with these weights of the members of both ends: [batch, K_t] and [batch, K_r]."""
        delay = (self.columns.mT @ self.columns.conj())[None]
        return KroneckerCovariance(self.tx.matrices(transmit), self.rx.matrices(receive), delay)

    def seen_by_gate(self, inside: Measurement) -> Tensor:
        """Powers of Φᴴy and of v for each member of both ends, with the mean of the other; noise; power of y.

        inside: the measurement in delay modes. -> [batch, features].
        """
        ensemble = self.clusters(self.tx.prior[None], self.rx.prior[None])
        first = condition(DecoupledCovariance(ensemble), inside)
        powers = [score for seen in (inside.phi.adjoint(inside.y), first.gradient) for score in self._scores(seen)]
        scalars = [value[:, None] for value in (inside.noise_var, squared_modulus(inside.y).mean(1))]
        return log_powers([*powers, *scalars])

    def _scores(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Σ_p tr((D_p ⊗ T_kp ⊗ S̄_p) vvᴴ) of every member T_k, and likewise of every S_k.

        seen: v in delay modes, [batch, D·n₁] -> [batch, K_t], [batch, K_r].
        """
        parts, rank, modes = self.columns.shape
        at_delays = self.columns.conj().flatten(0, 1) @ seen.reshape(len(seen), modes, -1)
        sums = self.layout.products(at_delays.flatten(0, 1)).reshape(len(seen), parts, rank, *self.layout.shape).sum(2)
        transmit, receive = (side.mixture(side.prior[None])[0] for side in (self.tx, self.rx))
        # Of the receive lags there is the half from zero on; the mirrored ones add the conjugates of mirrored transmit lags.
        both = (receive[:, self.rx.kept - 1 :].conj() * self.layout.sides[:, 0].to(seen.device))[:, :, None] * sums
        at_transmit = both.sum(2)
        at_transmit = 0.5 * (at_transmit + at_transmit.flip(-1).conj())
        at_receive = (transmit.conj()[:, None] * sums).sum(3)
        return self.tx.scores(at_transmit), self.rx.scores(at_receive.flip(-1).conj())

    def fit(self, problem: ChannelProblem, plan: Fit) -> dict[str, Json]:
        """Delay modes and codebooks from training channels and their rays, then the gate on fresh draws."""
        return fit_sides(self, problem, plan)
