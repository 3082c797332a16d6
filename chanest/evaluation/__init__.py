"""Every estimator on the same test channels: NMSE with intervals, latency, parameters; resumable, in parallel if asked."""

from chanest.evaluation.plan import Plan, Sweep
from chanest.evaluation.results import REFERENCE, Results, Row
from chanest.evaluation.run import evaluate, usable_bounds, usable_estimators

__all__ = ["REFERENCE", "Plan", "Results", "Row", "Sweep", "evaluate", "usable_bounds", "usable_estimators"]
