"""Coded transmission over estimated channels in Sionna: what a block is, the way there and back, receivers.

Sionna is imported with `blocks` and `receivers`, not before.
"""

from chanest.link.setup import BOUNDS, MODULATIONS, REFERENCES, SLOTS_ONLY, ErrVar, LinkSetup

__all__ = ["BOUNDS", "MODULATIONS", "REFERENCES", "SLOTS_ONLY", "ErrVar", "LinkSetup"]
