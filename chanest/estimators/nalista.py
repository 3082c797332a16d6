"""NALISTA on the scenario's angular grid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from chanest.bases.unfolded import BeamspaceEstimator
from chanest.dictionaries import LearnedKronecker
from vlista_core.checkpoint import register_model
from vlista_core.models import NALISTA

if TYPE_CHECKING:
    from chanest.problem import ChannelProblem


@register_model
class NALISTAEstimator(BeamspaceEstimator):
    """NALISTA with the analytic W of each sample's own ΦΨ; the LSTM knows the noise by the residual alone."""

    name = "nalista"
    summary = "NALISTA: ALISTA whose steps and thresholds an LSTM sets for each sample"
    learning_rate = 1e-3
    batch_size = 64

    @classmethod
    def build(cls, problem: ChannelProblem) -> Self:
        network = NALISTA(None, layers=12, hidden=64, dtype=problem.dtype, selection=False)
        return cls(problem.signal_length, network, LearnedKronecker(problem.dictionary()))
