"""ALISTA on the scenario's angular grid."""

from chanest.bases.unfolded import BeamspaceEstimator
from chanest.problem import ChannelProblem
from vlista_core.models import ALISTA


class ALISTAEstimator(BeamspaceEstimator):
    """ALISTA with the analytic W of each sample's own ΦΨ (no average over Φ, which for random beams is next to nothing)."""

    name = "alista"
    summary = "ALISTA: analytic weights of each sample's ΦΨ, steps and thresholds learned"
    learning_rate = 2e-3

    @classmethod
    def network_for(cls, problem: ChannelProblem) -> ALISTA:
        return ALISTA(None, layers=12, dtype=problem.dtype, selection=False, noise_aware=True)
