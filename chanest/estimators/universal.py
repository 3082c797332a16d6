"""Universal, ours: one set of weights for any arrays, any pilots and any channel; what adapts are the powers of all directions.

Layers on a grid of directions see how much y asks for every atom and how well it is determined, given the actual Φ, and update
all powers (`chanest.networks.universal`); the peaks are then taken off the grid (`chanest.covariances.refining`). The answer is
the mean of the two models, grid alone and with paths off it, weighed by their evidence less a price for each path, whose
directions were fitted. It is scale-free: the units of y and h do not matter. Trained on the broad family `clusters` alone.
"""

from typing import Self

import torch
from torch import Tensor, nn

from chanest.arrays import Array
from chanest.bases.estimator import ChannelEstimator
from chanest.covariances.refining import Refined, refine
from chanest.fit import Fit
from chanest.networks.universal import Answer, Look, UniversalNetwork, scaled
from chanest.networks.universal_training import fit_universal
from chanest.problem import ChannelProblem
from vlista_core.estimate import Estimate, Measurement
from vlista_core.gaussian import condition
from vlista_core.linops import LinearMap
from vlista_core.prox import squared_modulus
from vlista_core.tensorfile import Json

OVERSAMPLING = (1.25, 1.25, 1.25, 1.25, 1.75, 1.75, 1.75)
_WIDTH = 24
_CHUNK_ENTRIES = 2**17
"""Atoms times samples that are worked on at once: small enough to stay in cache."""


class Universal(ChannelEstimator):
    """Powers of directions by a network that all arrays share, peaks off the grid, two models weighed by evidence."""

    name = "universal"
    summary = "ours: any arrays, pilots and channels with one set of weights; powers of directions adapt to y and Φ"
    needs_fit = True
    any_scenario = True
    narrowband = True
    scale_free = True
    loudest = 10**1.2

    def __init__(
        self,
        rx: Array,
        tx: Array,
        *,
        oversampling: tuple[float, ...] = OVERSAMPLING,
        width: int = _WIDTH,
        paths: int = 8,
    ) -> None:
        """oversampling: of the grid of each layer and of the answer; width: of the network; paths: off the grid at the most."""
        super().__init__(rx.ports * tx.ports)
        self.rx, self.tx, self.paths = rx, tx, paths
        self.network = UniversalNetwork(oversampling, width, torch.Generator().manual_seed(0))
        self.price = nn.Parameter(torch.tensor([1.0, 1.0, 1.0]))
        """Of a path: in all, for each axis along which it has a direction, for each pair of polarisations; in nats."""
        self.steepness = nn.Parameter(torch.tensor(0.5))
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
        mean = answer.grid.posterior.mean + answer.weight * (answer.refined.mean - answer.grid.posterior.mean)
        freedom = answer.grid.determined.sum(1)
        return Estimate(answer.unit[:, None] * mean, log_evidence=self._evidence(answer), freedom=freedom)

    def answer(self, measured: Measurement) -> Answer:
        """What both models say of a chunk of samples."""
        inside, unit = scaled(measured)
        grid = self.network(inside, self.rx, self.tx)[-1]
        refined = refine(grid.prior, inside, grid.determined, grid.posterior.log_evidence, most=self.paths)
        return Answer(inside, unit, grid, refined, self.weight(grid, refined))

    def weight(self, grid: Look, refined: Refined) -> Tensor:
        """Of the model with paths off the grid, by its evidence less their price: [batch, 1]."""
        price = self.price[0] + self._axes * self.price[1] + self._polarisations * self.price[2]
        gain = refined.log_evidence - grid.posterior.log_evidence - price * refined.count
        weight = torch.sigmoid(nn.functional.softplus(self.steepness) * gain)
        return torch.where(refined.count > 0, weight, 0.0)[:, None]

    def _evidence(self, answer: Answer) -> Tensor:
        """log p(y) of both models together, the price of paths paid, in the units of y: [batch]."""
        odds = torch.logit(answer.weight[:, 0], eps=1e-6) / nn.functional.softplus(self.steepness)
        grid, count = answer.grid.posterior.log_evidence, answer.measured.y.shape[1]
        priced = torch.where(answer.refined.count > 0, grid + odds, -torch.inf)
        return torch.logaddexp(grid, priced) - 2 * count * answer.unit.log()

    def spread(self, measured: Measurement, found: Estimate, probes: LinearMap | None) -> Tensor:
        """The variance of the mixture: of each model about its mean, and of the means."""
        answer = self.answer(measured)
        alone, with_paths = (
            doubt * each for doubt, each in zip(self.doubt, self.variances(answer, probes), strict=True)
        )
        weight, grid, refined = answer.weight, answer.grid.posterior.mean, answer.refined.mean
        apart = refined - grid if probes is None else probes.apply(refined - grid)
        variance = (1.0 - weight) * alone + weight * with_paths + weight * (1.0 - weight) * squared_modulus(apart)
        in_units_of_y: Tensor = answer.unit.square()[:, None] * variance
        return in_units_of_y

    def variances(self, answer: Answer, probes: LinearMap | None = None) -> tuple[Tensor, Tensor]:
        """Of the grid alone and with paths, in units of y, before doubt: [batch, n or p] each.

        What paths add to the variance is that of their gains. Their directions are as uncertain: one number along each axis to
        two of each gain, so that it counts that much more.
        """
        inside, prior = answer.measured, answer.refined.prior
        grid, refined = condition(answer.grid.prior, inside, probes), condition(prior, inside, probes)
        rest = condition(prior.grid, inside, probes).variance
        more = 1.0 + self._axes / (2 * self._polarisations)
        return grid.variance, rest + more * (refined.variance - rest).clamp_min(0.0)

    @property
    def _axes(self) -> int:
        """Along which a path has a direction."""
        return sum(size > 1 for size in (self.rx.columns, self.rx.rows, self.tx.columns, self.tx.rows))

    @property
    def _polarisations(self) -> int:
        """Pairs of them."""
        return len(self.rx.slants) * len(self.tx.slants)

    def fit(self, problem: ChannelProblem, plan: Fit) -> dict[str, Json]:
        """Train on the broad family and on many arrays; `problem` only validates. See `chanest.networks.universal_training`."""
        return fit_universal(self, problem, plan)
