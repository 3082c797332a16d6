"""LISTA on the scenario's angular grid."""

from chanest.bases.unfolded import BeamspaceEstimator
from chanest.problem import ChannelProblem
from vlista_core.models import LISTA


class LISTAEstimator(BeamspaceEstimator):
    """LISTA on Φᴴy in beamspace: free matrices that never see Φ itself; thresholds and gains follow the noise."""

    name = "lista"
    summary = "LISTA on the back-projection: matrices of each layer learned, Φ not seen"
    exported_as = ("pt2", "onnx")
    longest = 2048
    learning_rate = 3e-4

    @classmethod
    def network_for(cls, problem: ChannelProblem) -> LISTA:
        atoms = problem.dictionary().shape[1]
        return LISTA(atoms, atoms, layers=6, dtype=problem.dtype, noise_aware=True)
