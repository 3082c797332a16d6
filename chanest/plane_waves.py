"""Plane waves over continuous directions and delays, and their least squares fit to measurements.

A wave l has one phase step per axis of the link: per subcarrier (its delay), per column and per row of the transmitter and of
the receiver (its directions). Axes of one element have none. Its gain is one complex number for each pair of polarisations:
h = Σ_l d(ω_l) ⊗ Σ_pq g_lpq (e_p ⊗ a_t(ω_l)) ⊗ (e_q ⊗ a_r(ω_l)), with entries exp(j ω·place), places counted from the middle.

The fit is by variable projection (Golub & Pereyra 1973, in Kaufman's form). Gains are solved for by least squares, with a ridge
against waves that Φ hardly sees; phases move by Levenberg–Marquardt steps. With A the waves as Φ sees them, B their
derivatives along the phases times the gains, and r the residual, a step solves Re(BᴴP⊥B + μ diag) δ = Re(Bᴴr) with
P⊥ = I - A(AᴴA + ridge)⁻¹Aᴴ.
"""

import math
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from chanest.arrays import Array
from chanest.covariances.columns import ColumnCovariance
from chanest.dictionaries import Link, delay_steps, phase_steps
from chanest.frontend import BeamformingMap
from vlista_core.linalg import cholesky
from vlista_core.linops import LinearMap
from vlista_core.prox import squared_modulus

WIDE = torch.complex128
"""Fits are in double precision: two waves close to each other need it."""
_FIRST_DAMPING, _LESS, _MORE = 1e-2, 0.2, 8.0
"""μ at the start, and by what it is multiplied after a step that helped and after one that did not."""
_LEAST_RIDGE = 1e-10
"""Of the diagonal of AᴴA, for waves that Φ cannot tell from each other."""


