"""The front end as a linear map: `BeamformingMap` with the same beams on every subcarrier, `GridMap` for any pilots.

`chanest.frontend.base` says in which order the entries of the channel are.
"""

from chanest.frontend.base import FrontEnd
from chanest.frontend.flat import BeamformingMap
from chanest.frontend.grid import GridMap
from chanest.frontend.whitening import whitened_measurement

__all__ = ["BeamformingMap", "FrontEnd", "GridMap", "whitened_measurement"]
