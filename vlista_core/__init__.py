"""Sparse recovery with a sensing matrix that changes with every sample. Modules are imported when they are used."""

from importlib import import_module
from typing import Any

_MODULES = (
    "checkpoint", "data", "dictionaries", "estimate", "gaussian", "linops", "metrics", "models", "problems", "prox",
    "solvers", "study", "testing", "theory", "training",
)  # fmt: skip
__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    """A public module, or the version of the package."""
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("vlista")
        except PackageNotFoundError:  # the sources were not installed
            return "unknown"
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
