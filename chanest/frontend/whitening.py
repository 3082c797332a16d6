"""Measurements whose noise is white, whatever the combiners."""

from chanest.frontend.base import FrontEnd
from vlista_core.estimate import Measurement


def whitened_measurement(measured: Measurement) -> Measurement:
    """L⁻¹y and L⁻¹Φ with LLᴴ the noise covariance of each pilot over σ²; as it is where the noise is white already."""
    phi = measured.phi
    if not isinstance(phi, FrontEnd) or phi.whitened() is phi:
        return measured
    return Measurement(phi.whitened_output(measured.y), phi.whitened(), measured.noise_var)
