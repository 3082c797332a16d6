"""ALISTA on the scenario's angular grid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from chanest.bases.unfolded import BeamspaceEstimator
from chanest.dictionaries import LearnedKronecker
from vlista_core.checkpoint import register_model
from vlista_core.models import ALISTA

if TYPE_CHECKING:
    from chanest.problem import ChannelProblem


@register_model
class ALISTAEstimator(BeamspaceEstimator):
    """ALISTA with the analytic W of each sample's own ΦΨ (no average over Φ, which for random beams is next to nothing)."""

    name = "alista"
    summary = "ALISTA: analytic weights of each sample's ΦΨ, steps and thresholds learned"
    learning_rate = 2e-3
    batch_size = 64

    @classmethod
    def build(cls, problem: ChannelProblem) -> Self:
        network = ALISTA(None, layers=12, dtype=problem.dtype, selection=False, noise_aware=True)
        return cls(problem.signal_length, network, LearnedKronecker(problem.dictionary()))
