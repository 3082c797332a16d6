"""Orthogonal matching pursuit: add the atom most correlated with the residual, project, repeat.

The projection is a Gram–Schmidt factorisation A_S = QR that grows by one column per iteration, orthogonalised twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vlista_core.estimate import Estimate, Measurement
from vlista_core.linops import LinearMap
from vlista_core.solvers.base import Solver, State, iterate, nonzeros, within_noise, zero_code


@dataclass(frozen=True, kw_only=True)
class OMP(Solver):
    """Orthogonal matching pursuit with at most `n_nonzero` atoms, fewer where the residual is within the noise first.

    Correlations are divided by the norms of the atoms, so the choice does not depend on how A's columns are scaled.
    """

    n_nonzero: int | None = None
    """None takes what m measurements can usually identify."""

    def solve(self, system: Measurement, dictionary: LinearMap) -> Estimate:
        most, m = nonzeros(self.n_nonzero, system), system.phi.shape[0]
        size, kind, device = system.y.shape[0], system.y.dtype, system.y.device
        norms = system.phi.column_norms()
        weight = torch.where(norms > 0, 1.0 / norms, torch.zeros_like(norms)).expand(size, -1)
        start = (
            system.y,
            system.y.new_zeros(size, most, m),
            torch.eye(most, dtype=kind, device=device).expand(size, -1, -1).clone(),
            system.y.new_zeros(size, most),
            torch.zeros(size, most, dtype=torch.int64, device=device),
            weight.clone(),
        )
        (_, _, triangle, projections, support, _), taken = iterate(system, start, _add_atom, most)
        values = torch.linalg.solve_triangular(triangle, projections[:, :, None], upper=True)[:, :, 0]
        code = zero_code(system).scatter_add(1, support, values)
        return Estimate(dictionary.apply(code), code, iterations=taken)


def _add_atom(system: Measurement, state: State, t: int) -> tuple[State, Tensor]:
    """One atom more: residual [batch, m], Q [batch, k, m], R [batch, k, k], Qᴴy and support [batch, k], weights [batch, b].

    A sample that is done adds nothing: its column of Q and its coefficient stay zero. Q and R grow in place.
    """
    residual, basis, triangle, projections, support, weight = state
    precision = torch.finfo(residual.real.dtype).eps
    correlation = system.phi.adjoint(residual).abs() * weight
    strongest, chosen = correlation.max(1)
    atom = system.phi.columns(chosen[:, None])[:, :, 0]
    direction = atom
    coefficients = torch.zeros_like(projections)
    for _ in range(2 if t else 0):
        overlap = torch.bmm(direction[:, None, :], basis[:, :t].mH)
        coefficients[:, :t] += overlap[:, 0]
        direction = direction - torch.bmm(overlap, basis[:, :t])[:, 0]
    length = torch.linalg.vector_norm(direction, dim=1)
    usable = (strongest > 0) & (length > 16 * precision * torch.linalg.vector_norm(atom, dim=1))
    usable &= ~within_noise(residual, system.noise_var)
    unit = torch.where(usable[:, None], direction / length.clamp_min(torch.finfo(length.dtype).tiny)[:, None], 0)
    coefficients[:, t] = length
    identity_column = triangle[:, :, t].clone()
    basis[:, t] = unit
    triangle[:, :, t] = torch.where(usable[:, None], coefficients, identity_column)
    projection = (unit.conj() * residual).sum(1)
    projections[:, t] = projection
    support[:, t] = chosen
    weight.scatter_(1, chosen[:, None], torch.zeros_like(weight[:, :1]))
    residual = residual - projection[:, None] * unit
    done = ~usable | within_noise(residual, system.noise_var)
    return (residual, basis, triangle, projections, support, weight), done
