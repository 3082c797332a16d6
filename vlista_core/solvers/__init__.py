"""Classical sparse solvers, one algorithm per file. Adding one is a new file and a line in SOLVERS."""

from vlista_core.solvers.amp import AMP
from vlista_core.solvers.base import Solver
from vlista_core.solvers.bcs import BCS
from vlista_core.solvers.fista import FISTA
from vlista_core.solvers.iht import IHT
from vlista_core.solvers.ista import ISTA
from vlista_core.solvers.omp import OMP
from vlista_core.solvers.selection import Selection, TunedLasso, Widened, select_hyperparameters, tune_lasso, widen
from vlista_core.solvers.vamp import VAMP

SOLVERS: dict[str, type[Solver]] = {
    "ista": ISTA,
    "fista": FISTA,
    "iht": IHT,
    "omp": OMP,
    "amp": AMP,
    "vamp": VAMP,
    "bcs": BCS,
}


def get_solver(name: str) -> type[Solver]:
    """The solver class registered as `name`."""
    if name not in SOLVERS:
        raise ValueError(f"unknown solver {name!r}; known are {', '.join(SOLVERS)}")
    return SOLVERS[name]


__all__ = [
    "AMP",
    "BCS",
    "FISTA",
    "IHT",
    "ISTA",
    "OMP",
    "SOLVERS",
    "VAMP",
    "Selection",
    "Solver",
    "TunedLasso",
    "Widened",
    "get_solver",
    "select_hyperparameters",
    "tune_lasso",
    "widen",
]
