"""Wireless MIMO channel estimation: channels, front ends, estimators, evaluation."""

from chanest.arrays import Array, ula, upa
from chanest.dictionaries import KroneckerMap, LearnedKronecker, angular_dictionary
from chanest.estimators import estimator_names
from chanest.estimators.library import get_estimator
from chanest.frontend import BeamformingMap
from chanest.problem import ChannelBatch, ChannelProblem
from chanest.scenario import Scenario, load_scenario, scenario_names

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
