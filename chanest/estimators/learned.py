"""The paper's networks and their baselines on the scenario's angular grid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from chanest.dictionaries import LearnedKronecker
from chanest.estimators.unfolded import BeamspaceEstimator, UnfoldedEstimator, starting_dictionary
from vlista_core.checkpoint import register_model
from vlista_core.models import ADLISTA, ALISTA, DLISTA, LISTA, NALISTA

if TYPE_CHECKING:
    from chanest.problem import ChannelProblem

LAYERS = 10
"""Of A-DLISTA with scalars, and of VLISTA, which starts from it."""

_LARGEST_LISTA = 2048


@register_model
class LISTAEstimator(BeamspaceEstimator):
    """LISTA on Φᴴy in beamspace: free matrices that never see Φ itself; thresholds and gains follow the noise."""

    name = "lista"
    summary = "LISTA on the back-projection: matrices of each layer learned, Φ not seen"
    network_class = LISTA
    learning_rate = 3e-4

    @classmethod
    def build(cls, problem: ChannelProblem) -> Self:
        n = problem.signal_length
        if n > _LARGEST_LISTA:
            raise ValueError(
                f"lista learns matrices of n x n entries, which is meant for n up to {_LARGEST_LISTA}; "
                f"{problem.scenario.name} has n = {n}"
            )
        grid = LearnedKronecker(problem.dictionary())
        atoms = grid.shape[1]
        return cls(n, LISTA(atoms, atoms, layers=6, dtype=problem.dtype, noise_aware=True), grid)


@register_model
class ALISTAEstimator(BeamspaceEstimator):
    """ALISTA with the analytic W of each sample's own ΦΨ (no average over Φ, which for random beams is next to nothing)."""

    name = "alista"
    summary = "ALISTA: analytic weights of each sample's ΦΨ, steps and thresholds learned"
    network_class = ALISTA
    learning_rate = 2e-3
    batch_size = 64

    @classmethod
    def build(cls, problem: ChannelProblem) -> Self:
        network = ALISTA(None, layers=12, dtype=problem.dtype, selection=False, noise_aware=True)
        return cls(problem.signal_length, network, LearnedKronecker(problem.dictionary()))


@register_model
class NALISTAEstimator(BeamspaceEstimator):
    """NALISTA with the analytic W of each sample's own ΦΨ; the LSTM knows the noise by the residual alone."""

    name = "nalista"
    summary = "NALISTA: ALISTA whose steps and thresholds an LSTM sets for each sample"
    network_class = NALISTA
    learning_rate = 1e-3
    batch_size = 64

    @classmethod
    def build(cls, problem: ChannelProblem) -> Self:
        network = NALISTA(None, layers=12, hidden=64, dtype=problem.dtype, selection=False)
        return cls(problem.signal_length, network, LearnedKronecker(problem.dictionary()))


@register_model
class DLISTAEstimator(UnfoldedEstimator):
    """DLISTA with Kronecker dictionaries; steps and thresholds follow the noise level, the same for every channel."""

    name = "dlista"
    summary = "DLISTA: a learned Kronecker dictionary, step and threshold for each layer"
    network_class = DLISTA
    half_precision = True

    @classmethod
    def build(cls, problem: ChannelProblem) -> Self:
        return cls(problem.signal_length, DLISTA(starting_dictionary(problem), layers=6, noise_aware=True))


@register_model
class ScalarADLISTAEstimator(UnfoldedEstimator):
    """A-DLISTA with Kronecker dictionaries as the paper has it: one step and one threshold a layer adapt to the sample."""

    name = "a-dlista-scalar"
    summary = "A-DLISTA with one step and one threshold a layer, as in the paper; any number of subcarriers"
    network_class = ADLISTA
    half_precision = True

    @classmethod
    def build(cls, problem: ChannelProblem) -> Self:
        return cls(problem.signal_length, ADLISTA(starting_dictionary(problem), layers=LAYERS))
