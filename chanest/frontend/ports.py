"""Pilots that tell the transmit ports apart: what every port sends where no other sends anything."""

from dataclasses import dataclass

from torch import Tensor

from chanest.frontend.grid import GridMap
from vlista_core.linops import LinearMap

_ALIKE = 1e-3
"""Relative differences of energy that are rounding."""


@dataclass(frozen=True, eq=False)
class PortPilots:
    """The pilots of one transmit port: all of `subcarriers` in each of `symbols`, of the same energy."""

    symbols: Tensor
    """Snapshots of h: [T], integers."""
    subcarriers: Tensor
    """[K], integers."""
    energy: Tensor
    """|x|², scalar."""

    def of_grid(self, grid: Tensor) -> Tensor:
        """What a grid [batch, L, S, …] holds there: [batch, T, K, …]."""
        return grid[:, self.symbols[:, None], self.subcarriers]


def pilots_of_ports(phi: LinearMap) -> tuple[PortPilots, ...] | None:
    """The pilots of every port, user by user; None where ports share resource elements, or beams or combiners come between."""
    if not isinstance(phi, GridMap) or phi.batch is not None:
        return None
    norms = phi.column_norms()[0].reshape(phi.snapshots, phi.subcarriers, -1, phi.antennas)
    energies = norms[..., 0].square()
    if int((energies > 0).sum()) * phi.antennas != phi.shape[0]:
        return None
    found = []
    for energy in energies.unbind(2):
        sent = energy > 0
        symbols, subcarriers = sent.any(1).nonzero()[:, 0], sent.any(0).nonzero()[:, 0]
        each = energy[sent]
        if len(each) != len(symbols) * len(subcarriers) or bool(each.max() - each.min() > _ALIKE * each.max()):
            return None
        found.append(PortPilots(symbols, subcarriers, each.mean()))
    return tuple(found)
