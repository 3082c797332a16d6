"""Least squares on the atoms that the true channel consists of."""

import math

import torch
from torch import Tensor

from chanest.bounds.base import Bound, Truth, chunks
from chanest.dictionaries import KroneckerMap
from chanest.problem import ChannelBatch, ChannelProblem
from vlista_core.estimate import Estimate
from vlista_core.solvers.omp import orthogonalised

_OVERSAMPLING = 2.0
_MOST_ATOMS = 512


class OracleSupport(Bound):
    """Least squares from y on K atoms of an angular grid, chosen by looking at the noiseless channel.

    The atoms are those that orthogonal matching pursuit takes for h itself, in its order. K is the number with the least
    expected error given h, Φ and σ², sample by sample: ‖h - ĥ_K(Φh)‖² + σ²·(noise let through by K atoms). It never
    sees the noise. A sparse estimator on this grid that has to find its atoms from y does worse; one that shrinks, or
    that leaves the grid, need not.
    """

    name = "oracle-support"
    label = "oracle support: atoms known"
    passable = True
    summary = (
        "least squares on the atoms of a 2x oversampled angular grid that make up the true channel; one subcarrier"
    )

    @classmethod
    def applies(cls, problem: ChannelProblem) -> bool:
        return problem.subcarriers == 1

    def bound(self, batch: ChannelBatch) -> Estimate:
        return Estimate(torch.cat([signal for signal, _ in self._fits(batch)]).to(batch.signal.dtype))

    def floor_db(self, batch: ChannelBatch) -> float:
        """The off-grid floor: NMSE in dB of projecting the noiseless channels on the atoms chosen for `batch`."""
        missed = sum(float(missed.sum()) for _, missed in self._fits(batch))
        return 10 * math.log10(missed / float(batch.signal.abs().square().sum(dtype=torch.float64)))

    def _fits(self, batch: ChannelBatch) -> list[tuple[Tensor, Tensor]]:
        grid = self.problem.dictionary(oversampling=_OVERSAMPLING).cast(torch.complex128)
        return [_fit(truth, grid) for truth in chunks(batch, self.problem)]


def _fit(truth: Truth, grid: KroneckerMap) -> tuple[Tensor, Tensor]:
    """Pursue h atom by atom, and follow the least squares estimate from y on the atoms so far.

    -> ĥ [batch, n] and ‖h - P h‖² [batch] for the best number of atoms, P the projection on them. With ΦΨ_S = QR the estimate
    on the first K atoms is Σ_{k≤K} t_k q_kᴴy, T = Ψ_S R⁻¹. The noise that it lets through, σ² Σ‖t_k‖², only grows: once it
    exceeds the least error so far, no larger K can be better.
    """
    h, measured = truth.signal, truth.measured
    y, phi, noise_var = measured.y, measured.phi, measured.noise_var
    (batch, length), m = h.shape, phi.shape[0]
    most = min(m, _MOST_ATOMS)
    span, seen_span, steps = (torch.zeros(batch, most, size, dtype=h.dtype) for size in (length, m, length))
    free = torch.ones(batch, grid.shape[1], dtype=torch.float64)
    clean, noise = phi.apply(h), torch.zeros_like(noise_var)
    residual, bias, estimate = h, h, torch.zeros_like(h)
    least_error = missed = _energy(h)
    best = estimate
    for k in range(most):
        chosen = (grid.adjoint(residual).abs() * free).argmax(1, keepdim=True)
        free.scatter_(1, chosen, 0.0)
        atom = grid.columns(chosen)[..., 0]
        span[:, k], _, _ = _next_direction(atom, span[:, :k])
        residual = residual - _inner(span[:, k], residual) * span[:, k]
        seen_span[:, k], overlap, size = _next_direction(phi.apply(atom), seen_span[:, :k])
        steps[:, k] = step = (atom - (overlap[:, None] @ steps[:, :k])[:, 0]) / size
        bias = bias - step * _inner(seen_span[:, k], clean)
        estimate = estimate + step * _inner(seen_span[:, k], y)
        noise = noise + noise_var * _energy(step)
        error = _energy(bias) + noise
        better = error < least_error
        least_error = torch.minimum(error, least_error)
        best = torch.where(better[:, None], estimate, best)
        missed = torch.where(better, _energy(residual), missed)
        if bool((noise > least_error).all()):
            break
    return best, missed


def _next_direction(vector: Tensor, basis: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """vector = overlap·basis + size·unit -> unit [batch, n], overlap [batch, k], size [batch, 1]."""
    rest, overlap = orthogonalised(vector, basis)
    size = torch.linalg.vector_norm(rest, dim=1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    return rest / size, overlap, size


def _inner(left: Tensor, right: Tensor) -> Tensor:
    """[batch, n], [batch, n] -> [batch, 1]."""
    return (left.conj() * right).sum(1, keepdim=True)


def _energy(vector: Tensor) -> Tensor:
    """[batch, n] -> [batch]."""
    return vector.abs().square().sum(1)
