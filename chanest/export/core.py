"""What an exported estimator computes: ĥ from y, beams and combiners as they are, without checks."""

from __future__ import annotations

from torch import Tensor, nn

from chanest.bases.estimator import ChannelEstimator
from chanest.bases.guard import Guarded
from chanest.frontend import BeamformingMap
from chanest.problem import ChannelProblem
from vlista_core.linops import LinearMap

_EXAMPLES, _SEED, _SNR_DB = 6, 0, 10.0
"""Samples on which the computation is recorded: of other sizes than arrays and beams usually have."""


class ExportedCore(nn.Module):
    """`core(y, beams, noise_var)`, or `core(y, beams, noise_var, combiners)` where the receiver combines.

    y is as received, y_t = W_tᴴ(H f_t + n_t), pilot by pilot: the noise of combiners is whitened here. E|h|² is one or so:
    nothing is worked out in other units, nobody guards the estimate, and the noise must be known.
    """

    def __init__(self, estimator: ChannelEstimator, antennas: int, *, whiten: bool) -> None:
        """antennas: of a receiver that does not combine; whiten: whether the estimator is told white noise."""
        super().__init__()
        self.estimator = estimator.alone() if isinstance(estimator, Guarded) else estimator
        self.antennas, self.whiten = antennas, whiten

    def forward(self, y: Tensor, beams: Tensor, noise_var: Tensor, combiners: Tensor | None = None) -> Tensor:
        """ĥ: [batch, n]. y: [batch, m], beams: [batch, N_t, T], noise_var: [batch], combiners: [batch, T, N_r, N_RF]."""
        phi = BeamformingMap.of(beams, combiners, antennas=0 if combiners is not None else self.antennas, whiten=False)
        if self.whiten:
            y, phi = phi.whitened_output(y), phi.whitened()
        signal: Tensor = self.estimator(y, phi, noise_var).signal
        return signal


def core_of(estimator: ChannelEstimator, problem: ChannelProblem) -> ExportedCore:
    """The computation for the front end of a problem, or a ValueError for front ends that are no beams of one subcarrier."""
    check_front_end(problem)
    return ExportedCore(estimator, problem.arrays[0].ports, whiten=problem.scenario.frontend.whiten).eval()


def check_front_end(problem: ChannelProblem) -> None:
    """ValueError unless Φ of a problem is made of beams for one subcarrier."""
    if problem.subcarriers > 1 or problem.scenario.frontend.pattern is not None:
        found = f"{problem.scenario.name} has {problem.subcarriers} subcarriers"
        if problem.scenario.frontend.pattern is not None:
            found = f"{problem.scenario.name} has pilots on a grid"
        raise ValueError(f"estimators are exported for beams on one subcarrier; {found}")


def received(
    problem: ChannelProblem, count: int = _EXAMPLES, *, seed: int = _SEED, snr_db: float = _SNR_DB
) -> tuple[Tensor, ...]:
    """What the core gets, of validation draws: y, beams, noise_var and, where the receiver combines, combiners."""
    batch = problem.sample(count, seed=seed, split="validation", snr_db=snr_db)
    return as_received(batch.y, batch.phi, batch.noise_var)


def as_received(y: Tensor, phi: LinearMap, noise_var: Tensor) -> tuple[Tensor, ...]:
    """The same of a measurement whose noise may have been whitened: y before that, and the combiners as they are."""
    if not isinstance(phi, BeamformingMap):
        raise ValueError(f"phi must be a BeamformingMap, the beams of an exported estimator, got {type(phi).__name__}")
    if phi.weights is None or phi.factor is None:
        return y, phi.transmit, noise_var
    weights = phi.weights
    if phi.whiten:
        y = (phi.factor @ y.reshape(y.shape[0], phi.pilots, phi.chains, 1)).flatten(1)
        weights = weights @ phi.factor.mH
    return y, phi.transmit, noise_var, weights
