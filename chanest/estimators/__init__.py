"""Channel estimators, one file each. A new one is one file here and one line in `_CLASSES`."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chanest.bases.estimator import ChannelEstimator

_CLASSES = {
    "ls": "LS",
    "lmmse": "LMMSE",
    "gmm": "GMM",
    "omp": "OMPEstimator",
    "somp": "SOMPEstimator",
    "sw-omp": "SWOMPEstimator",
    "fista": "FISTAEstimator",
    "amp": "AMPEstimator",
    "vamp": "VAMPEstimator",
    "sbl": "SBL",
    "ray-sbl": "RaySBL",
    "nomp": "NOMP",
    "bcs": "BCSEstimator",
    "lista": "LISTAEstimator",
    "alista": "ALISTAEstimator",
    "nalista": "NALISTAEstimator",
    "dlista": "DLISTAEstimator",
    "a-dlista": "ADLISTAEstimator",
    "a-dlista-adaptive": "AdaptiveADLISTAEstimator",
    "vlista": "VLISTAEstimator",
    "atom-lmmse": "AtomLMMSE",
    "gated-lmmse": "GatedLMMSE",
    "product-lmmse": "ProductLMMSE",
    "cluster-lmmse": "ClusterLMMSE",
    "slot-lmmse": "SlotLMMSE",
    "delay-sbl": "DelaySBL",
    "universal": "Universal",
}
"""Name -> class, in the order of tables; the module has the name of the estimator. Modules are imported when asked for."""


def estimator_names() -> list[str]:
    """The registered estimators, in the order of tables."""
    return list(_CLASSES)


def estimator_class(name: str) -> "type[ChannelEstimator]":
    """The class registered as `name`, or a ValueError that lists the known ones."""
    if name not in _CLASSES:
        raise ValueError(f"unknown estimator {name!r}; known are {', '.join(_CLASSES)}")
    module = import_module(f"{__name__}.{name.replace('-', '_')}")
    found: type[ChannelEstimator] = getattr(module, _CLASSES[name])
    return found


__all__ = ["estimator_class", "estimator_names"]
