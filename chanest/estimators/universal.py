"""Universal, ours: one set of weights for any arrays, any pilots and any channel; what adapts are the powers of all directions.

Layers on a grid of directions see how much y asks for every atom and how well it is determined, given the actual Φ, and update
all powers; peaks leave the grid for directions of any value, and the answer is the mean of both models by their evidence
(`chanest.networks.universal`, `chanest.covariances.refining`). It is scale-free: the units of y and h do not matter. Trained on
the broad family `clusters` and on cells of TR 38.901; no CDL and no street is among what it has seen.
"""

from typing import Self

import torch
from torch import Tensor, nn

from chanest.arrays import Array
from chanest.bases.estimator import ChannelEstimator
from chanest.covariances.angular import AngularCovariance
from chanest.covariances.delay_powers import ModeParts
from chanest.covariances.modes import ModesMap, in_modes
from chanest.covariances.offgrid import PathCovariance
from chanest.fit import Fit
from chanest.networks.joint import joint_posterior
from chanest.networks.universal import Answer, UniversalNetwork, WithPaths, scaled
from chanest.networks.universal_training import fit_universal, tune_from_pilots
from chanest.problem import ChannelProblem
from chanest.recordings import Recordings
from vlista_core.estimate import Estimate, Measurement
from vlista_core.gaussian import condition
from vlista_core.linops import LinearMap
from vlista_core.prox import squared_modulus
from vlista_core.tensorfile import Json

OVERSAMPLING = (1.25, 1.5, 1.75, 1.75)
_WIDTH, _PATH_LAYERS = 24, 2
_CHUNK_ENTRIES = 2**18
"""Atoms times samples of a chunk."""


