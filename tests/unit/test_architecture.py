"""The rules of the house that a machine can check and no linter does."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_files_stay_readable() -> None:
    for folder in ("vlista_core", "chanest"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            assert len(path.read_text(encoding="utf-8").splitlines()) <= 350, path
