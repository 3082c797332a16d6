"""DLISTA with learned Kronecker dictionaries."""

from chanest.bases.unfolded import UnfoldedEstimator, starting_dictionary
from chanest.problem import ChannelProblem
from vlista_core.models import DLISTA


class DLISTAEstimator(UnfoldedEstimator):
    """DLISTA with Kronecker dictionaries; steps and thresholds follow the noise level, the same for every channel."""

    name = "dlista"
    summary = "DLISTA: a learned Kronecker dictionary, one step and one threshold per layer"
    exported_as = ("pt2",)
    half_precision = True
    one_size = True

    @classmethod
    def network_for(cls, problem: ChannelProblem) -> DLISTA:
        return DLISTA(starting_dictionary(problem), layers=6, noise_aware=True)
