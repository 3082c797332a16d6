"""The rules of the house that a machine can check: imports go one way, files stay short, no pickle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOW = {"configured", "tensorfile", "linops", "linalg", "prox", "dictionaries", "estimate", "problems", "draws"}
PLUMBING = {"files", "jobs", "page", "plotting", "progress", "provenance", "tables", "terminal", "tensorfile"}
ALLOWED = {"solvers": LOW | {"solvers", "metrics"}, "models": LOW | {"models"}}


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def _sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def test_vlista_core_knows_nothing_of_radio() -> None:
    for path in _sources("vlista_core"):
        roots = {name.split(".")[0] for name in _imports(path)}
        assert not roots & {"chanest", "sionna"}, path


def test_sionna_is_imported_by_channels_link_and_the_block_only() -> None:
    for path in _sources("chanest"):
        if path.relative_to(ROOT / "chanest").parts[0] not in ("channels", "link", "sionna.py"):
            assert "sionna" not in {name.split(".")[0] for name in _imports(path)}, path


@pytest.mark.parametrize("folder", ALLOWED)
def test_solvers_and_models_import_only_what_lies_below(folder: str) -> None:
    for path in _sources(f"vlista_core/{folder}"):
        for name in _imports(path):
            parts = name.split(".")
            if parts[0] == "vlista_core":
                assert parts[1] in ALLOWED[folder], f"{path} imports {name}"


def test_the_lowest_layer_imports_no_solver_model_or_experiment() -> None:
    for path in _sources("vlista_core"):
        if path.relative_to(ROOT / "vlista_core").parts[0].removesuffix(".py") in LOW:
            for name in _imports(path):
                parts = name.split(".")
                assert parts[0] != "vlista_core" or parts[1] in LOW, f"{path} imports {name}"


def test_experiments_sit_on_top_and_plumbing_knows_nothing_of_models() -> None:
    for path in _sources("vlista_core"):
        place = path.relative_to(ROOT / "vlista_core").parts[0].removesuffix(".py")
        parts = [name.split(".") for name in _imports(path) if name.startswith("vlista_core.")]
        if place != "experiments":
            assert all(part[1] != "experiments" for part in parts), path
        if place in PLUMBING:
            assert all(part[1] in PLUMBING for part in parts), path


def test_no_pickle_anywhere() -> None:
    for folder in ("vlista_core", "chanest"):
        for path in _sources(folder):
            assert not {"pickle", "joblib", "dill"} & {name.split(".")[0] for name in _imports(path)}, path


def test_files_stay_readable() -> None:
    for folder in ("vlista_core", "chanest"):
        for path in _sources(folder):
            assert len(path.read_text(encoding="utf-8").splitlines()) <= 350, path
