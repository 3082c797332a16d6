"""The paper's A-DLISTA on channels: a CNN on ΦΨ_t gives one step and one threshold per layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from chanest.bases.unfolded import UnfoldedEstimator, starting_dictionary
from vlista_core.checkpoint import register_model
from vlista_core.models import ADLISTA

if TYPE_CHECKING:
    from chanest.problem import ChannelProblem

_LAYERS = 3


@register_model
class ADLISTAEstimator(UnfoldedEstimator):
    """The paper's Algorithm 1 with Kronecker dictionaries: three layers, each with a dictionary of its own.

    The paper's augmentation, a small CNN, sees the formed ΦΨ_t, so that a sample costs as much as its product.
    """

    name = "a-dlista"
    summary = "the paper's A-DLISTA: a CNN on ΦΨ gives one step and one threshold per layer"
    half_precision = True
    batch_size = 32

    @classmethod
    def build(cls, problem: ChannelProblem) -> Self:
        network = ADLISTA(starting_dictionary(problem), layers=_LAYERS, augmentation="paper")
        return cls(problem.signal_length, network)
