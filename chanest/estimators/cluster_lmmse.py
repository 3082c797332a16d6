"""Cluster LMMSE, ours: joint over subcarriers and antennas, with a covariance of clusters that a gate chooses by what y shows.

Given its clusters a wideband channel has R = Σ_p D_p ⊗ T_p ⊗ S_p: each cluster p has its delay, and its directions at the
transmitter and at the receiver. Which way the two ends are turned is not known. There is a codebook
for each end of what it has for all clusters together, so that K_t + K_r members stand for K_t·K_r covariances, and posterior
weights of both give one covariance again, T̄_p ⊗ S̄_p in each part.

Delays are known on average or, where samples have their own, told from y (`chanest.covariances.profile_search`): from all
subcarriers before the gate, by the likelihood after it. Every sample then has delay modes of its own, fewer than all together.

All is done in delay modes, the few directions of the subcarriers that carry power. A first step takes every mode by itself with
the covariance of the ensemble: v = ΦᴴC⁻¹y. A gate sees the power that v, and Φᴴy, have for each member, every cluster at its
delay, and gives the weights. The last step is joint and exact: modes are coupled by clusters that share their angles.
"""

from typing import Self

import torch
from torch import Tensor, nn

from chanest.arrays import Array
from chanest.bases.estimator import GaussianEstimator
from chanest.channels.section import around_carrier
from chanest.covariances.kronecker import KroneckerCovariance
from chanest.covariances.lag_layout import LagLayout
from chanest.covariances.modes import DecoupledCovariance, ModeCovariance, check_modes, in_modes
from chanest.covariances.parts import SideCodebook
from chanest.covariances.profile_search import Likelihood, first_look, refined
from chanest.covariances.profiles import DelayProfiles, Timing
from chanest.fit import Fit
from chanest.networks.sides import SidesGate, fit_sides
from chanest.networks.weighing import log_powers
from chanest.problem import ChannelProblem
from vlista_core.estimate import Measurement
from vlista_core.gaussian import condition
from vlista_core.prox import squared_modulus
from vlista_core.tensorfile import Json

_TRANSMIT, _RECEIVE, _HIDDEN = 64, 48, 384
_MOST_MODES, _OUTSIDE = 10, 1e-4
"""Delay modes of a sample at the most, and the share of its power that may lie outside of them."""
_CHUNK = 2
"""C of a sample has some 1,000 × 1,000 entries: two stay in cache."""


