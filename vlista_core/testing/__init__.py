"""Contract checks for linear maps, covariances and estimators, shipped so that users' own classes can run them too.

    from vlista_core.testing import ESTIMATOR_CHECKS, EstimatorCase

    case = EstimatorCase("mine", lambda dtype, device: MyEstimator())
    for check in ESTIMATOR_CHECKS:
        check(case, torch.float64)

A check raises AssertionError with what broke.
"""

from vlista_core.testing.cases import EstimatorCase, sparse_batch
from vlista_core.testing.covariances import COVARIANCE_CHECKS, CovarianceCase
from vlista_core.testing.estimators import ESTIMATOR_CHECKS
from vlista_core.testing.maps import MAP_CHECKS, MapCase
from vlista_core.testing.tools import SpyMap

__all__ = [
    "COVARIANCE_CHECKS",
    "ESTIMATOR_CHECKS",
    "MAP_CHECKS",
    "CovarianceCase",
    "EstimatorCase",
    "MapCase",
    "SpyMap",
    "sparse_batch",
]
