"""The paper's experiments under one registry. A new one is one module and one line in `EXPERIMENTS`."""

from __future__ import annotations

from importlib import import_module

from vlista_core.experiments.base import Cell, Context, Experiment, Figure, cell_id

EXPERIMENTS: dict[str, str] = {
    "synthetic": "vlista_core.experiments.synthetic:Synthetic",
    "mnist": "vlista_core.experiments.images:mnist",
    "cifar10": "vlista_core.experiments.images:cifar10",
    "mnist-fixed": "vlista_core.experiments.images:mnist_fixed",
    "cifar10-fixed": "vlista_core.experiments.images:cifar10_fixed",
    "ood": "vlista_core.experiments.ood:OutOfDistribution",
    "calibration": "vlista_core.experiments.calibration:Calibration",
    "reconstructions": "vlista_core.experiments.reconstructions:Reconstructions",
    "complexity": "vlista_core.experiments.complexity:ComplexityExperiment",
}
"""Name -> module and what gives the experiment when called, in the order of the report. Imported when asked for."""


def experiment_names() -> list[str]:
    """The registered experiments, in the order of the report."""
    return list(EXPERIMENTS)


def place_of(name: str) -> str:
    """Where the experiment registered as `name` is, or a ValueError that lists the known ones."""
    if name not in EXPERIMENTS:
        raise ValueError(f"unknown experiment {name!r}; known are {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]


def get_experiment(name: str) -> Experiment:
    """The experiment registered as `name`."""
    return load_experiment(place_of(name))


def load_experiment(place: str) -> Experiment:
    """The experiment at a place of the registry, "module:callable"."""
    module, _, attribute = place.partition(":")
    made: Experiment = getattr(import_module(module), attribute)()
    return made


__all__ = [
    "EXPERIMENTS",
    "Cell",
    "Context",
    "Experiment",
    "Figure",
    "cell_id",
    "experiment_names",
    "get_experiment",
    "load_experiment",
    "place_of",
]
