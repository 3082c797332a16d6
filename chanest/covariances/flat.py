"""Equal powers of all atoms of a grid. Its directions go round evenly, a tight frame, so that R = p·I.

A digital receiver then has antennas that are all alike: C is one block of pilots, the same for each of them.
"""

from dataclasses import replace

from torch import Tensor

from chanest.covariances.angular import AngularCovariance, GridView
from vlista_core.estimate import Measurement
from vlista_core.gaussian import Covariance, WhiteCovariance, condition


def seen_flat(level: Tensor, view: GridView, measured: Measurement) -> tuple[Tensor, Tensor]:
    """C⁻¹y, [batch, m], and ψᴴΦᴴC⁻¹Φψ of every atom, [batch, atoms], where all powers are equal. level: of an atom, [batch].

    The grid has at least as many points along an axis as there are elements.
    """
    grid, phi = view.grid, view.beams
    ports, polarisations = grid.rx.ports * grid.tx.ports, len(grid.rx.slants) * len(grid.tx.slants)
    prior: Covariance = WhiteCovariance((grid.atoms / polarisations * level).to(measured.y.dtype), ports)
    if phi is None or phi.weights is not None:
        if phi is None:  # the view has shown ΦΨ of a map without structure, and ΦΦᴴ would have to be formed
            prior = AngularCovariance(level[:, None].expand(-1, grid.atoms), grid, view)
        posterior = condition(prior, measured)
        return posterior.whitened, view.forms(posterior.precision)
    antennas = phi.antennas
    apart = measured.y.unflatten(1, (-1, antennas)).mT.flatten(1)
    each = replace(phi, antennas=1, subcarriers=antennas)
    posterior = condition(prior, Measurement(apart, each, measured.noise_var))
    whitened = posterior.whitened.unflatten(1, (antennas, -1)).mT.flatten(1)
    departing = (view.conjugate * (posterior.block_precision[:, 0] @ view.sent)).sum(1).real
    arrivals = grid.atoms // departing.shape[1]
    return whitened, (grid.rx.elements * departing)[:, :, None].expand(-1, -1, arrivals).flatten(1)
