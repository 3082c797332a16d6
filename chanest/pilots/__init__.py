"""Pilots: the training beams, and which resource elements carry what."""

from chanest.pilots.beams import CODEBOOKS, BeamKind, draw_beams, draw_combiners

__all__ = ["CODEBOOKS", "BeamKind", "draw_beams", "draw_combiners"]
