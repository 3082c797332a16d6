"""Grid search: the tuning that a classical baseline deserves, on validation draws only."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

from vlista_core.linops import LinearMap
from vlista_core.metrics import nmse_db
from vlista_core.problems import Problem, check_count
from vlista_core.solvers.base import Solver

S = TypeVar("S", bound=Solver)
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
