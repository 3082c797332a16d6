"""Channel estimators under one registry. A new one is one file and one line in `_PLACES`."""

from __future__ import annotations

from importlib import import_module

from chanest.estimators.base import ChannelEstimator, Fit

_PLACES = {
    "ls": "linear.LS",
    "lmmse": "linear.LMMSE",
    "gmm": "gmm.GMM",
    "omp": "sparse.OMPEstimator",
    "somp": "sparse.SOMPEstimator",
    "sw-omp": "sparse.SWOMPEstimator",
    "fista": "sparse.FISTAEstimator",
    "amp": "sparse.AMPEstimator",
    "vamp": "sparse.VAMPEstimator",
    "sbl": "sbl.SBL",
    "ray-sbl": "ray_sbl.RaySBL",
    "bcs": "sparse.BCSEstimator",
    "lista": "learned.LISTAEstimator",
    "alista": "learned.ALISTAEstimator",
    "nalista": "learned.NALISTAEstimator",
    "dlista": "learned.DLISTAEstimator",
    "a-dlista-scalar": "learned.ScalarADLISTAEstimator",
    "vlista": "variational.VLISTAEstimator",
    "a-dlista": "adlista.ADLISTAEstimator",
    "a-dlista+": "adlista_plus.ADLISTAPlus",
}
"""Name -> module and class below this package, in the order of tables. Modules are imported when asked for."""


def estimator_names() -> list[str]:
    """The registered estimators, in the order of tables."""
    return list(_PLACES)


def estimator_class(name: str) -> type[ChannelEstimator]:
    """The class registered as `name`, or a ValueError that lists the known ones."""
    if name not in _PLACES:
        raise ValueError(f"unknown estimator {name!r}; known are {', '.join(_PLACES)}")
    module, _, cls = _PLACES[name].partition(".")
    found: type[ChannelEstimator] = getattr(import_module(f"{__name__}.{module}"), cls)
    return found


__all__ = ["ChannelEstimator", "Fit", "estimator_class", "estimator_names"]