class Universal(ChannelEstimator):
    """Powers of directions by a network that all arrays share, and paths off the grid."""

    name = "universal"
    summary = "ours: any arrays, pilots and channels with one set of weights; powers of directions adapt to y and Φ"
    needs_fit = True
    learns_from_pilots = True
    any_scenario = True
    narrowband = True
    mode_by_mode = True
    scale_free = True
    loudest = 10**1.2

    def __init__(
        self,
        rx: Array,
        tx: Array,
        *,
        oversampling: tuple[float, ...] = OVERSAMPLING,
        width: int = _WIDTH,
        path_layers: int = _PATH_LAYERS,
    ) -> None:
        """oversampling: of the grid of each layer and of the answer; width: of the network; path_layers: with paths off it."""
        super().__init__(rx.ports * tx.ports)
        self.rx, self.tx = rx, tx
        self.network = UniversalNetwork(oversampling, path_layers, width, torch.Generator().manual_seed(0))
        self.doubt: Tensor = nn.Buffer(torch.ones(2))
        """Factors of the variances of the grid alone and with paths: powers that were fitted to y explain too much."""

    @classmethod
    def build(cls, problem: ChannelProblem) -> Self:
        return cls(*problem.arrays)

    def for_problem(self, problem: ChannelProblem) -> Self:
        """The same weights for the arrays of a problem."""
        self.rx, self.tx = problem.arrays
        self.signal_length = problem.signal_length
        self.reconfigure(rx=self.rx, tx=self.tx)
        return self

    def chunk(self, measured: Measurement) -> int:
        finest = max(self.network.oversampling)
        sizes = (self.rx.columns, self.rx.rows, self.tx.columns, self.tx.rows)
        atoms = self.signal_length
        for size in sizes:
            atoms = int(atoms * (finest if size > 1 else 1.0))
        return max(1, _CHUNK_ENTRIES // max(atoms, measured.y.shape[1] ** 2 // 4))

    def infer(self, measured: Measurement) -> Estimate:
        answer = self.answer(measured)
        evidence = self.network.evidence(answer) - 2 * measured.y.shape[1] * answer.unit.log()
        freedom = answer.grid.determined.sum(1)
        return Estimate(answer.unit[:, None] * answer.mean, log_evidence=evidence, freedom=freedom)

    def estimate_modes(self, parts: ModeParts) -> Estimate:
        """Each mode by itself, then all together where that is more likely: see `chanest.networks.joint`."""
        return Estimate(torch.cat([self._all_modes(parts, place) for place in range(len(parts.own.modes))]))

    def _all_modes(self, parts: ModeParts, place: int) -> Tensor:
        """h of one sample: [1, S·n₁]."""
        one = parts.alone(place)
        answer, scale = self.answer(one.each), one.scale
        alone = answer.unit[:, None] * answer.mean
        count, units = one.each.y.shape[1], (answer.unit * scale).square()
        evidence = (self.network.evidence(answer) - count * units.log()).sum()
        grid = answer.grid.prior
        assert isinstance(grid, AngularCovariance)
        modes = one.own.modes[0]
        together = joint_posterior(in_modes(one.measured, modes), modes, units[:, None] * grid.powers, grid.grid)
        share = torch.sigmoid(together.log_evidence - evidence)[:, None]
        joint = ModesMap(modes, alone.shape[1]).apply(together.mean)
        apart = one.together(alone)
        return apart + share * (joint - apart)

    def answer(self, measured: Measurement) -> Answer:
        """What both models say of a chunk of samples."""
        inside, unit = scaled(measured)
        looks, paths = self.network(inside, self.rx, self.tx)
        return Answer(inside, unit, looks[-1], paths)

    def spread(self, measured: Measurement, found: Estimate, probes: LinearMap | None) -> Tensor:
        """The variance of the mixture: of each model about its mean, and of the means."""
        answer = self.answer(measured)
        variance, paths = self.doubt[0] * self.grid_variance(answer, probes), answer.paths
        if paths is not None:
            some, weight = paths.some, paths.weight[:, None]
            apart = paths.looks[-1].posterior.mean - answer.grid.posterior.mean[some]
            if probes is not None:
                apart = (probes if probes.batch is None else probes.select(some)).apply(apart)
            with_paths = self.doubt[1] * self.path_variance(answer, paths, probes)
            mixed = (
                (1.0 - weight) * variance[some] + weight * with_paths + weight * (1.0 - weight) * squared_modulus(apart)
            )
            variance = variance.index_copy(0, some, mixed)
        in_units_of_y: Tensor = answer.unit.square()[:, None] * variance
        return in_units_of_y

    def grid_variance(self, answer: Answer, probes: LinearMap | None = None) -> Tensor:
        """Of the grid alone, before doubt, in units of y: [batch, n or p]."""
        return condition(answer.grid.prior, answer.measured, probes).variance

    def path_variance(self, answer: Answer, paths: WithPaths, probes: LinearMap | None = None) -> Tensor:
        """Of the models with paths, before doubt, in units of y: [k, n or p].

        What paths add to the variance is that of their gains. Their directions are as uncertain: one number along each axis to
        two of each gain, so that it counts that much more.
        """
        prior, inside = paths.looks[-1].prior, answer.measured.select(paths.some)
        probes = probes if probes is None or probes.batch is None else probes.select(paths.some)
        assert isinstance(prior, PathCovariance)
        variance, rest = (condition(each, inside, probes).variance for each in (prior, prior.grid))
        more = self._axes / (2 * self._polarisations)
        return variance + more * (variance - rest).clamp_min(0.0)

    @property
    def _axes(self) -> int:
        """Along which a path has a direction."""
        return sum(size > 1 for size in (self.rx.columns, self.rx.rows, self.tx.columns, self.tx.rows))

    @property
    def _polarisations(self) -> int:
        """Pairs of them."""
        return len(self.rx.slants) * len(self.tx.slants)

    def fit(self, problem: ChannelProblem, plan: Fit) -> dict[str, Json]:
        """Train on broad families and on many arrays; `problem` only validates. See `chanest.networks.universal_training`."""
        return fit_universal(self, problem, plan)

    def fit_from_pilots(self, recordings: Recordings, plan: Fit) -> dict[str, Json]:
        """Tune the weights that there are to a site, from channels of a mixture that explains its recordings."""
        return tune_from_pilots(self, recordings, plan)
