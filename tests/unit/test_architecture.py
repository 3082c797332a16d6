"""The rules of the house that a machine can check and import-linter does not."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chanest.bases.estimator import ChannelEstimator
from chanest.estimators import estimator_class, estimator_names

ROOT = Path(__file__).parents[2]
SOURCES = sorted(path for folder in ("vlista_core", "chanest") for path in (ROOT / folder).rglob("*.py"))
FACTORISING = {"cholesky", "cholesky_ex", "solve_hermitian", "solve_semidefinite", "cholesky_solve", "cholesky_inverse"}


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def _names(node: ast.AST) -> set[str]:
    """Every name, attribute and argument that occurs in a piece of code."""
    found = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            found.add(part.id)
        elif isinstance(part, ast.Attribute):
            found.add(part.attr)
        elif isinstance(part, ast.arg):
            found.add(part.arg)
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_only_the_gaussian_factorises_a_covariance_with_noise(path: Path) -> None:
    """C = ΦRΦᴴ + σ²I is built from the noise: a function that has the noise and factorises anything is one too many."""
    place = path.relative_to(ROOT).as_posix()
    if place in ("vlista_core/gaussian.py", "vlista_core/linalg.py"):
        return
    for function in _functions(ast.parse(path.read_text(encoding="utf-8"))):
        names = _names(function)
        noisy = {name for name in names if "noise" in name.lower()}
        assert not (names & FACTORISING and noisy), f"{place}: {function.name} factorises with {', '.join(noisy)}"


def test_torchs_cholesky_is_called_in_one_place() -> None:
    calling = [path.name for path in SOURCES if "linalg.cholesky" in path.read_text(encoding="utf-8")]
    assert calling == ["linalg.py"]


def test_the_folder_of_estimators_holds_estimators_only_one_a_file() -> None:
    folder = ROOT / "chanest" / "estimators"
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert files == {name.replace("-", "_") for name in estimator_names()}
    for name in estimator_names():
        cls = estimator_class(name)
        tree = ast.parse((folder / f"{name.replace('-', '_')}.py").read_text(encoding="utf-8"))
        assert [node.name for node in tree.body if isinstance(node, ast.ClassDef)] == [cls.__name__]
        assert issubclass(cls, ChannelEstimator)


@pytest.mark.parametrize("package", ["chanest", "vlista_core", "chanest.cli"])
def test_imports_are_light(package: str) -> None:
    heavy = (
        "sionna",
        "matplotlib",
        "lightning",
        "lightning_fabric",
        "pandas",
        "torchmetrics",
        "sklearn",
        "h5py",
        "dask",
    )
    code = f"import sys, {package}; print(*(name for name in {heavy!r} if name in sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert run.stdout.split() == []


def test_files_stay_readable() -> None:
    for path in SOURCES:
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 350, path


TRACE = """
import sys
import chanest
from vlista_core.metrics import nmse_db

passed = set()

def note(frame, event, argument):
    path = frame.f_code.co_filename
    if event == "call" and frame.f_code.co_flags & 2 and ("/chanest/" in path or "/vlista_core/" in path):
        passed.add(path)

def look():
    problem = chanest.ChannelProblem(chanest.load_scenario("cdl_c_upa64x4"))
    batch = problem.sample(8, seed=7, snr_db=0.0)
    out = chanest.get_estimator("ls", problem).estimate(batch.y, batch.phi, batch.noise_var)
    nmse_db(out.signal, batch.signal)

sys.setprofile(note)
look()
sys.setprofile(None)
print(len(passed))
"""


def test_least_squares_passes_few_modules() -> None:
    """From a scenario to its NMSE: what a reader of the example's first look has to open."""
    run = subprocess.run([sys.executable, "-c", TRACE], capture_output=True, text=True, check=True, cwd=ROOT)
    assert int(run.stdout) <= 29