class ClusterLMMSE(GaussianEstimator):
    """A look at the delay modes one by one, a gate for both ends, then one exact joint step."""

    name = "cluster-lmmse"
    summary = "ours: joint over delay and angle; the covariance of clusters adapts to y at both ends"
    alike_subcarriers = True
    needs_fit = True
    half_precision = True
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
        spacing: float = 0.0,
    ) -> None:
        """modes: delay modes, parts: clusters, rank: columns of each D_p, transmit, receive: members of the codebooks, spacing:
        of the subcarriers where every sample has delays of its own, 0 where all have the same."""
        super().__init__(subcarriers * rx.ports * tx.ports)
        check_modes(modes, subcarriers)
        self.layout = LagLayout(rx, tx)
        self.modes: Tensor = nn.Buffer(torch.zeros(subcarriers, modes, dtype=torch.complex64))
        self.columns: Tensor = nn.Buffer(torch.zeros(parts, rank, modes, dtype=torch.complex64))
        self.tx, self.rx = SideCodebook(tx, parts, transmit), SideCodebook(rx, parts, receive)
        self.gate = SidesGate(transmit, receive, hidden, torch.Generator().manual_seed(0))
        frequencies = around_carrier(subcarriers, spacing) if spacing else None
        self.profiles = None if frequencies is None else DelayProfiles(frequencies, parts)

    @classmethod
    def build(cls, problem: ChannelProblem) -> Self:
        return cls(*problem.arrays, subcarriers=problem.subcarriers, modes=1, parts=1, rank=1)

    def chunk(self, measured: Measurement) -> int:
        return _CHUNK

    def prior(self, measured: Measurement) -> ModeCovariance:
        inside = in_modes(measured, self.modes)
        if self.profiles is None:
            transmit, receive = self.gate(self._seen(inside, self.columns[None]))
            return ModeCovariance(self.modes[None], self.clusters(transmit.exp(), receive.exp()))
        timing = self.first_timing(inside)
        transmit, receive = self.gate(self._seen(*self._own_modes(inside, timing)[1:]))
        space = KroneckerCovariance(self.tx.matrices(transmit.exp()), self.rx.matrices(receive.exp()))
        likelihood = Likelihood(self.profiles, self.modes, inside, space, timing.among(1))
        timing, doubt = refined(likelihood, timing)
        windows = self.profiles.windows()
        tried = timing.among(len(windows))._replace(window=windows.expand(len(inside.y), -1))
        timing = tried.at(likelihood(tried).argmax(1))
        modes, _, columns = self._own_modes(inside, timing, doubt)
        return ModeCovariance(
            self.modes[None], ModeCovariance(modes, KroneckerCovariance(space.tx, space.rx, _outer(columns)))
        )

    def first_timing(self, inside: Measurement) -> Timing:
        """Spread, offset and window before directions are known: the candidate that is most likely with all directions."""
        assert self.profiles is not None
        candidates = first_look(self.profiles, self.modes, inside)
        space = KroneckerCovariance(self.tx.matrices(self.tx.prior[None]), self.rx.matrices(self.rx.prior[None]))
        return candidates.at(Likelihood(self.profiles, self.modes, inside, space, candidates)(candidates).argmax(1))

    def clusters(self, transmit: Tensor, receive: Tensor, columns: Tensor | None = None) -> KroneckerCovariance:
        """R in delay modes with these weights of the members of both ends, [batch, K_t] and [batch, K_r].

        columns: of the D_p, [batch or 1, parts, rank, D]; None for those that all samples have.
        """
        delay = _outer(self.columns[None] if columns is None else columns)
        return KroneckerCovariance(self.tx.matrices(transmit), self.rx.matrices(receive), delay)

    def seen_by_gate(self, inside: Measurement) -> Tensor:
        """Powers of Φᴴy and of v for each member of both ends, with the mean of the other; noise; power of y.

        inside: the measurement in delay modes. -> [batch, features].
        """
        if self.profiles is None:
            return self._seen(inside, self.columns[None])
        return self._seen(*self._own_modes(inside, self.first_timing(inside))[1:])

    def _own_modes(
        self, inside: Measurement, timing: Timing, doubt: Tensor | None = None
    ) -> tuple[Tensor, Measurement, Tensor]:
        """Delay modes of each sample within those of all, [batch, M, D], the measurement in them, and the columns of the D_p.

        doubt: the covariance of (spread, offset), [batch, 2, 2]: a cluster then has a second column, along its derivative.
        """
        assert self.profiles is not None
        columns = self.profiles.columns(timing, doubt)
        late = columns.flatten(1, 2) @ self.modes.to(columns.dtype).conj()
        values, vectors = torch.linalg.eigh(late.mT @ late.conj())
        outside = values.cumsum(1) / values.sum(1, keepdim=True)
        count = min(_MOST_MODES, int((outside > _OUTSIDE).sum(1).max()))
        modes = vectors[:, :, -count:]
        own = (late @ modes.conj()).unflatten(1, columns.shape[1:3]).to(self.modes.dtype)
        modes = modes.to(self.modes.dtype)
        return modes, in_modes(inside, modes), own

    def _seen(self, inside: Measurement, columns: Tensor) -> Tensor:
        """`seen_by_gate` in the modes in which the columns of the D_p are: [batch or 1, parts, rank, D]."""
        ensemble = self.clusters(self.tx.prior[None], self.rx.prior[None], columns)
        first = condition(DecoupledCovariance(ensemble), inside)
        seen = (inside.phi.adjoint(inside.y), first.gradient)
        powers = [score for each in seen for score in self._scores(each, columns)]
        scalars = [value[:, None] for value in (inside.noise_var, squared_modulus(inside.y).mean(1))]
        return log_powers([*powers, *scalars])

    def _scores(self, seen: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Σ_p tr((D_p ⊗ T_kp ⊗ S̄_p) vvᴴ) of every member T_k, and likewise of every S_k.

        seen: v in delay modes, [batch, D·n₁] -> [batch, K_t], [batch, K_r].
        """
        _, parts, rank, modes = columns.shape
        at_delays = columns.conj().flatten(1, 2) @ seen.reshape(len(seen), modes, -1)
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


def _outer(columns: Tensor) -> Tensor:
    """D_p = Σ d dᴴ: [batch, parts, rank, D] -> [batch, parts, D, D]."""
    return columns.mT @ columns.conj()
