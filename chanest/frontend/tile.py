"""One tile of a resource grid as a linear map: pilots on the same subcarriers in every snapshot and symbol of it."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from chanest.dictionaries import KroneckerMap
from chanest.frontend.combining import whitened_pilots, whitened_weights
from vlista_core.linops import LinearMap


@dataclass(frozen=True, eq=False)
class TileMap(LinearMap):
    """y = W_tᴴ Σ_u H_u F_ut x_ukt in G snapshots, on K subcarriers and in T symbols each, from h on these alone.

    Input ((g·K + k)·N_t + t)·N_r + r, output ((g·K + k)·T + symbol)·N_RF + chain. Nothing is formed but what each stream's
    beam makes of h.
    """

    sending: Tensor | None
    """Beams F_ut as rows: [batch, G, users, T, streams, N_u], streams of one user; None where streams are antennas."""
    values: Tensor | None
    """x_ukt: [batch or 1, G, K, T, users, streams]; None where a single stream sends ones."""
    weights: Tensor | None
    """W_t, or W_t L_t⁻ᴴ after whitening: [batch, G, T, N_r, N_RF]; None for a fully digital receiver."""
    factor: Tensor | None
    """L_t, lower Cholesky factor of W_tᴴW_t: [batch, G, T, N_RF, N_RF]."""
    antennas: int
    """N_r."""
    subcarriers: int
    """K."""
    whiten: bool = True

    @property
    def sizes(self) -> tuple[int, int, int, int, int, int]:
        """G, K, T, users, streams of a user, N_u."""
        if self.sending is not None:
            _, snapshots, users, symbols, streams, ports = self.sending.shape
        else:
            assert self.values is not None
            _, snapshots, _, symbols, users, streams = self.values.shape
            ports = streams
        return snapshots, self.subcarriers, symbols, users, streams, ports

    @property
    def chains(self) -> int:
        """N_RF, or N_r for a fully digital receiver."""
        return self.antennas if self.weights is None else self.weights.shape[4]

    @property
    def elements(self) -> int:
        """How many resource elements are measured."""
        snapshots, subcarriers, symbols = self.sizes[:3]
        return snapshots * subcarriers * symbols

    @property
    def shape(self) -> tuple[int, int]:
        snapshots, subcarriers, symbols, users, _, ports = self.sizes
        places = snapshots * subcarriers
        return places * symbols * self.chains, places * users * ports * self.antennas

    @property
    def batch(self) -> int | None:
        own = self.sending if self.sending is not None else self.weights
        return None if own is None else own.shape[0]

    def apply(self, x: Tensor) -> Tensor:
        self._check_input("x", x, self.shape[1])
        return self.apply_block(x[:, :, None])[:, :, 0]

    def apply_block(self, x: Tensor) -> Tensor:
        """The columns of a block are one more index, j."""
        snapshots, subcarriers, _, users, _, ports = self.sizes
        columns = x.mT.reshape(x.shape[0], x.shape[2], snapshots, subcarriers, users, ports, self.antennas)
        if self.batch is not None:
            columns = columns.expand(self.batch, *columns.shape[1:])
        return self._combined(self._arriving(columns)).flatten(2).mT

    def adjoint(self, y: Tensor) -> Tensor:
        self._check_input("y", y, self.shape[0])
        snapshots, subcarriers, symbols, users, streams, _ = self.sizes
        arriving = y.reshape(len(y), snapshots, subcarriers, symbols, self.chains)
        if self.weights is not None:
            arriving = torch.einsum("bgktc,bgtrc->bgktr", arriving, self.weights)
        if self.values is None:
            by_stream = arriving[:, :, :, None, :, None]
        elif self.sending is None:
            return torch.einsum("bgktr,bgktun->bgkunr", arriving, self.values.conj()).flatten(1)
        elif users * streams == 1:
            by_stream = (arriving * self.values[..., 0].conj())[:, :, :, None, :, None]
        else:
            by_stream = torch.einsum("bgktr,bgktup->bgkutpr", arriving, self.values.conj())
        assert self.sending is not None
        return torch.einsum("bgkutpr,bgutpn->bgkunr", by_stream, self.sending.conj()).flatten(1)

    def combine(self, received: Tensor) -> Tensor:
        """W_tᴴ r_t of what arrives at the antennas: [batch, elements·N_r] -> [batch, m]."""
        snapshots, subcarriers, symbols = self.sizes[:3]
        arriving = received.reshape(len(received), 1, snapshots, subcarriers, symbols, self.antennas)
        return self._combined(arriving).flatten(1)

    def whitened(self) -> "TileMap":
        """The map whose noise is white."""
        if self.whiten or self.weights is None or self.factor is None:
            return self
        return replace(self, weights=whitened_weights(self.weights, self.factor), whiten=True)

    def whitened_output(self, y: Tensor) -> Tensor:
        """L_t⁻¹y_t: [batch, m] -> [batch, m]."""
        if self.whiten or self.factor is None:
            return y
        return whitened_pilots(y, self.factor[:, :, None], *self.sizes[:3])

    def first_symbols(self, count: int) -> "TileMap":
        """What the first `count` symbols of every snapshot measure."""
        return replace(
            self,
            sending=None if self.sending is None else self.sending[:, :, :, :count],
            values=None if self.values is None else self.values[:, :, :, :count],
            weights=None if self.weights is None else self.weights[:, :, :count],
            factor=None if self.factor is None else self.factor[:, :, :count],
        )

    def sent(self) -> Tensor:
        """g = F x, what leaves the antennas in each resource element: [batch or 1, G, K, T, users, N_u]."""
        if self.sending is None:
            assert self.values is not None
            return self.values
        if self.values is None:
            beams = self.sending[:, :, None, :, :, 0].transpose(3, 4)
            return beams.expand(-1, -1, self.subcarriers, -1, -1, -1)
        return torch.einsum("bgktup,bgutpn->bgktun", self.values, self.sending)

    def _column_norms(self) -> Tensor:
        """‖column‖² = Σ_t |g_t|²·‖row of W_t‖²."""
        sent = self.sent().abs().square()
        if self.weights is None:
            norms = sent.sum(3)[..., None].expand(-1, -1, -1, -1, -1, self.antennas)
        else:
            norms = torch.einsum("bgktun,bgtr->bgkunr", sent, self.weights.abs().square().sum(4))
        return norms.sqrt().flatten(1)

    def powers_after(self, inner: KroneckerMap) -> Tensor:
        """Σ_t |g_tᵀa_t|²·‖W_tᴴa_r‖² for the atoms of a dictionary of angles: [batch or 1, G, K, G_t, G_r]."""
        snapshots, _, symbols, users, _, ports = self.sizes
        steering = inner.tx.reshape(users, ports, -1)
        if self.values is None and self.sending is not None:
            along = torch.einsum("bgutpn,unj->bgtj", self.sending, steering).abs().square()[:, :, None]
        else:
            along = torch.einsum("bgktun,unj->bgktj", self.sent(), steering).abs().square()
        if self.weights is None:
            received = inner.rx.abs().square().sum(0).expand(1, snapshots, symbols, -1)
        else:
            received = torch.einsum("bgtrc,ra->bgtca", self.weights.conj(), inner.rx).abs().square().sum(3)
        powers: Tensor = along.mT @ received[:, :, None]
        return powers.expand(-1, -1, self.subcarriers, -1, -1)

    def place_grams(self) -> Tensor:
        """ΦΦᴴ of every snapshot and subcarrier, between which nothing is: [batch or 1, G·K, T·N_RF, T·N_RF].

        The entry of chains c of symbol t and c' of t' is (g_tᵀg_t'*)·(w_tcᴴw_t'c').
        """
        sent = self.sent().flatten(4)
        beams = sent @ sent.mH
        if self.weights is None:
            identity = torch.eye(self.antennas, dtype=self.dtype, device=self.device)
            grams = torch.einsum("bgkts,rc->bgktrsc", beams, identity)
        else:
            columns = self.weights.movedim(3, 2).flatten(3)
            pairs = (columns.mH @ columns).reshape(*columns.shape[:2], *2 * (beams.shape[3], self.chains))
            grams = beams[:, :, :, :, None, :, None] * pairs[:, :, None]
        size = beams.shape[3] * self.chains
        return grams.reshape(-1, self.sizes[0] * self.subcarriers, size, size)

    def gram(self) -> Tensor:
        return block_diagonal(self.place_grams())

    def place_matrices(self) -> Tensor:
        """Φ of every snapshot and subcarrier: [batch or 1, G·K, T·N_RF, N_t·N_r]."""
        if self.weights is None:
            identity = torch.eye(self.antennas, dtype=self.dtype, device=self.device)
            matrices = torch.einsum("bgktun,cr->bgktcunr", self.sent(), identity)
        else:
            matrices = torch.einsum("bgktun,bgtrc->bgktcunr", self.sent(), self.weights.conj())
        return matrices.flatten(5).flatten(3, 4).flatten(1, 2)

    def materialize(self) -> Tensor:
        return block_diagonal(self.place_matrices())

    def _arriving(self, h: Tensor) -> Tensor:
        """Σ_u H_u F_ut x_ukt. h: [batch, j, G, K, users, N_u, N_r] -> [batch, j, G, K, T, N_r]."""
        if self.sending is None:
            assert self.values is not None
            return torch.einsum("bgktun,bjgkunr->bjgktr", self.values, h)
        by_stream = torch.einsum("bgutpn,bjgkunr->bjgkutpr", self.sending, h)
        if self.values is None:
            return by_stream[:, :, :, :, 0, :, 0]
        if self.values.shape[4] * self.values.shape[5] == 1:
            return by_stream[:, :, :, :, 0, :, 0] * self.values[:, None, ..., 0]
        return torch.einsum("bgktup,bjgkutpr->bjgktr", self.values, by_stream)

    def _combined(self, arriving: Tensor) -> Tensor:
        """[batch, j, G, K, T, N_r] -> [batch, j, G, K, T, N_RF]."""
        if self.weights is None:
            return arriving
        return torch.einsum("bjgktr,bgtrc->bjgktc", arriving, self.weights.conj())


def block_diagonal(blocks: Tensor) -> Tensor:
    """[batch, k, a, b] -> [batch, k·a, k·b]."""
    batch, count, rows, columns = blocks.shape
    whole = blocks.new_zeros(batch, count, rows, count, columns)
    whole.diagonal(dim1=1, dim2=3).copy_(blocks.movedim(1, -1))
    return whole.reshape(batch, count * rows, count * columns)
