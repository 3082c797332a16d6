"""Coded transmission over estimated channels in Sionna: what a block is, the way there and back, receivers.

Sionna is imported with `blocks`, `receivers` and `precoding`, not before.
"""

from chanest.link.setup import (
    BOUNDS,
    MODULATIONS,
    REFERENCES,
    SLOTS_ONLY,
    TRAINED_ONLY,
    ErrVar,
    LinkSetup,
    Precoding,
)

__all__ = ["BOUNDS", "MODULATIONS", "REFERENCES", "SLOTS_ONLY", "TRAINED_ONLY", "ErrVar", "LinkSetup", "Precoding"]
