"""Batched linear maps: the sensing matrix Φ, the dictionary Ψ and their lazy product.

A map takes a batch of vectors `x: [batch, n]` to `[batch, m]`. Its matrix is either shared by the batch (one GEMM) or
differs for every sample (a batched product). `phi @ psi` is lazy: ΦΨ costs two products per call and is never formed
unless `materialize` is called by name.
"""

from vlista_core.linops.base import LinearMap
from vlista_core.linops.composed import ComposedMap
from vlista_core.linops.dense import DenseMap, GroupedMap, IdentityMap, as_map
from vlista_core.linops.scaled import ScaledMap

__all__ = ["ComposedMap", "DenseMap", "GroupedMap", "IdentityMap", "LinearMap", "ScaledMap", "as_map"]
