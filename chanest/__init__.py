"""Wireless MIMO channel estimation: channels, front ends, estimators, evaluation."""

from typing import TYPE_CHECKING, Any

from chanest.arrays import Array, ula, upa
from chanest.dictionaries import KroneckerMap, LearnedKronecker, angular_dictionary
from chanest.estimators import estimator_names
from chanest.frontend import BeamformingMap
from chanest.problem import ChannelBatch, ChannelProblem
from chanest.scenario import Scenario, load_scenario, scenario_names

if TYPE_CHECKING:
    from chanest.weights import get_estimator

__all__ = [
    "Array",
    "BeamformingMap",
    "ChannelBatch",
    "ChannelProblem",
    "KroneckerMap",
    "LearnedKronecker",
    "Scenario",
    "angular_dictionary",
    "estimator_names",
    "get_estimator",
    "load_scenario",
    "scenario_names",
    "ula",
    "upa",
]


def __getattr__(name: str) -> Any:
    """`get_estimator` brings the estimators and what they need with it, so it is imported when asked for."""
    if name == "get_estimator":
        from chanest.weights import get_estimator

        return get_estimator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
