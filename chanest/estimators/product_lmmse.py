"""Product LMMSE, ours: R = T ⊗ S, and the angular spectra behind T and S adapt to the measurement.

Where departures and arrivals are independent of each other, the covariance of a channel is a product. Each factor is a sum
over the directions of its own array, T = Σ_i a_i t_i t_iᴴ and S = Σ_j b_j r_j r_jᴴ, so that a network has to give the powers
of G_t + G_r directions and not those of G_t·G_r pairs. It sees how much of Φᴴy falls on each direction of an end, summed over
the other end by the powers found there so far; then the exact step is taken with the actual Φ. A receiver that is fully
digital needs no more than the eigenvectors of T and S. How it learns: `chanest.networks.spectra`.
"""

from typing import Self

import torch
from torch import Tensor

from chanest.arrays import Array
from chanest.bases.estimator import GaussianEstimator
from chanest.covariances.ends import EndDirections
from chanest.covariances.kronecker import KroneckerCovariance
from chanest.dictionaries import KroneckerMap
from chanest.fit import Fit
from chanest.networks.spectra import SpectrumNetwork, fit_spectra, fit_spectra_from_pilots
from chanest.problem import ChannelProblem
from chanest.recordings import Recordings
from vlista_core.estimate import Measurement
from vlista_core.linops import LinearMap
from vlista_core.prox import squared_modulus
from vlista_core.tensorfile import Json

_OVERSAMPLING = 2.0
_LOOKS, _WIDTH = 2, 32
_CHUNK = 32
"""Small enough to stay in cache."""


class ProductLMMSE(GaussianEstimator):
    """Looks at the spectra of both ends, each look with the powers of the last; then one exact step with R = T ⊗ S."""

    name = "product-lmmse"
    summary = "ours: transmit and receive covariance adapt to y by their angular spectra; for ends that are independent"
    needs_fit = True
    learns_from_pilots = True
    half_precision = True
    goes_on = True
    narrowband = True
    one_polarisation = True

    def __init__(self, rx: Array, tx: Array, *, looks: int = _LOOKS, width: int = _WIDTH) -> None:
        """looks: how often the spectra are seen; width: channels of the networks."""
        super().__init__(rx.ports * tx.ports)
        self.rx, self.tx = (EndDirections(array, _OVERSAMPLING) for array in (rx, tx))
        generator = torch.Generator().manual_seed(0)
        self.network = SpectrumNetwork(self.rx, self.tx, looks, width, generator)

    @classmethod
    def build(cls, problem: ChannelProblem) -> Self:
        return cls(*problem.arrays)

    def chunk(self, measured: Measurement) -> int:
        return _CHUNK

    def prior(self, measured: Measurement) -> KroneckerCovariance:
        departing, arriving = self.powers(measured)
        return KroneckerCovariance(self.tx.covariance(departing)[:, None], self.rx.covariance(arriving)[:, None])

    def powers(self, measured: Measurement) -> tuple[Tensor, Tensor]:
        """a and b, of departures and of arrivals: [batch, G_t] and [batch, G_r]."""
        energy, seen = self.spectrum(measured)
        found: tuple[Tensor, Tensor] = self.network(energy, seen, measured.noise_var)
        return found

    def spectrum(self, measured: Measurement) -> tuple[Tensor, Tensor]:
        """|ψᴴΦᴴy|²/‖Φψ‖², which is σ² for noise alone, and ‖Φψ‖², of every pair ψ of directions: [batch, G_t, G_r] each.

        A pair that Φ does not see has no energy.
        """
        psi = KroneckerMap(self.rx.atoms, self.tx.atoms).to(measured.y.device).cast(measured.y.dtype)
        seen = _column_energies(measured.phi, psi)
        matched = squared_modulus(psi.adjoint(measured.phi.adjoint(measured.y)))
        energy = torch.where(seen > 0, matched / torch.where(seen > 0, seen, 1.0), 0.0)
        shape = energy.shape[0], self.tx.count, self.rx.count
        return energy.reshape(shape), seen.expand(energy.shape[0], -1).reshape(shape)

    def fit(self, problem: ChannelProblem, plan: Fit) -> dict[str, Json]:
        """The network, by the NMSE of the estimate on fresh training draws."""
        return fit_spectra(self, problem, plan)

    def fit_from_pilots(self, recordings: Recordings, plan: Fit) -> dict[str, Json]:
        """The network, by how well the estimate from a recording with more noise tells the recording."""
        return fit_spectra_from_pilots(self, recordings, plan)


def _column_energies(phi: LinearMap, psi: KroneckerMap) -> Tensor:
    """‖Φψ‖² of every atom: [batch or 1, atoms]."""
    return (phi @ psi).column_norms().square()
