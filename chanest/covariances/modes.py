"""Covariances of wideband channels in delay modes: a few orthonormal directions of the subcarriers that carry all power.

The delays of a scenario span few of the S dimensions of the subcarriers (ten of 64 for 0.9 µs and 7.7 MHz). With U [S, D]
their basis, R = (U ⊗ I) R' (U ⊗ I)ᴴ. A front end that serves every subcarrier alike, Φ = I ⊗ Φ₁, commutes with it: y is
projected on U, its noise stays white, and all that follows has D in place of S.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from chanest.covariances.kronecker import KroneckerCovariance
from chanest.frontend import BeamformingMap
from chanest.problem import ChannelProblem
from vlista_core.estimate import Measurement
from vlista_core.gaussian import LEAST_SHARE, Covariance, Posterior, condition
from vlista_core.linops import LinearMap
from vlista_core.prox import squared_modulus

_OUTSIDE = 1e-4
"""Share of the power of the channels that may lie outside the delay modes together: 40 dB below the channel."""
_BLOCK = 100


def delay_modes(
    problem: ChannelProblem, samples: int, *, seed: int, most_outside: float = _OUTSIDE
) -> tuple[Tensor, Tensor]:
    """The main directions of the subcarriers over training channels, and the power of each: [S, D] complex64, and [D].

    The powers, the strongest first, are those of E hhᴴ over the subcarriers, with S for their sum.
    most_outside: share of the power that the modes may leave out together.
    """
    subcarriers = problem.subcarriers
    total = torch.zeros(subcarriers, subcarriers, dtype=torch.complex128)
    for start in range(0, samples, _BLOCK):
        h = problem.channels(min(_BLOCK, samples - start), seed=seed, split="train", start=start)
        grid = h.unflatten(1, (subcarriers, -1)).transpose(0, 1).flatten(1)
        total += grid @ grid.mH
    values, vectors = torch.linalg.eigh(total)
    values, vectors = values.flip(0).clamp_min(0.0), vectors.flip(1)
    outside = 1.0 - values.cumsum(0) / values.sum()
    count = int((outside > most_outside).sum()) + 1
    return vectors[:, :count].to(torch.complex64), (values[:count] * subcarriers / values.sum()).float()


def check_modes(modes: int, subcarriers: int) -> None:
    """ValueError where there are more delay modes than subcarriers."""
    if modes > subcarriers:
        raise ValueError(f"modes of the delay must be at most the {subcarriers} subcarriers, got {modes}")


@dataclass(frozen=True, eq=False)
class ModesMap(LinearMap):
    """U ⊗ I: what the entries of a channel in delay modes are on the subcarriers."""

    modes: Tensor
    """U: [S, D], or [batch or 1, S, D]."""
    antennas: int
    """Entries of a channel on one subcarrier, N_t·N_r."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.modes.shape[-2] * self.antennas, self.modes.shape[-1] * self.antennas

    @property
    def batch(self) -> int | None:
        return len(self.modes) if self.modes.ndim == 3 and len(self.modes) > 1 else None

    def apply(self, x: Tensor) -> Tensor:
        self._check_input("x", x, self.shape[1])
        return (self.modes @ x.reshape(len(x), -1, self.antennas)).flatten(1)

    def adjoint(self, y: Tensor) -> Tensor:
        self._check_input("y", y, self.shape[0])
        return (self.modes.mH @ y.reshape(len(y), -1, self.antennas)).flatten(1)

    def materialize(self) -> Tensor:
        identity = torch.eye(self.antennas, dtype=self.dtype, device=self.device)
        modes = self.modes.reshape(-1, *self.modes.shape[-2:])
        return torch.einsum("bsd,ij->bsidj", modes, identity).reshape(-1, *self.shape)


