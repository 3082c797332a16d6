"""A-DLISTA with our adaptive augmentation and learned Kronecker dictionaries."""

from chanest.bases.unfolded import UnfoldedEstimator, starting_dictionary
from chanest.problem import ChannelProblem
from vlista_core.models import ADLISTA

LAYERS = 10
"""Also of `vlista`, which starts from this network."""


class AdaptiveADLISTAEstimator(UnfoldedEstimator):
    """A-DLISTA with our adaptive augmentation: one step, one threshold and one memory per layer follow norms of the sample.

    Not the paper's network, which is `a-dlista`: it has ten layers, sees norms in place of ΦΨ, and never forms ΦΨ.
    """

    name = "a-dlista-adaptive"
    summary = "ours: A-DLISTA whose steps and thresholds, one per layer, follow norms of residual and gradient"
    exported_as = ("pt2",)
    half_precision = True

    @classmethod
    def network_for(cls, problem: ChannelProblem) -> ADLISTA:
        return ADLISTA(starting_dictionary(problem), layers=LAYERS)
