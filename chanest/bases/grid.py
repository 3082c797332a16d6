"""What the sparse estimators share: a grid of angles made from the arrays, and settings chosen on validation draws."""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import ClassVar, Self

from torch import Tensor

from chanest.bases.estimator import SNRS_DB, ChannelEstimator, validation_draws
from chanest.dictionaries import KroneckerMap, Link, angular_dictionary
from chanest.fit import Clock, Fit
from chanest.problem import ChannelProblem
from vlista_core.estimate import Estimate, Measurement
from vlista_core.solvers.base import Solver
from vlista_core.tensorfile import Json

Settings = Mapping[str, float]
Choices = Mapping[str, tuple[float, ...]]

_CHANNELS = 100
_LEAST_CHANNELS = 8
_SCORES = 25


class GridEstimator(ChannelEstimator):
    """A sparse code on a grid of angles (and delays). Its few settings are numbers; `fit` chooses them.

    A file holds the arrays and the settings, no tensors: the grid is made again when it is read.
    """

    scale_free = True
    mode_by_mode = True
    loudest = 10**0.5
    settings: dict[str, float]
    """`oversampling` of the grid and what else the method takes."""
    defaults: ClassVar[Settings]
    """The settings of an estimator that was not fitted."""
    choices: ClassVar[Choices]
    """Setting -> the values that `fit` tries, in the order in which the settings are searched."""
    chunk_bytes: ClassVar[int] = 2**26
    """How much ΦΨ of the samples that are solved at once may take, were it formed."""

    def __init__(self, link: Link, settings: Settings) -> None:
        super().__init__(link.signal_length)
        self.link = link
        self.settings = dict(settings)
        self._grids: dict[float, KroneckerMap] = {}

    @classmethod
    def build(cls, problem: ChannelProblem) -> Self:
        return cls(Link.of(problem), cls.defaults)

    @abstractmethod
    def solve(self, measured: Measurement, dictionary: KroneckerMap) -> Estimate:
        """The estimate of a chunk of samples; the dictionary has the device and the precision of y."""

    def grid(self) -> KroneckerMap:
        """The dictionary of the present oversampling, as `ChannelProblem.dictionary`."""
        return angular_dictionary(
            self.link.rx, self.link.tx, self.link.frequencies, oversampling=self.settings["oversampling"]
        )

    def dictionary_for(self, y: Tensor) -> KroneckerMap:
        """`grid` on the device and in the precision of y; the last one is kept."""
        oversampling = self.settings["oversampling"]
        if oversampling not in self._grids:
            self._grids = {oversampling: self.grid()}
        return self._grids[oversampling].to(y.device).cast(y.dtype)

    def chunk(self, measured: Measurement) -> int:
        atoms = self.dictionary_for(measured.y).shape[1]
        return self.chunk_bytes // (measured.y.dtype.itemsize * measured.y.shape[1] * atoms)

    def infer(self, measured: Measurement) -> Estimate:
        return self.solve(measured, self.dictionary_for(measured.y))

    def level(self, measured: Measurement) -> Tensor:
        """The variance an entry of y is taken to have beyond the code: [batch].

        noise_factor·σ² + model_error·mean|y|². The first guards against fitting noise, the second stands for what no
        few atoms of a grid explain of a channel; it decides at high SNR.
        """
        power = measured.y.abs().square().mean(1)
        return (
            self.settings.get("noise_factor", 1.0) * measured.noise_var + self.settings.get("model_error", 0.0) * power
        )

    def fit(self, problem: ChannelProblem, plan: Fit) -> dict[str, Json]:
        """Search one setting after the other on validation draws until none changes or the budget is spent.

        The score is the mean over SNR 0, 10 and 20 dB of the NMSE in dB, on 100 channels each, or as many as the time
        allows for 25 scores; a budget in steps counts scores.
        """
        search = _Search(self, problem, plan)
        best = dict(self.settings)
        score = search.score(best)
        changed, skipped = True, False
        while changed and not skipped:
            changed = False
            for name, values in self.choices.items():
                for value in values:
                    tried = {**best, name: value}
                    if not search.affordable(tried):
                        skipped = True
                    elif (tried_score := search.score(tried)) < score:
                        best, score, changed = tried, tried_score, True
        self.settings = best
        self.reconfigure(settings=best)
        return {
            "settings": dict(best),
            "validation_nmse_db": score,
            "snr_db": list(SNRS_DB),
            "validation_channels": search.channels,
            "settings_tried": len(search.scores),
            "search_finished": not skipped,
        }


class SolverEstimator(GridEstimator):
    """A solver of vlista_core that is told `level` in place of σ² and takes the settings that are fields of its own."""

    solver_class: ClassVar[type[Solver]]

    def solver(self, measurements: int, dictionary: KroneckerMap) -> Solver:
        """The solver that the present settings mean for m measurements."""
        build: Callable[..., Solver] = self.solver_class
        own = self.settings.keys() & {field.name for field in fields(self.solver_class)}
        return build(dictionary=dictionary, **{name: self.settings[name] for name in own})

    def solve(self, measured: Measurement, dictionary: KroneckerMap) -> Estimate:
        solver = self.solver(measured.y.shape[1], dictionary)
        return solver.estimate(measured.y, measured.phi, self.level(measured))


class _Search:
    """Scores of settings on one set of validation draws, each computed once."""

    def __init__(self, estimator: GridEstimator, problem: ChannelProblem, plan: Fit) -> None:
        self.estimator, self.clock = estimator, Clock(plan)
        self.share_per_atom = 0.0
        self.scores: dict[tuple[tuple[str, float], ...], float] = {}
        self.draws = validation_draws(problem, plan, _LEAST_CHANNELS)
        self.score(estimator.settings)
        affordable = int(_LEAST_CHANNELS / _SCORES / max(self.clock.share(), 1e-9)) if plan.steps is None else _CHANNELS
        self.draws = validation_draws(problem, plan, min(max(affordable, _LEAST_CHANNELS), _CHANNELS))
        self.scores.clear()

    @property
    def channels(self) -> int:
        """How many channels there are at each SNR."""
        return len(self.draws[0])

    def score(self, settings: Settings) -> float:
        """Mean NMSE in dB of the estimator with these settings; Inf where it is not a number."""
        key = tuple(sorted(settings.items()))
        if key not in self.scores:
            before = self.clock.share()
            self.estimator.settings = dict(settings)
            mean = sum(self.estimator.nmse_db(batch) for batch in self.draws) / len(self.draws)
            self.scores[key] = math.inf if math.isnan(mean) else mean
            self.clock.tick()
            self.share_per_atom = (self.clock.share() - before) / self.estimator.grid().shape[1]
            words = ", ".join(f"{name} {value:g}" for name, value in settings.items())
            self.clock.report(f"{mean:.2f} dB with {words}")
        return self.scores[key]

    def affordable(self, settings: Settings) -> bool:
        """Whether a score of these settings is known or, going by the last one, fits into the budget left."""
        if tuple(sorted(settings.items())) in self.scores:
            return True
        self.estimator.settings = dict(settings)
        return self.clock.share() + self.share_per_atom * self.estimator.grid().shape[1] <= 1.0
