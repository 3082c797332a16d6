"""Pilots: which resource elements carry them, with which values, and the beams they are sent and received through.

A `PilotPattern` such as `Comb` or `DMRS` lays `Pilots` onto a grid; `draw_beams` and `draw_combiners` draw the beams. The
map from the channel to what is measured is `chanest.frontend.GridMap`.
"""

from chanest.pilots.beams import CODEBOOKS, BeamKind, draw_beams, draw_combiners
from chanest.pilots.block import Block
from chanest.pilots.comb import Comb
from chanest.pilots.dmrs import DMRS
from chanest.pilots.grid import PilotPattern, Pilots, Tile
from chanest.pilots.kronecker import Kronecker

__all__ = [
    "CODEBOOKS", "DMRS", "BeamKind", "Block", "Comb", "Kronecker", "PilotPattern", "Pilots", "Tile", "draw_beams",
    "draw_combiners",
]  # fmt: skip
