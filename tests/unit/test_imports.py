"""Importing the library is cheap: what takes long to import is imported where it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torchmetrics", "lightning_fabric", "matplotlib", "sklearn", "pywt", "sionna")


@pytest.mark.parametrize("modules", ["metrics", "training", "models, solvers, checkpoint, dictionaries"])
def test_heavy_libraries_are_not_loaded(modules: str) -> None:
    code = f"import sys; from vlista_core import {modules}; print([name for name in {HEAVY} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
