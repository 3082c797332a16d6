"""Sparse recovery with a sensing matrix that changes with every sample."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("vlista")
except PackageNotFoundError:  # the sources were not installed
    __version__ = "unknown"

__all__ = ["__version__"]
