"""Powers on a grid of delays and directions: R' = Σ_k w_k w_kᴴ ⊗ Ψ diag(p_k) Ψᴴ in delay modes, without Ψ and without R'."""

from dataclasses import dataclass

import torch
from torch import Tensor

from chanest.covariances.angular import AngularCovariance, AngularGrid, GridView
from chanest.frontend import BeamformingMap
from vlista_core.gaussian import Covariance
from vlista_core.linops import LinearMap


@dataclass(frozen=True, eq=False)
class DelayAngleCovariance(Covariance):
    """A path of delay k and direction a is coherent over all modes: what lies in several tells of the same gain."""

    responses: Tensor
    """w_k in the modes: [batch or 1, D, K]."""
    powers: Tensor
    """p_k of the atoms of the grid: [batch or 1, K, atoms], real."""
    grid: AngularGrid

    @property
    def length(self) -> int:
        return self.responses.shape[1] * self.grid.rx.ports * self.grid.tx.ports

    def apply(self, x: Tensor) -> Tensor:
        self._check_input("x", x, self.length)
        dictionary = self.grid.cast(self.dtype).dictionary.to(x.device)
        modes = x.unflatten(1, (self.responses.shape[1], -1))
        late = self.responses.mH @ modes
        code = dictionary.adjoint(late.flatten(0, 1)).unflatten(0, late.shape[:2])
        kept = dictionary.apply((self.powers * code).flatten(0, 1)).unflatten(0, late.shape[:2])
        modes = self.responses @ kept
        found: Tensor = modes.flatten(1)
        return found

    def seen(self, phi: LinearMap) -> Tensor:
        block, count = phi.blocks()
        if not isinstance(block, BeamformingMap) or count != self.responses.shape[1]:
            return super().seen(phi)
        late, size = self.powers.shape[1], block.shape[0]
        view = GridView(self.grid.cast(self.dtype), block.select(torch.arange(block.batch).repeat_interleave(late)))
        of_delays = view.seen(self.powers.expand(block.batch, -1, -1).flatten(0, 1)).reshape(block.batch, late, -1)
        pairs = (self.responses[:, :, None] * self.responses[:, None].conj()).flatten(1, 2)
        return (pairs @ of_delays).reshape(-1, count, count, size, size).transpose(2, 3).reshape(-1, *phi.shape[:1] * 2)

    def materialize(self) -> Tensor:
        late = self.powers.shape[1]
        space = AngularCovariance(self.powers.flatten(0, 1), self.grid).materialize().unflatten(0, (-1, late))
        whole = torch.einsum("bdk,bek,bkij->bdiej", self.responses, self.responses.conj(), space)
        return whole.reshape(-1, self.length, self.length)
