"""LISTA on the scenario's angular grid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from chanest.bases.unfolded import BeamspaceEstimator
from chanest.dictionaries import LearnedKronecker
from vlista_core.checkpoint import register_model
from vlista_core.models import LISTA

if TYPE_CHECKING:
    from chanest.problem import ChannelProblem

_LARGEST = 2048


@register_model
class LISTAEstimator(BeamspaceEstimator):
    """LISTA on Φᴴy in beamspace: free matrices that never see Φ itself; thresholds and gains follow the noise."""

    name = "lista"
    summary = "LISTA on the back-projection: matrices of each layer learned, Φ not seen"
    learning_rate = 3e-4

    @classmethod
    def check(cls, problem: ChannelProblem) -> None:
        n = problem.signal_length
        if n > _LARGEST:
            raise ValueError(
                f"lista learns matrices of n x n entries, which is meant for n up to {_LARGEST}; "
                f"{problem.scenario.name} has n = {n}"
            )

    @classmethod
    def build(cls, problem: ChannelProblem) -> Self:
        grid = LearnedKronecker(problem.dictionary())
        atoms = grid.shape[1]
        return cls(problem.signal_length, LISTA(atoms, atoms, layers=6, dtype=problem.dtype, noise_aware=True), grid)
