"""NALISTA on the scenario's angular grid."""

from chanest.bases.unfolded import BeamspaceEstimator
from chanest.problem import ChannelProblem
from vlista_core.models import NALISTA


class NALISTAEstimator(BeamspaceEstimator):
    """NALISTA with the analytic W of each sample's own ΦΨ; the LSTM knows the noise by the residual alone."""

    name = "nalista"
    summary = "NALISTA: ALISTA whose steps and thresholds an LSTM sets for each sample"
    learning_rate = 1e-3

    @classmethod
    def network_for(cls, problem: ChannelProblem) -> NALISTA:
        return NALISTA(None, layers=12, hidden=64, dtype=problem.dtype, selection=False)
