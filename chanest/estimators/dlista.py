"""DLISTA with learned Kronecker dictionaries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from chanest.bases.unfolded import UnfoldedEstimator, starting_dictionary
from vlista_core.checkpoint import register_model
from vlista_core.models import DLISTA

if TYPE_CHECKING:
    from chanest.problem import ChannelProblem


@register_model
class DLISTAEstimator(UnfoldedEstimator):
    """DLISTA with Kronecker dictionaries; steps and thresholds follow the noise level, the same for every channel."""

    name = "dlista"
    summary = "DLISTA: a learned Kronecker dictionary, one step and one threshold per layer"
    half_precision = True

    @classmethod
    def build(cls, problem: ChannelProblem) -> Self:
        return cls(problem.signal_length, DLISTA(starting_dictionary(problem), layers=6, noise_aware=True))
