"""The flat front end as a linear map: T pilots, each a transmit beam f_t and a receive combiner W_t with N_RF chains.

y_t = W_tᴴ(H f_t + n_t). As a map of vec(H) this is Fᵀ ⊗ Wᴴ pilot by pilot, which is never formed. The noise after
combining is coloured, σ² W_tᴴW_t; whitening folds the inverse Cholesky factor into the combiner once.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from chanest.dictionaries import KroneckerMap
from chanest.frontend.base import FrontEnd
from chanest.frontend.combining import whitened_pilots, whitened_weights
from vlista_core.linalg import cholesky
from vlista_core.linops import LinearMap


@dataclass(frozen=True, eq=False)
class BeamformingMap(FrontEnd):
    """h -> y, h of one snapshot and ordered as `chanest.frontend.base` says; y runs pilot by pilot, chain by chain.

    With S subcarriers the same beams serve each: input k·N_r·N_t + t·N_r + r, output k·T·N_RF + pilot·N_RF + chain.
    `BeamformingMap.of` makes one from beams and combiners.
    """

    transmit: Tensor
    """f_t as columns: [batch, N_t, T]."""
    weights: Tensor | None
    """What is applied: W_t, or W_t L_t⁻ᴴ after whitening, [batch, T, N_r, N_RF]; None for a fully digital receiver, W = I."""
    factor: Tensor | None
    """L_t, lower Cholesky factor of W_tᴴW_t: [batch, T, N_RF, N_RF]; None for W = I."""
    antennas: int
    """N_r."""
    whiten: bool = True
    """Whether `weights` are whitened."""
    subcarriers: int = 1

    @classmethod
    def of(
        cls,
        transmit: Tensor,
        combiner: Tensor | None = None,
        *,
        antennas: int = 0,
        whiten: bool = True,
        subcarriers: int = 1,
    ) -> "BeamformingMap":
        """From beams [batch, N_t, T] and combiners W_t [batch, T, N_r, N_RF]; None is a digital receiver of `antennas`."""
        _check_beams(transmit, combiner, antennas)
        if combiner is None:
            return cls(transmit, None, None, antennas, whiten, subcarriers)
        factor = cholesky(combiner.mH @ combiner)
        made = cls(transmit, combiner, factor, combiner.shape[2], False, subcarriers)
        return made.whitened() if whiten else made

    def whitened(self) -> "BeamformingMap":
        if self.whiten or self.weights is None or self.factor is None:
            return self
        return replace(self, weights=whitened_weights(self.weights, self.factor), whiten=True)

    def whitened_output(self, y: Tensor) -> Tensor:
        if self.whiten or self.factor is None:
            return y
        return whitened_pilots(y, self.factor[:, None], self.subcarriers, self.pilots)

    def first_pilots(self, count: int) -> "BeamformingMap":
        weights, factor = (None if each is None else each[:, :count] for each in (self.weights, self.factor))
        return replace(self, transmit=self.transmit[:, :, :count], weights=weights, factor=factor)

    def one_subcarrier(self) -> "BeamformingMap":
        """Φ₁ of Φ = I_S ⊗ Φ₁: what the beams measure of each subcarrier."""
        return replace(self, subcarriers=1)

    def blocks(self) -> tuple[LinearMap, int]:
        return self.one_subcarrier(), self.subcarriers

    def on_modes(self, count: int) -> "BeamformingMap":
        """Φ in `count` delay modes in place of the subcarriers: I ⊗ Φ₁ commutes with a change of their basis."""
        return replace(self, subcarriers=count)

    @property
    def pilots(self) -> int:
        return self.transmit.shape[2]

    @property
    def arriving(self) -> int:
        return self.subcarriers * self.pilots * self.antennas

    @property
    def chains(self) -> int:
        """Outputs of one pilot: N_RF, or N_r for a fully digital receiver."""
        return self.antennas if self.weights is None else self.weights.shape[3]

    @property
    def shape(self) -> tuple[int, int]:
        measured, unknown = self.pilots * self.chains, self.transmit.shape[1] * self.antennas
        return self.subcarriers * measured, self.subcarriers * unknown

    @property
    def batch(self) -> int:
        return self.transmit.shape[0]

    def apply(self, x: Tensor) -> Tensor:
        self._check_input("x", x, self.shape[1])
        return self._forward(x.reshape(self.batch, self.subcarriers, -1, self.antennas)).flatten(1)

    def adjoint(self, y: Tensor) -> Tensor:
        self._check_input("y", y, self.shape[0])
        chains = y.reshape(self.batch, self.subcarriers, self.pilots, self.chains)
        spread = chains if self.weights is None else (chains.transpose(1, 2) @ self.weights.mT).transpose(1, 2)
        return _on_each(self.transmit.conj(), spread).flatten(1)

    def apply_block(self, x: Tensor) -> Tensor:
        count = x.shape[2]
        columns = x.expand(self.batch, -1, -1).mT.reshape(self.batch, count * self.subcarriers, -1, self.antennas)
        return self._forward(columns).reshape(self.batch, count, -1).mT

    def apply_products(self, tx: Tensor, rx: Tensor) -> Tensor:
        """Φ₁(t_c ⊗ r_c) of one subcarrier, pilot by pilot fᵀt_c · Wᴴr_c.

        tx: [batch, N_t, C], rx: [batch, N_r, C] -> [batch, T·N_RF, C].
        """
        sent = (self.transmit.mT @ tx)[:, :, None]
        received = rx[:, None] if self.weights is None else self.weights.mH @ rx[:, None]
        return (sent * received).flatten(1, 2)

    def _column_norms(self) -> Tensor:
        power = self.transmit.abs().square()
        if self.weights is None:
            norms = power.sum(2).sqrt()[:, :, None].expand(-1, -1, self.antennas)
        else:
            norms = (power @ self.weights.abs().square().sum(3)).sqrt()
        return norms.flatten(1).repeat(1, self.subcarriers)

    def column_norms_after(self, inner: LinearMap) -> Tensor | None:
        """Of a Kronecker dictionary: ‖Φ(a_t ⊗ a_r)‖² = Σ_pilots |fᵀa_t|²·‖Wᴴa_r‖², without a product of the two."""
        if not isinstance(inner, KroneckerMap):
            return None
        sent = (inner.tx.mT @ self.transmit).abs().square()
        if self.weights is None:
            received = inner.rx.abs().square().sum(0).expand(self.batch, self.pilots, -1)
        else:
            received = (self.weights.mH @ inner.rx).abs().square().sum(2)
        norms = (sent @ received).sqrt().flatten(1)
        if inner.delay is None:
            return norms
        lengths: Tensor = torch.linalg.vector_norm(inner.delay, dim=0)
        return (lengths[:, None] * norms[:, None, :]).flatten(1)

    def materialize_after(self, inner: LinearMap) -> Tensor | None:
        """Of a Kronecker dictionary of one subcarrier: pilot by pilot FᵀA_t ⊗ WᴴA_r."""
        if not isinstance(inner, KroneckerMap) or inner.delay is not None or inner.batch is not None:
            return None
        sent = (self.transmit.mT @ inner.tx)[:, :, None, :, None]
        received = inner.rx if self.weights is None else self.weights.mH @ inner.rx
        blocks = sent * received.expand(self.batch, self.pilots, -1, -1)[:, :, :, None]
        return blocks.flatten(3).flatten(1, 2)

    def gram(self) -> Tensor:
        """A Aᴴ without A: the entry of chains c of pilot t and c' of t' is (f_tᵀf_t'*)·(w_tcᴴ w_t'c')."""
        beams = self.transmit.mT @ self.transmit.conj()
        if self.weights is None:
            one = torch.einsum("bst,rc->bsrtc", beams, self._identity(self.antennas))
        else:
            columns = self.weights.movedim(2, 1).flatten(2)
            shape = (self.batch, self.pilots, self.chains, self.pilots, self.chains)
            one = (columns.mH @ columns).reshape(shape) * beams[:, :, None, :, None]
        return self._on_every_subcarrier(one.reshape(self.batch, self.pilots * self.chains, -1))

    def combine(self, received: Tensor) -> Tensor:
        return self._combined(received.reshape(self.batch, self.subcarriers, self.pilots, self.antennas)).flatten(1)

    def noise_covariance(self) -> Tensor:
        """Covariance of the output noise over σ², a block per pilot: [batch, T, N_RF, N_RF]; I after whitening."""
        if self.factor is not None and not self.whiten:
            return self.factor @ self.factor.mH
        return self._identity(self.chains).expand(self.batch, self.pilots, -1, -1)

    def materialize(self) -> Tensor:
        digital = self._identity(self.antennas).expand(1, self.pilots, -1, -1)
        weights = digital if self.weights is None else self.weights.conj()
        one = torch.einsum("bnt,btrc->btcnr", self.transmit, weights.expand(self.batch, -1, -1, -1))
        return self._on_every_subcarrier(one.reshape(self.batch, self.pilots * self.chains, -1))

    def _identity(self, size: int) -> Tensor:
        return torch.eye(size, dtype=self.dtype, device=self.device)

    def _on_every_subcarrier(self, one: Tensor) -> Tensor:
        """I_S ⊗ one: [batch, m, n] -> [batch, S·m, S·n]."""
        if self.subcarriers == 1:
            return one
        rows, columns = (self.subcarriers * size for size in one.shape[1:])
        blocks = torch.einsum("kl,bmn->bkmln", self._identity(self.subcarriers), one)
        return blocks.reshape(self.batch, rows, columns)

    def _forward(self, h: Tensor) -> Tensor:
        """H f_t, then W_tᴴ. h: [batch, k, N_t, N_r] -> [batch, k, T, N_RF]."""
        return self._combined(_on_each(self.transmit.mT, h))

    def _combined(self, arriving: Tensor) -> Tensor:
        """[batch, k, T, N_r] -> [batch, k, T, N_RF]."""
        if self.weights is None:
            return arriving
        return (arriving.transpose(1, 2) @ self.weights.conj()).transpose(1, 2)


def _on_each(matrix: Tensor, columns: Tensor) -> Tensor:
    """A on each of k: [batch, a, b], [batch, k, b, r] -> [batch, k, a, r], as one product and not k small ones."""
    if columns.shape[1] == 1:
        return matrix[:, None] @ columns
    side_by_side = columns.transpose(1, 2).flatten(2)
    product: Tensor = (matrix @ side_by_side).unflatten(2, columns.shape[1::2])
    return product.transpose(1, 2)


def _check_beams(transmit: Tensor, combiner: Tensor | None, antennas: int) -> None:
    if transmit.ndim != 3 or not transmit.is_complex():
        raise ValueError(f"transmit must be complex [batch, N_t, T], got {transmit.dtype} {[*transmit.shape]}")
    if combiner is None:
        if antennas < 1:
            raise ValueError(f"antennas must be the number of receive antennas without a combiner, got {antennas!r}")
        return
    if combiner.ndim != 4 or combiner.shape[0] != transmit.shape[0] or combiner.shape[1] != transmit.shape[2]:
        expected = f"[{transmit.shape[0]}, {transmit.shape[2]}, N_r, N_RF]"
        raise ValueError(f"combiner must have shape {expected} to match transmit, got {[*combiner.shape]}")
    receive, chains = combiner.shape[2:]
    if chains > receive:
        raise ValueError(f"combiner must have no more chains than antennas, got {chains} of {receive}")
    if combiner.dtype != transmit.dtype:
        raise ValueError(f"combiner and transmit must have the same dtype, got {combiner.dtype} and {transmit.dtype}")
    if antennas not in (0, receive):
        raise ValueError(f"antennas must be {receive} to match combiner, got {antennas}")
