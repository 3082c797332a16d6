"""Orthogonal matching pursuit: add the atom most correlated with the residual, project, repeat.

The projection is a Gram–Schmidt factorisation A_S = QR that grows by one column per iteration, orthogonalised twice.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from vlista_core.estimate import Estimate, Measurement
from vlista_core.linops import LinearMap
from vlista_core.solvers.base import Solver, State, iterate, nonzeros, preference, within_noise


@dataclass(frozen=True, kw_only=True)
class OMP(Solver):
    """Orthogonal matching pursuit with at most `n_nonzero` atoms, fewer where the residual is within the noise first.

    Correlations are divided by the norms of the atoms, so the choice does not depend on how A's columns are scaled. Atoms that
    Φ does not see are never chosen, nor those that depend on the ones chosen already.
    """

    n_nonzero: int | None = None
    """None takes what m measurements can usually identify."""

    def solve(self, system: Measurement, dictionary: LinearMap) -> Estimate:
        code, taken = pursue(
            system,
            nonzeros(self.n_nonzero, system),
            atoms=lambda a: a,
            correlate=lambda a, residual: a.adjoint(residual[:, 0]).abs(),
        )
        return Estimate(dictionary.apply(code[:, 0]), code[:, 0], iterations=taken)


def pursue(
    system: Measurement,
    most: int,
    *,
    atoms: Callable[[LinearMap], LinearMap],
    correlate: Callable[[LinearMap, Tensor], Tensor],
    vectors: int = 1,
) -> tuple[Tensor, Tensor]:
    """One support of at most `most` atoms for S vectors in system.y; the code [batch, S, b] and the rounds taken [batch].

    atoms: from system.phi to the map whose columns are the atoms; correlate: from system.phi and the residuals
    [batch, S, m] to Σ_k |a_jᴴr_k|, [batch, b]. A sample is done where its residuals together are within the noise.
    """
    y = system.y.reshape(len(system.y), vectors, -1)
    (size, _, m), kind, device = y.shape, y.dtype, y.device
    norms = atoms(system.phi).column_norms()
    start = (
        y,
        y.new_zeros(size, most, m),
        torch.eye(most, dtype=kind, device=device).expand(size, -1, -1).clone(),
        y.new_zeros(size, most, vectors),
        torch.zeros(size, most, dtype=torch.int64, device=device),
        torch.where(norms > 0, preference(norms).sqrt() / norms, 0.0).expand(size, -1).clone(),
    )

    def add_atom(now: Measurement, state: State, t: int) -> tuple[State, Tensor]:
        """One atom more: residuals [batch, S, m], Q [batch, k, m], R [batch, k, k], Qᴴy [batch, k, S], support, weights.

        A sample that is done adds nothing: its column of Q and its coefficients stay zero. Q and R grow in place.
        """
        residual, basis, triangle, projections, support, weight = state
        precision = torch.finfo(residual.real.dtype).eps
        strongest, chosen = (correlate(now.phi, residual) * weight).max(1)
        atom = atoms(now.phi).columns(chosen[:, None])[:, :, 0]
        direction, overlap = orthogonalised(atom, basis[:, :t])
        length = torch.linalg.vector_norm(direction, dim=1)
        # With less than √eps of the atom beside the others, more than half the digits of its coefficient are rounding.
        usable = (strongest > 0) & (length > math.sqrt(precision) * torch.linalg.vector_norm(atom, dim=1))
        usable &= ~within_noise(residual.flatten(1), now.noise_var)
        unit = torch.where(usable[:, None], direction / length.clamp_min(torch.finfo(length.dtype).tiny)[:, None], 0)
        triangle[:, :t, t] = torch.where(usable[:, None], overlap, 0)
        triangle[:, t, t] = torch.where(usable, length, 1)
        basis[:, t] = unit
        projection = (residual @ unit.conj()[:, :, None])[:, :, 0]
        projections[:, t] = projection
        support[:, t] = chosen
        weight.scatter_(1, chosen[:, None], torch.zeros_like(weight[:, :1]))
        residual = residual - projection[:, :, None] * unit[:, None, :]
        done = ~usable | within_noise(residual.flatten(1), now.noise_var)
        return (residual, basis, triangle, projections, support, weight), done

    (_, _, triangle, projections, support, _), taken = iterate(system, start, add_atom, most)
    values = torch.linalg.solve_triangular(triangle, projections, upper=True).mT
    code = y.new_zeros(size, vectors, norms.shape[1])
    return code.scatter_add(2, support[:, None, :].expand_as(values), values), taken


def orthogonalised(vector: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """What is left of `vector` beside an orthonormal basis, and its coefficients in it: taken off twice for precision.

    vector: [batch, m], basis: [batch, k, m] -> [batch, m], [batch, k].
    """
    coefficients = vector.new_zeros(len(vector), 1, basis.shape[1])
    for _ in range(2 if basis.shape[1] else 0):
        overlap = torch.bmm(vector[:, None, :], basis.mH)
        coefficients = coefficients + overlap
        vector = vector - torch.bmm(overlap, basis)[:, 0]
    return vector, coefficients[:, 0]
