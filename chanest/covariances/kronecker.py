"""R = Σ_k D_k ⊗ T_k ⊗ S_k: delay, transmit and receive covariances, as clusters give them; n × n is not formed."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from chanest.frontend import BeamformingMap
from vlista_core.estimate import Measurement
from vlista_core.gaussian import Covariance, Posterior
from vlista_core.linops import LinearMap

_LARGE = 512
"""Measurements from which on two eigen-decompositions of factors cost less than one Cholesky factor of the product."""


@dataclass(frozen=True, eq=False)
class KroneckerCovariance(Covariance):
    """A sum of Kronecker products, of each sample or (leading dimension 1) of all."""

    tx: Tensor
    """T_k: [batch or 1, terms, N_t, N_t]."""
    rx: Tensor
    """S_k: [batch or 1, terms, N_r, N_r]."""
    delay: Tensor | None = None
    """D_k: [batch or 1, terms, S, S]; None for one subcarrier."""

    @property
    def length(self) -> int:
        subcarriers = 1 if self.delay is None else self.delay.shape[2]
        return subcarriers * self.tx.shape[2] * self.rx.shape[2]

    def without_empty_terms(self) -> "KroneckerCovariance":
        """The same sum without the terms that are zero in every sample."""
        tx, rx = (torch.view_as_real(factor).flatten(2).any(2) for factor in (self.tx, self.rx))
        kept = (tx & rx).any(0)
        delay = None if self.delay is None else self.delay[:, kept]
        return KroneckerCovariance(self.tx[:, kept], self.rx[:, kept], delay)

    def joined(self, other: "KroneckerCovariance") -> "KroneckerCovariance":
        """The sum of two covariances of one subcarrier."""
        return KroneckerCovariance(torch.cat([self.tx, other.tx], 1), torch.cat([self.rx, other.rx], 1))

    def apply(self, x: Tensor) -> Tensor:
        self._check_input("x", x, self.length)
        grid = x.reshape(len(x), -1, 1, self.tx.shape[3], self.rx.shape[3])
        terms = self.tx[:, None] @ grid @ self.rx[:, None].mT
        if self.delay is not None:
            terms = torch.einsum("bkst,btknr->bsknr", self.delay, terms)
        return terms.sum(2).flatten(1)

    def seen(self, phi: LinearMap) -> Tensor:
        """Chains c of pilot t and c' of t' have Σ_k (f_tᵀT_k f_t'*)·(w_tcᴴ S_k w_t'c'); times D_k over subcarriers.

        The blocks of two subcarriers are mirrored, so that half of them are worked out.
        """
        subcarriers = 1 if self.delay is None else self.delay.shape[2]
        if not isinstance(phi, BeamformingMap) or phi.subcarriers != subcarriers:
            return super().seen(phi)
        if self.delay is None:
            return self._summed_over_terms(phi)
        terms, (first, second) = self.terms_seen(phi.one_subcarrier()), torch.tril_indices(subcarriers, subcarriers)
        blocks = self.delay[:, :, first, second].mT @ terms.flatten(2)
        size = terms.shape[2]
        whole = blocks.new_empty(len(blocks), subcarriers, size, subcarriers, size)
        for k, (i, j) in enumerate(zip(first.tolist(), second.tolist(), strict=True)):
            block: Tensor = blocks[:, k].unflatten(1, (size, size))
            whole[:, i, :, j] = block
            if i != j:
                whole[:, j, :, i] = block.mH
        return whole.flatten(3).flatten(1, 2)

    def terms_seen(self, phi: BeamformingMap) -> Tensor:
        """Φ₁(T_k ⊗ S_k)Φ₁ᴴ of one subcarrier, term by term: [batch, terms, m, m]."""
        terms, antennas = self.tx.shape[1:3]
        arriving: Tensor = (self.tx.flatten(1, 2) @ phi.transmit.conj()).unflatten(1, (terms, antennas))
        beams = phi.transmit[:, None].mT @ arriving
        received = self.rx[:, :, None, :, None, :]
        if phi.weights is not None:
            combiners = phi.weights.movedim(2, 1).flatten(2)[:, None]
            received = (combiners.mH @ self.rx @ combiners).reshape(-1, terms, *2 * phi.weights.shape[1::2])
        return (beams[:, :, :, None, :, None] * received).flatten(4).flatten(2, 3)

    def _summed_over_terms(self, phi: BeamformingMap) -> Tensor:
        """ΦRΦᴴ of one subcarrier: [batch, m, m]."""
        pilots, chains, size = phi.pilots, phi.chains, phi.pilots * phi.chains
        if phi.weights is not None:
            total = torch.zeros(phi.batch, size, size, dtype=self.tx.dtype, device=self.tx.device)
            for term in range(self.tx.shape[1]):
                one = KroneckerCovariance(self.tx[:, term : term + 1], self.rx[:, term : term + 1])
                total += one.terms_seen(phi)[:, 0]
            return total
        beams = phi.transmit[:, None].mT @ self.tx @ phi.transmit[:, None].conj()
        pairs = (beams.flatten(2).mT @ self.rx.flatten(2)).reshape(-1, pilots, pilots, chains, chains)
        return pairs.transpose(2, 3).reshape(-1, size, size)

    def posterior(self, measured: Measurement, probes: LinearMap | None) -> "KroneckerPosterior | None":
        """Of one product that a fully digital receiver sees: FᵀTF* ⊗ S is diagonal in the bases of its factors."""
        phi = measured.phi
        if not isinstance(phi, BeamformingMap) or phi.weights is not None or phi.subcarriers > 1:
            return None
        if self.tx.shape[1] > 1 or self.delay is not None or phi.shape[0] < _LARGE:
            return None
        beams = phi.transmit.mT @ self.tx[:, 0] @ phi.transmit.conj()
        sent, tx = torch.linalg.eigh(beams)
        received, rx = torch.linalg.eigh(self.rx[:, 0])
        values = (sent.clamp_min(0.0)[:, :, None] * received.clamp_min(0.0)[:, None, :]).flatten(1)
        return KroneckerPosterior(self, measured, values + measured.noise_var[:, None], probes, tx, rx)

    def mixture(self, weights: Tensor) -> "KroneckerCovariance":
        """As many terms as all members have together; the weights go to the receive factors."""
        delay = None if self.delay is None else self.delay.flatten(0, 1)[None]
        rx = weights[:, :, None, None, None].to(self.dtype) * self.rx
        return KroneckerCovariance(self.tx.flatten(0, 1)[None], rx.flatten(1, 2), delay)

    def materialize(self) -> Tensor:
        size = self.tx.shape[2] * self.rx.shape[2]
        if self.delay is None:
            return torch.einsum("bkij,bkrs->birjs", self.tx, self.rx).reshape(-1, size, size)
        whole = torch.einsum("bkde,bkij,bkrs->bdirejs", self.delay, self.tx, self.rx)
        return whole.reshape(-1, self.length, self.length)


@dataclass(frozen=True, eq=False)
class KroneckerPosterior(Posterior):
    """The posterior where C = (U ⊗ V) diag(c) (U ⊗ V)ᴴ; `factor` holds c: [batch, m]."""

    tx: Tensor
    """U: [batch, T, T]."""
    rx: Tensor
    """V: [batch, N_r, N_r]."""

    def solve(self, right: Tensor) -> Tensor:
        return self._turned(self._turned_back(right[:, None]) / self.factor[:, None])[:, 0]

    def whiten(self, block: Tensor) -> Tensor:
        """c^-½ (U ⊗ V)ᴴ times a block: as good a square root of C⁻¹ as a triangular one."""
        columns = block.mT.expand(len(self.factor), -1, -1)
        return (self._turned_back(columns) / self.factor.sqrt()[:, None]).mT

    @cached_property
    def log_evidence(self) -> Tensor:
        fit = (self.measured.y.conj() * self.whitened).real.sum(1)
        return -(fit + self.factor.log().sum(1))

    @cached_property
    def precision(self) -> Tensor:
        basis = torch.einsum("bij,brs->birjs", self.tx, self.rx).reshape(len(self.factor), *2 * self.factor.shape[1:])
        return (basis / self.factor[:, None]) @ basis.mH

    def _turned_back(self, vectors: Tensor) -> Tensor:
        """(U ⊗ V)ᴴ x. vectors: [batch, k, m] -> [batch, k, m]."""
        grid = vectors.reshape(*vectors.shape[:2], self.tx.shape[1], self.rx.shape[1])
        return (self.tx.mH[:, None] @ grid @ self.rx.conj()[:, None]).flatten(2)

    def _turned(self, vectors: Tensor) -> Tensor:
        """(U ⊗ V) x. vectors: [batch, k, m] -> [batch, k, m]."""
        grid = vectors.reshape(*vectors.shape[:2], self.tx.shape[1], self.rx.shape[1])
        return (self.tx[:, None] @ grid @ self.rx.mT[:, None]).flatten(2)