@dataclass(frozen=True)
class PlaneWaves:
    """The family of plane waves of a link."""

    link: Link

    @cached_property
    def places(self) -> tuple[Tensor, Tensor, Tensor]:
        """Of subcarriers, transmit and receive elements along their axes, mean 0: [elements, axes] each, float64."""
        return _subcarriers(self.link.frequencies), _elements(self.link.tx), _elements(self.link.rx)

    @property
    def coordinates(self) -> int:
        """D: how many phases a wave has."""
        return sum(place.shape[1] for place in self.places)

    @property
    def polarisations(self) -> tuple[int, int]:
        """Of the transmitter and of the receiver."""
        return len(self.link.tx.slants), len(self.link.rx.slants)

    @property
    def gains(self) -> int:
        """P: how many complex gains a wave has."""
        return math.prod(self.polarisations)

    @property
    def freedom(self) -> float:
        """Of a wave in complex numbers: its gains, and half of each phase."""
        return self.gains + self.coordinates / 2

    @cached_property
    def cells(self) -> tuple[float, ...]:
        """Independent directions (delays) along each axis, for a search among noise: see `detection_threshold`.

        2π√(λ/π) for phases that go round, λ the variance of the places: about the number of elements. Half for delays.
        """
        delay, *angles = self.places
        rounds = [0.5] * delay.shape[1] + [1.0] * sum(place.shape[1] for place in angles)
        spreads = [float(axis.square().mean()) for place in self.places for axis in place.unbind(1)]
        return tuple(share * 2 * math.sqrt(math.pi * spread) for share, spread in zip(rounds, spreads, strict=True))

    def grid(self, oversampling: float) -> "WaveGrid":
        """The waves of the link's `angular_dictionary`."""
        delays = torch.zeros(1, 0, dtype=torch.float64)
        if self.places[0].shape[1] and self.link.frequencies is not None:
            delays = delay_steps(self.link.frequencies, oversampling)[:, None]
        return WaveGrid(self, (delays, _steps(self.link.tx, oversampling), _steps(self.link.rx, oversampling)))

    def columns(self, phases: Tensor) -> ColumnCovariance:
        """A column of h for each wave and pair of polarisations: phases [batch, K, D] -> K·P columns."""
        delay, tx, rx = self._ramps(phases)
        return ColumnCovariance(delay.repeat_interleave(self.gains, 2), _products(*self._ports(tx, rx)))

    def tangents(self, phases: Tensor, gains: Tensor) -> ColumnCovariance:
        """Derivatives of h along the phases: phases [batch, K, D], gains [batch, K, P] -> D·K columns, by axis."""
        return self._derivatives(phases, gains, None)

    def seen(self, phi: LinearMap, phases: Tensor) -> ColumnCovariance:
        """`columns` as they appear in y. phi: Φ of one subcarrier."""
        delay, tx, rx = self._ramps(phases)
        return ColumnCovariance(delay.repeat_interleave(self.gains, 2), through(phi, *self._ports(tx, rx)))

    def tangents_seen(self, phi: LinearMap, phases: Tensor, gains: Tensor) -> ColumnCovariance:
        """`tangents` as they appear in y. phi: Φ of one subcarrier."""
        return self._derivatives(phases, gains, phi)

    def _derivatives(self, phases: Tensor, gains: Tensor, phi: LinearMap | None) -> ColumnCovariance:
        delay, tx, rx = self._ramps(phases)
        delay_place, tx_place, rx_place = (1j * place.to(delay) for place in self.places)
        sent = [tx, *(axis[:, None] * tx for axis in tx_place.unbind(1)), *[tx] * rx_place.shape[1]]
        received = [rx, *[rx] * tx_place.shape[1], *(axis[:, None] * rx for axis in rx_place.unbind(1))]
        ports = self._ports(torch.cat(sent, 2), torch.cat(received, 2))
        space = _products(*ports) if phi is None else through(phi, *ports)
        space = space.reshape(*space.shape[:2], len(sent), *gains.shape[1:])
        wave, *angles = (space * gains[:, None, None]).sum(-1).unbind(2)
        delays = [axis[:, None] * delay for axis in delay_place.unbind(1)]
        return ColumnCovariance(
            torch.cat([*delays, *[delay] * len(angles), delay[:, :, :0]], 2),
            torch.cat([*[wave] * len(delays), *angles, wave[:, :, :0]], 2),
        )

    def _ramps(self, phases: Tensor) -> list[Tensor]:
        """exp(j ω·place) of delay, transmitter and receiver: [batch, elements, K] each."""
        parts = phases.split([place.shape[1] for place in self.places], 2)
        angles = [place.to(part) @ part.mT for place, part in zip(self.places, parts, strict=True)]
        return [torch.polar(torch.ones_like(angle), angle) for angle in angles]

    def _ports(self, tx: Tensor, rx: Tensor) -> tuple[Tensor, Tensor]:
        """e_p ⊗ a_t and e_q ⊗ a_r for each wave and each pair (p, q): [batch, elements, K] -> [batch, ports, K·P] each."""
        if self.gains == 1:
            return tx, rx
        (pol_tx, pol_rx), (batch, _, count) = self.polarisations, tx.shape
        sent = torch.einsum("pu,bnk->bpnku", torch.eye(pol_tx, dtype=tx.dtype, device=tx.device), tx)
        received = torch.einsum("qv,bnk->bqnkv", torch.eye(pol_rx, dtype=rx.dtype, device=rx.device), rx)
        sent = sent[..., None].expand(-1, -1, -1, -1, -1, pol_rx)
        received = received[..., None, :].expand(-1, -1, -1, -1, pol_tx, -1)
        return sent.reshape(batch, -1, count * self.gains), received.reshape(batch, -1, count * self.gains)


