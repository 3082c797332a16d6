"""What every front end has: measurements of h through beams and combiners, whose noise is coloured by the combiners.

The order of h, everywhere: the channel is the tensor (snapshot, subcarrier, transmit antenna, receive antenna), and its entries
are numbered in this order, ((snapshot·S + subcarrier)·N_t + transmit)·N_r + receive. With one snapshot that is vec(H) of one
subcarrier after the other; several users are stacked along the transmit antennas.
"""

from abc import abstractmethod
from typing import Self

from torch import Tensor

from vlista_core.linops import LinearMap


class FrontEnd(LinearMap):
    """h -> y, where y is what combiners make of what arrives at the antennas in every resource element with pilots."""

    antennas: int
    """N_r."""
    subcarriers: int
    """S, of h."""
    snapshots: int = 1
    """L, of h."""
    whiten: bool
    """Whether the combiners are followed by a whitening of their noise."""

    @property
    @abstractmethod
    def pilots(self) -> int:
        """T: the pilot symbols, each with beams of its own."""

    @property
    @abstractmethod
    def arriving(self) -> int:
        """How many numbers arrive at the antennas: measured resource elements times N_r."""

    @abstractmethod
    def first_pilots(self, count: int) -> Self:
        """What the first `count` pilot symbols measure."""

    @abstractmethod
    def combine(self, received: Tensor) -> Tensor:
        """Wᴴ r of what arrives at the antennas, such as noise: [batch, arriving] -> [batch, m]."""

    @abstractmethod
    def whitened(self) -> Self:
        """L⁻¹Φ, with L the Cholesky factor of the covariance of noise over σ²: the map whose noise is white."""

    @abstractmethod
    def whitened_output(self, y: Tensor) -> Tensor:
        """L⁻¹y: [batch, m] -> [batch, m]."""
