"""Wireless MIMO channel estimation: channels, front ends, estimators, studies. Modules are imported when a name is used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chanest.arrays import Array, ula, upa
    from chanest.dictionaries import KroneckerMap, LearnedKronecker, angular_dictionary
    from chanest.estimators import estimator_names
    from chanest.frontend import BeamformingMap, GridMap
    from chanest.own import own_channels
    from chanest.pilots import DMRS, Block, Comb, Kronecker, Pilots
    from chanest.problem import ChannelBatch, ChannelProblem
    from chanest.recordings import recorded_pilots
    from chanest.scenario import Scenario, load_scenario, scenario_names
    from chanest.weights import get_estimator

    __version__: str

_NAMES = {
    "arrays": ("Array", "ula", "upa"),
    "dictionaries": ("KroneckerMap", "LearnedKronecker", "angular_dictionary"),
    "estimators": ("estimator_names",),
    "frontend": ("BeamformingMap", "GridMap"),
    "own": ("own_channels",),
    "pilots": ("DMRS", "Block", "Comb", "Kronecker", "Pilots"),
    "problem": ("ChannelBatch", "ChannelProblem"),
    "recordings": ("recorded_pilots",),
    "scenario": ("Scenario", "load_scenario", "scenario_names"),
    "weights": ("get_estimator",),
}
_PUBLIC_MODULES = ("bounds", "export", "link", "novelty", "pilots", "sionna", "studies", "tracking", "weights")
"""Modules with public names of their own."""
__all__ = [
    *_PUBLIC_MODULES,
    "DMRS", "Array", "BeamformingMap", "Block", "ChannelBatch", "ChannelProblem", "Comb", "GridMap", "Kronecker",
    "KroneckerMap", "LearnedKronecker", "Pilots", "Scenario", "__version__", "angular_dictionary", "estimator_names",
    "get_estimator", "load_scenario", "own_channels", "recorded_pilots", "scenario_names", "ula", "upa",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """A public name, from its module, or a public module."""
    if name == "__version__":
        import vlista_core

        return vlista_core.__version__
    if name in _PUBLIC_MODULES:
        return import_module(f"{__name__}.{name}")
    for module, names in _NAMES.items():
        if name in names:
            return getattr(import_module(f"chanest.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