@dataclass(frozen=True)
class WaveGrid:
    """Where on the grid of `angular_dictionary` a search for continuous waves begins."""

    waves: PlaneWaves
    phases: tuple[Tensor, Tensor, Tensor]
    """Of delays, departures and arrivals: [points, axes] each."""

    def peak(self, correlation: Tensor) -> Tensor:
        """The phases of the wave with the largest sum of |correlation|² over polarisations: [batch, atoms] -> [batch, D]."""
        delays, departures, arrivals = (len(phase) for phase in self.phases)
        pol_tx, pol_rx = self.waves.polarisations
        power = correlation.abs().square().reshape(-1, delays, pol_tx, departures, pol_rx, arrivals).sum((2, 4))
        best = power.flatten(1).argmax(1)
        place = (best // (departures * arrivals), best // arrivals % departures, best % arrivals)
        return torch.cat([phase.to(best.device)[at] for phase, at in zip(self.phases, place, strict=True)], 1)


@dataclass(frozen=True)
class Target:
    """What waves are fitted to."""

    y: Tensor
    """[batch, m], complex128."""
    phi: LinearMap
    """Φ of one subcarrier, complex128."""
    ridge: Tensor
    """[batch]."""

    def select(self, index: Tensor) -> Self:
        """The chosen samples."""
        return type(self)(self.y[index], self.phi.select(index), self.ridge[index])


@dataclass(frozen=True)
class Fit:
    """Waves with the gains that fit y best, and how the fit changes with the phases. K waves, C = K·D."""

    phases: Tensor
    """[batch, K, D]."""
    gains: Tensor
    """[batch, K, P]."""
    explained: Tensor
    """‖y‖² - ‖r‖²: [batch]."""
    score: Tensor
    """What fits are compared by, ‖y‖² - ‖r‖² - ridge·‖gains‖²: [batch]."""
    slope: Tensor
    """Re(Bᴴr), by axis: [batch, C]."""
    curvature: Tensor
    """Re(BᴴP⊥B): [batch, C, C]."""

    @classmethod
    def of_nothing(cls, waves: PlaneWaves, y: Tensor) -> Self:
        """No waves at all. y: [batch, m]."""
        batch, real = len(y), y.real
        phases, gains = real.new_zeros(batch, 0, waves.coordinates), y.new_zeros(batch, 0, waves.gains)
        none = real.new_zeros(batch)
        return cls(phases, gains, none, none, real.new_zeros(batch, 0), real.new_zeros(batch, 0, 0))

    def stepped(self, damping: Tensor) -> Tensor:
        """The phases after a Levenberg–Marquardt step. damping: μ, [batch]."""
        diagonal = self.curvature.diagonal(dim1=1, dim2=2)
        least = torch.finfo(diagonal.dtype).eps * diagonal.amax(1, keepdim=True) + torch.finfo(diagonal.dtype).tiny
        system = self.curvature + torch.diag_embed(damping[:, None] * diagonal + least)
        step = torch.cholesky_solve(self.slope[..., None], cholesky(system))[..., 0]
        batch, count, axes = self.phases.shape
        return self.phases + step.reshape(batch, axes, count).mT

    def better_of(self, other: Self) -> tuple[Self, Tensor]:
        """For each sample the one with the higher score, and whether it is the other."""
        better = other.score > self.score
        kept = {}
        for field in fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            kept[field.name] = torch.where(better.view(-1, *[1] * (mine.ndim - 1)), theirs, mine)
        return type(self)(**kept), better

    def select(self, index: Tensor) -> Self:
        """The fits of the chosen samples."""
        return type(self)(**{field.name: getattr(self, field.name)[index] for field in fields(self)})


def fitted(waves: PlaneWaves, target: Target, phases: Tensor) -> Fit:
    """The best gains of waves with these phases: [batch, K, D]."""
    batch, count, _ = phases.shape
    columns = waves.seen(target.phi, phases)
    gram, matched = columns.inner_products(), columns.matched_with(target.y)
    factor = cholesky(gram + torch.diag_embed(_LEAST_RIDGE * gram.diagonal(dim1=1, dim2=2) + target.ridge[:, None]))
    gains = torch.cholesky_solve(matched[..., None], factor)[..., 0]
    score = (matched.conj() * gains).real.sum(1)
    explained = score + target.ridge * squared_modulus(gains).sum(1)
    by_wave = gains.reshape(batch, count, -1)
    tangents = waves.tangents_seen(target.phi, phases, by_wave)
    across = (columns.delay.mH @ tangents.delay) * (columns.space.mH @ tangents.space)
    white = torch.linalg.solve_triangular(factor, across, upper=False)
    curvature = (tangents.inner_products() - white.mH @ white).real
    slope = (tangents.matched_with(target.y) - (across.mH @ gains[..., None])[..., 0]).real
    return Fit(phases, by_wave, explained, score, slope, curvature)


def refined(waves: PlaneWaves, target: Target, phases: Tensor, steps: int) -> Fit:
    """The fit after so many Levenberg–Marquardt steps of all phases together; a step that does not help is taken back."""
    now = fitted(waves, target, phases)
    damping = torch.full_like(now.score, _FIRST_DAMPING)
    for _ in range(steps if waves.coordinates else 0):
        now, better = now.better_of(fitted(waves, target, now.stepped(damping)))
        damping = damping * torch.where(better, _LESS, _MORE)
    return now


def error_variances(
    waves: PlaneWaves, phi: LinearMap, fit: Fit, doubts: tuple[Tensor, Tensor], probes: LinearMap | None
) -> Tensor:
    """Variances of h, or of probes applied to h, over that of an entry of y, to first order in gains and phases.

    phi: Φ of one subcarrier. doubts: the variance of an entry of y over that which a gain [batch, K, P] and a phase [batch]
    have before y is seen. With T the derivatives of h along Re g, Im g and ω: ½ diag(T Re((ΦT)ᴴΦT + doubts)⁻¹Tᵀ).
    """
    seen = _real_derivatives(waves.seen(phi, fit.phases), waves.tangents_seen(phi, fit.phases, fit.gains))
    whole = _real_derivatives(waves.columns(fit.phases), waves.tangents(fit.phases, fit.gains)).columns_matrix()
    of_gains, of_phases = doubts
    axes = fit.phases.shape[1] * fit.phases.shape[2]
    ridge = torch.cat([of_gains.flatten(1), of_gains.flatten(1), of_phases[:, None].expand(-1, axes)], 1)
    factor = cholesky(seen.inner_products().real + torch.diag_embed(ridge))
    along = whole if probes is None else probes.cast(whole.dtype).apply_block(whole)
    parts = torch.cat([along.real, along.imag], 1).mT
    white: Tensor = torch.linalg.solve_triangular(factor, parts, upper=False)
    return white.square().sum(1).reshape(len(white), 2, -1).sum(1) / 2


def _real_derivatives(columns: ColumnCovariance, tangents: ColumnCovariance) -> ColumnCovariance:
    """Along the real parts of the gains, their imaginary parts, and the phases."""
    return ColumnCovariance(
        torch.cat([columns.delay, columns.delay, tangents.delay], 2),
        torch.cat([columns.space, 1j * columns.space, tangents.space], 2),
    )


def through(phi: LinearMap, tx: Tensor, rx: Tensor) -> Tensor:
    """Φ(t_c ⊗ r_c) for every c. tx: [batch, N_t, C], rx: [batch, N_r, C] -> [batch, m, C]."""
    return phi.apply_products(tx, rx) if isinstance(phi, BeamformingMap) else phi.apply_block(_products(tx, rx))


def _products(tx: Tensor, rx: Tensor) -> Tensor:
    """t_c ⊗ r_c: [batch, N_t, C], [batch, N_r, C] -> [batch, N_t·N_r, C]."""
    return (tx[:, :, None] * rx[:, None]).flatten(1, 2)


def _subcarriers(frequencies: tuple[float, ...] | None) -> Tensor:
    """-f in units of the spacing, from the middle: [S, 1], or [1, 0] for one subcarrier. Phases are 2π spacing·delay."""
    if frequencies is None or len(frequencies) == 1:
        return torch.zeros(1, 0, dtype=torch.float64)
    band = -torch.tensor(frequencies, dtype=torch.float64)[:, None] / (frequencies[1] - frequencies[0])
    return band - band.mean()


def _elements(array: Array) -> Tensor:
    """Column and row of every element from the middle, axes of one element left out: [elements, axes]."""
    index = torch.cartesian_prod(torch.arange(array.columns), torch.arange(array.rows)).double()
    live = [axis for axis, size in enumerate((array.columns, array.rows)) if size > 1]
    return (index - index.mean(0))[:, live]


def _steps(array: Array, oversampling: float) -> Tensor:
    """The phases of `angular_grid`, axes of one element left out: [points, axes]."""
    sizes = [size for size in (array.columns, array.rows) if size > 1]
    axes = [phase_steps(size, oversampling) for size in sizes]
    if not axes:
        return torch.zeros(1, 0, dtype=torch.float64)
    return torch.cartesian_prod(*axes).reshape(-1, len(axes))