@dataclass(frozen=True, eq=False)
class ModeCovariance(Covariance):
    """R = (U ⊗ I) R' (U ⊗ I)ᴴ for orthonormal modes U."""

    modes: Tensor
    """U: [batch or 1, S, D]."""
    within: Covariance
    """R', of D·n/S entries."""

    @property
    def length(self) -> int:
        return self.map.shape[0]

    @property
    def batch(self) -> int | None:
        return self.within.batch or (len(self.modes) if len(self.modes) > 1 else None)

    @property
    def map(self) -> ModesMap:
        """U ⊗ I."""
        return ModesMap(self.modes, self.within.length // self.modes.shape[2])

    def select(self, index: Tensor | slice) -> Self:
        modes = self.modes if len(self.modes) == 1 else self.modes[index]
        return replace(self, modes=modes, within=self.within.select(index))

    def apply(self, x: Tensor) -> Tensor:
        self._check_input("x", x, self.length)
        return self.map.apply(self.within.apply(self.map.adjoint(x)))

    def seen(self, phi: LinearMap) -> Tensor:
        return self.within.seen(phi @ self.map)

    def mixture(self, weights: Tensor) -> "ModeCovariance":
        return ModeCovariance(self.modes, self.within.mixture(weights))

    def materialize(self) -> Tensor:
        return self.map.apply_block(self.map.apply_block(self.within.materialize()).mH.contiguous()).mH

    def variances(self) -> Tensor:
        count, antennas = self.modes.shape[2], self.map.antennas
        blocks = self.within.materialize().unflatten(2, (count, antennas)).unflatten(1, (count, antennas))
        return _on_subcarriers(self.modes, blocks.diagonal(dim1=2, dim2=4).permute(0, 3, 1, 2))

    def posterior(self, measured: Measurement, probes: LinearMap | None) -> "ModePosterior | None":
        """Through the modes of y, where every subcarrier is measured alike."""
        phi, subcarriers = measured.phi, self.modes.shape[1]
        if not _serves_alike(phi, subcarriers):
            return None
        inner = in_modes(measured, self.modes)
        found = condition(self.within, inner, None if probes is None else probes @ self.map)
        return ModePosterior(
            self, measured, found.factor, probes, found, ModesMap(self.modes, phi.shape[0] // subcarriers)
        )


def in_modes(measured: Measurement, modes: Tensor) -> Measurement:
    """The measurement of h' where h = (U ⊗ I) h': that of the modes of y where all subcarriers are measured alike.

    modes: U, [S, D] or [batch or 1, S, D].
    """
    phi, (subcarriers, count) = measured.phi, modes.shape[-2:]
    if not _serves_alike(phi, subcarriers):
        return Measurement(measured.y, phi @ ModesMap(modes, phi.shape[1] // subcarriers), measured.noise_var)
    assert isinstance(phi, BeamformingMap)
    y = ModesMap(modes, phi.shape[0] // subcarriers).adjoint(measured.y)
    return Measurement(y, phi.on_modes(count), measured.noise_var)


def _serves_alike(phi: LinearMap, subcarriers: int) -> bool:
    return isinstance(phi, BeamformingMap) and phi.subcarriers == subcarriers


@dataclass(frozen=True, eq=False)
class ModePosterior(Posterior):
    """The posterior of the modes, and the noise beside them: C = (U ⊗ I) C' (U ⊗ I)ᴴ + σ²(I - UUᴴ ⊗ I)."""

    prior: ModeCovariance
    inner: Posterior
    """Of the modes."""
    seen: ModesMap
    """U ⊗ I in the measurement."""

    @cached_property
    def whitened(self) -> Tensor:
        return self.solve(self.measured.y)

    @cached_property
    def mean(self) -> Tensor:
        return self.inner.mean if self.probes is not None else self.prior.map.apply(self.inner.mean)

    @cached_property
    def variance(self) -> Tensor:
        if self.probes is not None:
            return self.inner.variance
        count, antennas = self.prior.modes.shape[2], self.prior.map.antennas
        prior, phi = self.prior.within.materialize(), self.inner.measured.phi
        white = self.inner.whiten(phi.apply_block(prior)).unflatten(2, (count, antennas))
        before = prior.unflatten(2, (count, antennas)).unflatten(1, (count, antennas))
        known = torch.einsum("bmki,bmli->bikl", white.conj(), white)
        between = before.diagonal(dim1=2, dim2=4).permute(0, 3, 1, 2) - known
        left = _on_subcarriers(self.prior.modes, between).clamp_min(0.0)
        return left.maximum(LEAST_SHARE * left.mean(1, keepdim=True)).expand(len(self.measured.y), -1)

    @cached_property
    def log_evidence(self) -> Tensor:
        y, noise_var = self.measured.y, self.measured.noise_var
        beside = squared_modulus(y).sum(1) - squared_modulus(self.inner.measured.y).sum(1)
        count = y.shape[1] - self.inner.measured.y.shape[1]
        return self.inner.log_evidence - beside.clamp_min(0.0) / noise_var - count * noise_var.log()

    @cached_property
    def precision(self) -> Tensor:
        identity = torch.eye(self.measured.y.shape[1], dtype=self.measured.y.dtype, device=self.measured.y.device)
        basis = self.seen.materialize()
        beside = (identity - basis @ basis.mH) / self.measured.noise_var[:, None, None]
        return basis @ self.inner.precision @ basis.mH + beside

    def solve(self, right: Tensor) -> Tensor:
        within = self.seen.adjoint(right)
        beside = (right - self.seen.apply(within)) / self.measured.noise_var[:, None]
        return self.seen.apply(self.inner.solve(within)) + beside

    def whiten(self, block: Tensor) -> Tensor:
        raise ValueError("a posterior in delay modes whitens no block of the subcarriers; ask it for `variance`")


@dataclass(frozen=True, eq=False)
class SeparableCovariance(Covariance):
    """R' = diag(λ) ⊗ R₁ over delay modes: each is a narrowband channel of its own power, none knows of the others."""

    powers: Tensor
    """λ: [1, D]."""
    space: Covariance
    """R₁, of one subcarrier."""

    @property
    def length(self) -> int:
        return self.powers.shape[1] * self.space.length

    @property
    def batch(self) -> int | None:
        return self.space.batch

    @property
    def dtype(self) -> torch.dtype:
        return self.space.dtype

    def select(self, index: Tensor | slice) -> Self:
        return replace(self, space=self.space.select(index))

    def apply(self, x: Tensor) -> Tensor:
        self._check_input("x", x, self.length)
        (_, count), parts = self.powers.shape, x.reshape(-1, self.space.length)
        space = self.space.select(torch.arange(len(x), device=x.device).repeat_interleave(count))
        seen: Tensor = space.apply(parts).unflatten(0, (-1, count))
        return (self.powers[..., None] * seen).flatten(1)

    def blocks_seen(self, phi: LinearMap) -> Tensor | None:
        block, count = phi.blocks()
        if count != self.powers.shape[1]:
            return None
        return self.powers[:, :, None, None] * self.space.seen(block)[:, None]

    def mixture(self, weights: Tensor) -> "SeparableCovariance":
        return SeparableCovariance(self.powers, self.space.mixture(weights))

    def variances(self) -> Tensor:
        return (self.powers[:, :, None] * self.space.variances()[:, None]).flatten(1)

    def materialize(self) -> Tensor:
        diagonal = torch.diag_embed(self.powers[0]).to(self.dtype)
        return torch.einsum("kl,bmn->bkmln", diagonal, self.space.materialize()).flatten(3).flatten(1, 2)


@dataclass(frozen=True, eq=False)
class DecoupledCovariance(Covariance):
    """R' = Σ_p diag(D_p) ⊗ T_p ⊗ S_p: what a Kronecker sum says of each delay mode by itself."""

    joint: KroneckerCovariance
    """With D_p as `delay`."""

    @property
    def length(self) -> int:
        return self.joint.length

    @property
    def batch(self) -> int | None:
        return self.joint.batch

    @property
    def powers(self) -> Tensor:
        """Of each part in each mode: [batch or 1, D, parts]."""
        assert self.joint.delay is not None
        return self.joint.delay.diagonal(dim1=2, dim2=3).mT

    def select(self, index: Tensor | slice) -> Self:
        return replace(self, joint=self.joint.select(index))

    def apply(self, x: Tensor) -> Tensor:
        self._check_input("x", x, self.length)
        powers = self.powers
        grid = x.reshape(len(x), powers.shape[1], 1, self.joint.tx.shape[3], self.joint.rx.shape[3])
        terms = self.joint.tx[:, None] @ grid @ self.joint.rx[:, None].mT
        return (powers[..., None, None] * terms).sum(2).flatten(1)

    def blocks_seen(self, phi: LinearMap) -> Tensor | None:
        block, count = phi.blocks()
        if not isinstance(block, BeamformingMap) or count != self.powers.shape[1]:
            return None
        terms = self.joint.terms_seen(block)
        blocks: Tensor = (self.powers @ terms.flatten(2)).unflatten(2, terms.shape[2:])
        return blocks

    def mixture(self, weights: Tensor) -> "DecoupledCovariance":
        return DecoupledCovariance(self.joint.mixture(weights))

    def materialize(self) -> Tensor:
        powers = torch.diag_embed(self.powers.mT)
        return KroneckerCovariance(self.joint.tx, self.joint.rx, powers).materialize()


def _on_subcarriers(modes: Tensor, between: Tensor) -> Tensor:
    """diag(U C Uᴴ) of every antenna: [batch, S·antennas].

    modes: U, [batch or 1, S, D], between: C, [batch, antennas, D, D].
    """
    turned = modes[:, None] @ between @ modes[:, None].mH
    return turned.diagonal(dim1=2, dim2=3).real.mT.flatten(1)
