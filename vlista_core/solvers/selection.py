"""Grid search: the tuning that a classical baseline deserves, on validation draws only."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from torch import Tensor

from vlista_core.linops import LinearMap
from vlista_core.metrics import nmse_db
from vlista_core.problems import Problem, check_count
from vlista_core.solvers.base import Solver
from vlista_core.solvers.ista import LassoSolver

S = TypeVar("S", bound=Solver)
COUNTS = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000)
"""Iterations at which a run is scored; the last is the cap."""
Value = float | int | bool | str | None | LinearMap


@dataclass(frozen=True)
class Selection(Generic[S]):
    """The best solver of a grid and the figure of every point, best first."""

    solver: S
    scores: tuple[tuple[dict[str, Value], float], ...]


def select_hyperparameters(
    solver_class: type[S],
    grid: Mapping[str, Sequence[Value]],
    problem: Problem,
    metric: Callable[[Tensor, Tensor], float] = nmse_db,
    *,
    count: int = 128,
    seed: int = 0,
    snr_db: float | None = None,
) -> Selection[S]:
    """The point of `grid` with the least metric(estimate, signal) on `count` validation draws of `problem`.

    grid: parameter name -> values to try; every combination is tried. A metric that is better when larger is negated by
    the caller. Points whose metric is NaN rank last.
    """
    check_count("count", count)
    known = set(solver_class.__dataclass_fields__)
    for name, values in grid.items():
        if name not in known:
            raise ValueError(f"grid names {name!r}, but {solver_class.__name__} has only {', '.join(sorted(known))}")
        if not values:
            raise ValueError(f"grid gives no value for {name!r}; at least one is needed")
    batch = problem.sample(count, seed=seed, split="validation", snr_db=snr_db)
    build: Callable[..., S] = solver_class
    scored: list[tuple[dict[str, Value], float]] = []
    for values in itertools.product(*grid.values()):
        point = dict(zip(grid, values, strict=True))
        estimate = build(**point).estimate(batch.y, batch.phi, batch.noise_var)
        score = metric(estimate.signal, batch.signal)
        scored.append((point, score if score == score else float("inf")))
    scored.sort(key=lambda entry: entry[1])
    return Selection(build(**scored[0][0]), tuple(scored))


@dataclass(frozen=True)
class Widened:
    """What a search over one number found: the best value, the figure of every value tried, and whether it is no edge."""

    value: float
    scores: dict[float, float]
    inside: bool


def widen(
    score: Callable[[float], float],
    start: Sequence[float],
    *,
    worth: float,
    ratio: float = 10.0,
    limits: tuple[float, float] = (1e-9, 1e5),
) -> Widened:
    """The value with the least score, from a grid that grows by `ratio` beyond an edge as long as the best lies there.

    An inner value is taken where it is within `worth` of the best: there the score is flat. Its neighbours at √ratio are
    tried last. inside is False where the grid came to its `limits` first. A score of NaN ranks last.
    """
    scores: dict[float, float] = {}

    def tried(value: float) -> float:
        found = score(value)
        scores[value] = found if found == found else float("inf")
        return scores[value]

    least = min(map(tried, start))
    while True:
        values = sorted(scores)
        inner = min(values[1:-1], key=scores.__getitem__, default=values[0])
        if len(values) > 2 and scores[inner] <= least + worth:
            finer = min(inner / ratio**0.5, inner * ratio**0.5, key=tried)
            return Widened(min(inner, finer, key=scores.__getitem__), scores, inside=True)
        low = scores[values[0]] <= scores[values[-1]]
        beyond = values[0] / ratio if low else values[-1] * ratio
        if not limits[0] <= beyond <= limits[1]:
            return Widened(values[0] if low else values[-1], scores, inside=False)
        least = min(least, tried(beyond))


@dataclass(frozen=True)
class TunedLasso:
    """A proximal gradient method with the best penalty and number of iterations, and how they were found."""

    solver: LassoSolver
    tried: tuple[tuple[float, int, float], ...]
    """(penalty, iterations, figure) of every point."""
    penalty_inside: bool
    """Whether a larger and a smaller penalty were tried."""
    iterations_inside: bool
    """Whether more iterations were tried; if not, the number is the cap."""


def tune_lasso(
    solver: LassoSolver,
    problem: Problem,
    metric: Callable[[Tensor, Tensor], float],
    *,
    worth: float,
    penalties: Sequence[float] = (1e-3, 1e-2, 1e-1, 1.0, 10.0),
    counts: Sequence[int] = COUNTS,
    count: int = 32,
    seed: int = 0,
) -> TunedLasso:
    """`solver` with the penalty and the number of iterations that have the least metric on `count` validation draws.

    One run for each penalty is scored at all `counts`, which rise to the cap. Penalties are widened as in `widen`; of numbers
    of iterations within `worth` of the best, the least is taken.
    """
    batch = problem.sample(count, seed=seed, split="validation")
    tried: list[tuple[float, int, float]] = []
    chosen: dict[float, int] = {}

    def score(penalty: float) -> float:
        run = replace(solver, penalty=penalty).estimates_after(batch.y, batch.phi, batch.noise_var, counts)
        scores = [metric(estimate.signal, batch.signal) for estimate in run]
        scores = [found if found == found else float("inf") for found in scores]
        tried.extend(zip([penalty] * len(counts), counts, scores, strict=True))
        chosen[penalty] = next(n for n, found in zip(counts, scores, strict=True) if found <= min(scores) + worth)
        return min(scores)

    found = widen(score, penalties, worth=worth)
    iterations = chosen[found.value]
    return TunedLasso(
        replace(solver, penalty=found.value, iterations=iterations), tuple(tried), found.inside, iterations < counts[-1]
    )
