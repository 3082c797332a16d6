"""Importing the library is cheap: what takes long to import is imported where it is used."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torchmetrics", "lightning_fabric", "matplotlib", "sklearn", "pywt", "sionna")


@pytest.mark.parametrize("modules", ["metrics", "training", "models, solvers, checkpoint, dictionaries"])
def test_heavy_libraries_are_not_loaded(modules: str) -> None:
    code = f"import sys; from vlista_core import {modules}; print([name for name in {HEAVY} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("package", ["chanest", "vlista_core"])
def test_a_package_shows_what_is_public_and_nothing_else(package: str) -> None:
    code = f"""
import {package}
before = dir({package})
for name in before:
    getattr({package}, name)
import chanest.cli, vlista_core.files, vlista_core.experiments.cli
assert dir({package}) == before == sorted({package}.__all__)
print(*(name for name in before if not name.startswith('__')))
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"chanest": "get_estimator", "vlista_core": "solvers"}[package] in found
    assert not {"PackageNotFoundError", "version", "import_module", "Any", "files", "cli"} & set(found)


def test_a_command_line_is_there_before_torch_is() -> None:
    code = (
        "import sys, chanest.cli, vlista_core.experiments.cli; print('torch' in sys.modules, 'pandas' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "False"]


def test_tensorflow_is_for_the_keras_layer_alone() -> None:
    """No other module imports it, and importing the package does not import that one."""
    root = Path(__file__).parents[2]
    wanted = re.compile(r"^\s*(?:import|from) (?:tensorflow|keras)\b", flags=re.MULTILINE)
    sources = [path for package in ("chanest", "vlista_core") for path in (root / package).rglob("*.py")]
    using = [path.relative_to(root).as_posix() for path in sources if wanted.search(path.read_text(encoding="utf-8"))]
    assert using == ["chanest/keras.py"]
    code = (
        "import sys, chanest\nfor name in dir(chanest): getattr(chanest, name)\nprint('chanest.keras' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_without_tensorflow_the_keras_layer_says_what_to_install() -> None:
    attempt = "try:\n    import chanest.keras\nexcept ImportError as fault:\n    print(fault)"
    code = f"import sys; sys.modules['keras'] = None\n{attempt}"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "chanest.keras needs TensorFlow: pip install 'vlista[tensorflow]'"
