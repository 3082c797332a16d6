"""The front end as a linear map: `BeamformingMap` with the same beams on every subcarrier."""

from chanest.frontend.flat import BeamformingMap
from chanest.frontend.whitening import whitened_measurement

__all__ = ["BeamformingMap", "whitened_measurement"]
