"""Import code of others from a clone, for as long as it is needed: nothing of it stays among our modules."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock

import torch


@contextmanager
def foreign_modules(clone: Path, names: Sequence[str], absent: Sequence[str] = ()) -> Iterator[list[ModuleType]]:
    """Modules of a clone by name. Those that belong to it are forgotten at the end, so that two clones may both have `utils`.

    absent: packages that their files import and that nothing here calls (figures, downloads); they need not be installed.
    """
    before, generator = dict(sys.modules), torch.get_rng_state()
    root = str(clone)
    sys.path.insert(0, root)
    for name in list(sys.modules):
        if any(name == each or name.startswith(f"{each}.") for each in _roots(clone)):
            del sys.modules[name]
    for name in absent:
        if name not in sys.modules:
            sys.modules[name] = MagicMock(name=name)
    try:
        yield [importlib.import_module(name) for name in names]
    finally:
        sys.path.remove(root)
        torch.set_rng_state(generator)
        for name in [name for name, module in sys.modules.items() if _is_foreign(module, root) or name in absent]:
            if name not in before:
                del sys.modules[name]
        sys.modules.update({name: module for name, module in before.items() if name not in sys.modules})


def _roots(clone: Path) -> list[str]:
    """Names that an import would find in the clone."""
    files = [path.stem for path in clone.glob("*.py")]
    return files + [path.name for path in clone.iterdir() if path.is_dir() and any(path.glob("*.py"))]


def _is_foreign(module: ModuleType, root: str) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and file.startswith(root)
