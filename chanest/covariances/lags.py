"""Covariances of channels between uniform arrays as tables of lags, and a front end as they need it.

`chanest.covariances.lag_layout` says what a table holds.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from chanest.covariances.lag_layout import LagLayout, from_spectrum, pair_sums
from chanest.frontend import BeamformingMap
from chanest.problem import ChannelProblem
from vlista_core.gaussian import Covariance
from vlista_core.linops import LinearMap


def has_lags(problem: ChannelProblem) -> bool:
    """Whether tables of lags hold the covariances of a problem: one subcarrier, one polarisation at both ends."""
    return problem.subcarriers == 1 and all(len(array.slants) == 1 for array in problem.arrays)


@dataclass(frozen=True, eq=False)
class LagCovariance(Covariance):
    """R as a table of lags."""

    table: Tensor
    """[batch or 1, receive kinds, transmit lags]."""
    layout: LagLayout
    view: "BeamView | None" = None
    """Φ prepared, where the caller looks through the same Φ more than once."""

    @property
    def length(self) -> int:
        return self.layout.tx.ports * self.layout.rx.ports

    @cached_property
    def spectrum(self) -> Tensor:
        """The Fourier transform of the table over its transmit lags."""
        return self.layout.spectrum(self.table)

    def apply(self, x: Tensor) -> Tensor:
        self._check_input("x", x, self.length)
        layout = self.layout
        if self.table.shape[0] == 1:
            return x @ self.materialize()[0].mT
        both = torch.cat([self.spectrum, self.spectrum.conj()], 1).mT[:, :, layout.pairs.to(x.device)]
        return layout.channel((both @ layout.angles(x)[..., None])[..., 0])

    def seen(self, phi: LinearMap) -> Tensor:
        view = self.view if self.view is not None and self.view.phi is phi else BeamView(self.layout, phi)
        if view.beams is None:
            return super().seen(phi)
        return view.seen_at(view.spectra, view.conjugate, self.spectrum / self.spectrum.shape[2])

    def mixture(self, weights: Tensor) -> "LagCovariance":
        mixed = weights.to(self.dtype) @ self.table.flatten(1)
        return LagCovariance(mixed.reshape(-1, *self.table.shape[1:]), self.layout)

    def variances(self) -> Tensor:
        power = self.table[:, self.layout.own, self.table.shape[2] // 2].real
        tx, rx = self.layout.tx, self.layout.rx
        parts = power.reshape(len(power), len(tx.slants), 1, len(rx.slants), 1)
        return parts.expand(-1, -1, tx.elements, -1, rx.elements).flatten(1)

    def materialize(self) -> Tensor:
        return self.layout.matrix(self.table)


class BeamView:
    """A front end as covariances need it: what its beams send into directions, worked out once.

    A beamformer is used pilot by pilot, through the angular spectra of its beams. For any other map `beams` is None, and
    covariances are given to it column by column.
    """

    def __init__(self, layout: LagLayout, phi: LinearMap) -> None:
        self.layout, self.phi = layout, phi
        self.beams = phi if isinstance(phi, BeamformingMap) and phi.subcarriers == 1 else None

    @cached_property
    def spectra(self) -> Tensor:
        """Σ_i f_t[i] exp(jω·i) at the points ω of the layout's grid, of each polarisation: [batch, pol_t·pilots, points]."""
        transmit, (columns, rows) = self._beamformer().transmit, self.layout.grid
        by_polarisation = transmit.unflatten(1, (len(self.layout.tx.slants), -1)).mT
        grid = by_polarisation.reshape(transmit.shape[0], -1, self.layout.tx.columns, self.layout.tx.rows)
        spectra: Tensor = torch.fft.ifft2(grid, s=self.layout.grid).flatten(2) * (columns * rows)
        return spectra

    @cached_property
    def conjugate(self) -> Tensor:
        """Of `spectra`, in memory."""
        return self.spectra.conj().resolve_conj()

    def seen_at(self, sent: Tensor, conjugate: Tensor, weights: Tensor) -> Tensor:
        """ΦRΦᴴ of an R that is a sum over directions: [batch, m, m].

        sent: what each pilot sends into each direction, [batch, pol_t·pilots, directions], and its conjugate; weights: of
        each direction for each receive kind, [batch or 1, receive kinds, directions].
        """
        combiners, layout, transmit = self._beamformer().weights, self.layout, len(self.layout.tx.slants)
        by_polarisation, conjugates = (each.unflatten(1, (transmit, -1)) for each in (sent, conjugate))
        found = []
        for a, other, kinds in layout.groups:
            weighted = by_polarisation[:, a, None] * weights[:, kinds, None]
            between = weighted.flatten(1, 2) @ conjugates[:, other].mT
            found.append(between.reshape(*weighted.shape[:3], -1))
        between = torch.cat(found, 1)
        both = torch.cat([between, between.mH], 1).transpose(1, 2).contiguous()
        pairs = both[:, :, layout.pairs.to(both.device)]
        if transmit > 1:
            pairs = pairs.unflatten(3, (transmit, -1)).unflatten(2, (transmit, -1)).sum((2, 4))
        if combiners is None:
            return pairs.transpose(3, 4).reshape(pairs.shape[0], pairs.shape[1] * pairs.shape[2], -1)
        return combine_pairs(combiners, pairs)

    def pulled_back(self, matrix: Tensor) -> Tensor:
        """The sums of Q = ΦᴴMΦ over the entries of each lag, so that tr(RQ) = Re Σ R's table · conj(sums) · sides.

        matrix: M, Hermitian, [batch, m, m] -> [batch, receive kinds, transmit lags]; sides: those of the layout.
        """
        layout, batch, receive, transmit = self.layout, len(matrix), self.layout.rx.ports, len(self.layout.tx.slants)
        if self.beams is None:
            identity = torch.eye(self.phi.shape[1], dtype=matrix.dtype, device=matrix.device)
            whole = self.phi.apply_block(identity[None])
            return layout.of_matrix(whole.mH @ matrix @ whole, mean=False)
        if self.beams.weights is None:
            pilots = self.beams.pilots
            pairs = matrix.reshape(batch, pilots, receive, pilots, receive).transpose(3, 4)
        else:
            pairs = spread_pairs(self.beams.weights, matrix)
        members = layout.members.reshape(transmit, receive, transmit, receive, -1)
        spectra, conjugates = (each.unflatten(1, (transmit, -1)) for each in (self.spectra, self.conjugate))
        powers = []
        for a, other, kinds in layout.groups:
            at_lags = pair_sums(pairs, members[a, :, other, :, kinds].reshape(receive**2, -1))
            beamed = (at_lags.flatten(1, 2) @ spectra[:, other]).reshape(*at_lags.shape[:3], -1)
            powers.append((conjugates[:, a, None] * beamed).sum(2))
        return from_spectrum(layout, torch.cat(powers, 1))

    def _beamformer(self) -> BeamformingMap:
        if self.beams is None:
            raise TypeError(f"only a beamformer sends into directions, got {type(self.phi).__name__}")
        return self.beams


def combine_pairs(weights: Tensor, pairs: Tensor) -> Tensor:
    """Wᴴ M W pilot by pilot. weights: [batch, T, N_r, N_RF], pairs: M as [batch, T, N_r, N_r', T'] -> [batch, m, m]."""
    batch, pilots, elements, chains = weights.shape
    left = weights.mH @ pairs.reshape(batch, pilots, elements, -1)
    left = left.reshape(batch, pilots * chains, elements, pilots).permute(0, 3, 1, 2)
    return (left @ weights).transpose(1, 2).reshape(batch, pilots * chains, -1)


def spread_pairs(weights: Tensor, matrix: Tensor) -> Tensor:
    """W M Wᴴ pilot by pilot, the adjoint of `combine_pairs`: [batch, m, m] -> [batch, T, N_r, N_r', T']."""
    batch, pilots, elements, chains = weights.shape
    right = matrix.reshape(batch, pilots * chains, pilots, chains).transpose(1, 2) @ weights.mH
    right = right.reshape(batch, pilots, pilots, chains, elements).permute(0, 2, 3, 4, 1)
    spread = weights @ right.reshape(batch, pilots, chains, -1)
    return spread.reshape(batch, pilots, elements, elements, pilots)
