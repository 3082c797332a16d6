"""The paper's A-DLISTA on channels: a CNN on ΦΨ_t gives one step and one threshold per layer."""

from chanest.bases.unfolded import UnfoldedEstimator, starting_dictionary
from chanest.problem import ChannelProblem
from vlista_core.models import ADLISTA

_LAYERS = 3


class ADLISTAEstimator(UnfoldedEstimator):
    """The paper's Algorithm 1 with Kronecker dictionaries: three layers, each with a dictionary of its own.

    The paper's augmentation, a small CNN, sees the formed ΦΨ_t, so that a sample costs as much as its product.
    """

    name = "a-dlista"
    summary = "the paper's A-DLISTA: a CNN on ΦΨ gives one step and one threshold per layer"
    exported_as = ("pt2",)
    half_precision = True
    one_size = True
    batch_size = 32
    loudest = 10**0.5

    @classmethod
    def network_for(cls, problem: ChannelProblem) -> ADLISTA:
        return ADLISTA(starting_dictionary(problem), layers=_LAYERS, augmentation="paper")
