"""Coded transmission over estimated channels in Sionna: BER, BLER and spectral efficiency of every estimator.

Sionna is imported when blocks are sent, not before.
"""

from chanest.link.plan import MODULATIONS, REFERENCES, LinkPlan, usable_receivers
from chanest.link.results import LinkResults, LinkRow
from chanest.link.run import run_link

__all__ = ["MODULATIONS", "REFERENCES", "LinkPlan", "LinkResults", "LinkRow", "run_link", "usable_receivers"]
